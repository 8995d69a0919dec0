"""Looks at the user's objects without running their code.

``type(o)`` and never ``isinstance``; containers by their unbound methods, an instance's names by its class's own
descriptors, a class by those of ``type``. So a class with a hostile ``__getattr__``, ``__iter__`` or ``__len__`` sees
no call, and what is lazy stays lazy.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sysconfig
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from types import FrameType, GeneratorType, GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any

import torch

MOST_ITEMS = 10_000
NOT_THE_USERS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    sysconfig.get_paths()["stdlib"] + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<frozen ",
)
"""How the names of files begin that are not the user's: torch's, Python's and ours."""
Doors = tuple[list[tuple[str, MemberDescriptorType]], list[GetSetDescriptorType]]
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
class_dict_of: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
_OPAQUE: tuple[type, ...] = (
    type(functools.lru_cache(len)), functools.partial, GeneratorType, enumerate, zip, map, filter, reversed,
    type(iter([])), type(iter(())), type(iter({}.values())), type(iter({}.items())), itertools.chain, itertools.cycle,
    itertools.islice, type(itertools.tee(())[0]),
)  # fmt: skip
OPAQUE = frozenset(map(id, _OPAQUE))
"""Ids of classes that keep objects without a way to them: caches, iterators, generators that wait."""
_Items = dict[type, Callable[[Any], Any]]
_FROM_THE_END: _Items = {
    list: list.__reversed__,
    deque: deque.__reversed__,
    dict: lambda value: reversed(dict.items(value)),
}
_FROM_THE_START: _Items = {
    list: list.__iter__,
    tuple: tuple.__iter__,
    deque: deque.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
    dict: dict.items,
}
CONTAINERS = tuple(_FROM_THE_START)
"""Builtin classes whose items, also those of classes made from them, ``ends_of`` gives."""


def has_base(kind: type, base: type) -> bool:
    """Whether a class is ``base`` or made from it, past what its metaclass answers."""
    return id(base) in map(id, mro_of(kind))


def text_of(kind: type, name: str) -> str:
    """``__module__`` or ``__qualname__`` of a class, past its metaclass; empty where it is no text."""
    found = type.__dict__[name].__get__(kind)
    return found if type(found) is str else ""


def root_of(kind: type, parts: int = 1) -> str:
    """The first parts of the name of the module that a class is from."""
    return ".".join(text_of(kind, "__module__").split(".")[:parts])


def ends_of(value: Any, container: type) -> tuple[list[tuple[int, Any]], bool]:
    """([(place, item)], whether these are all): as many from the end, where what grows grows, as from the beginning.

    Of a dict an item is a pair. ``container`` is the one of ``CONTAINERS`` that the object's class is made from.
    """
    length: int = container.__len__(value)  # type: ignore[attr-defined]
    start, end = _FROM_THE_START[container](value), _FROM_THE_END.get(container)
    if length <= MOST_ITEMS or end is None:
        return list(enumerate(islice(start, MOST_ITEMS))), length <= MOST_ITEMS
    half = MOST_ITEMS // 2
    last = [(length - 1 - at, item) for at, item in enumerate(islice(end(value), half))]
    return [*reversed(last), *enumerate(islice(start, half))], False


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """Items of a dict of any class, else nothing; at most ``MOST_ITEMS``."""
    kind = type(value)
    if kind is dict and len(value) <= MOST_ITEMS:
        return list(value.items())
    if kind is MappingProxyType:
        return list(islice(value.items(), MOST_ITEMS))
    return list(islice(dict.items(value), MOST_ITEMS)) if has_base(kind, dict) else []


def names_of(value: Any, doors: Doors | None = None) -> list[tuple[str, Any]]:
    """(name, object) of an instance's own dict and slots; ``doors`` of its class, where known, save time."""
    kind = type(value)
    slots, dicts = doors_of(kind) if doors is None else doors
    found: list[tuple[str, Any]] = []
    for key, slot in slots:
        with suppress(AttributeError):  # a slot that was never set
            found.append((key, MemberDescriptorType.__get__(slot, value, kind)))
    for own in dicts:
        found += [pair for pair in items_of(GetSetDescriptorType.__get__(own, value, kind)) if type(pair[0]) is str]
    return found


def doors_of(kind: type) -> Doors:
    """The descriptors of a class that open an instance: (slots by name, its dict)."""
    slots: list[tuple[str, MemberDescriptorType]] = []
    dicts: list[GetSetDescriptorType] = []
    for base in mro_of(kind):
        names = class_dict_of(base)
        if text_of(base, "__module__") != "builtins":
            slots += [(key, one) for key, one in names.items() if type(one) is MemberDescriptorType]
        own = names.get("__dict__")
        if type(own) is GetSetDescriptorType:
            dicts.append(own)
    return slots, dicts


def referents(value: Any) -> list[Any]:
    """What the collector sees behind an object, of which nothing runs.

    Before Python 3.11 a generator that waits has a frame, and its variables are the frame's.
    """
    found = []
    for one in gc.get_referents(value):
        if type(one) is FrameType:
            shared = (id(one.f_globals), id(one.f_builtins))  # of the module, not the generator's own
            found += [own for own in gc.get_referents(one) if id(own) not in shared]
        else:
            found.append(one)
    return found


def part_of(error: BaseException, name: str) -> Any:
    """An attribute that every exception has, past whatever its class does with names."""
    return BaseException.__dict__[name].__get__(error)


def causes_of(error: BaseException | None) -> list[BaseException]:
    """An error and what it was raised from, this one first; at most eight."""
    found: list[BaseException] = []
    while error is not None and len(found) < 8 and all(error is not one for one in found):
        found.append(error)
        error = part_of(error, "__cause__") or part_of(error, "__context__")
    return found


def frames_of(error: BaseException | None) -> list[tuple[FrameType, int]]:
    """(frame, line that runs) of an error's traceback, the outermost first."""
    found = []
    trace = None if error is None else part_of(error, "__traceback__")
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return found
