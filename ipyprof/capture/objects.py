"""The interpreter's own doors into an object: none of them runs code of the object's class.

Call the ones that take tensors with torch functions switched off (``torch._C.DisableTorchFunctionSubclass``).
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from types import FrameType, GeneratorType, GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any

import torch

MOST_ITEMS = 10_000

Doors = tuple[list[tuple[str, MemberDescriptorType]], list[GetSetDescriptorType]]

mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
class_dict_of: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
module_of: Callable[[type], object] = type.__dict__["__module__"].__get__


_OPAQUE: tuple[type, ...] = (
    type(functools.lru_cache(len)), functools.partial, GeneratorType, enumerate, zip, map, filter, reversed,
    type(iter([])), type(iter(())), type(iter({}.values())), type(iter({}.items())), itertools.chain, itertools.cycle,
    itertools.islice, type(itertools.tee(())[0]),
)  # fmt: skip
OPAQUE = frozenset(map(id, _OPAQUE))
"""Ids of classes that keep objects without a way to them: caches, iterators, generators that wait."""


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


def ends_of(ahead: Iterable[Any], behind: Iterable[Any], length: int) -> list[tuple[int, Any]]:
    """(place, item) of all items, or of as many from the end, where what grows grows, as from the beginning."""
    if length <= MOST_ITEMS:
        return list(enumerate(islice(ahead, length)))
    half = MOST_ITEMS // 2
    last = [(length - 1 - at, item) for at, item in enumerate(islice(behind, half))]
    return [*reversed(last), *enumerate(islice(ahead, half))]


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """Items of a dict of any class, else nothing; at most ``MOST_ITEMS``."""
    kind = type(value)
    if kind is dict and len(value) <= MOST_ITEMS:
        return list(value.items())
    if kind is MappingProxyType:
        return list(islice(value.items(), MOST_ITEMS))
    if id(dict) not in map(id, mro_of(type(value))):
        return []
    return list(islice(dict.items(value), MOST_ITEMS))


def listed(value: Any) -> list[Any]:
    """Items of a list of any class, else nothing; at most ``MOST_ITEMS``."""
    return list(islice(list.__iter__(value), MOST_ITEMS)) if id(list) in map(id, mro_of(type(value))) else []


def names_of(value: Any, doors: Doors | None = None) -> list[tuple[str, Any]]:
    """(name, object) of an instance's own dict and slots, by the descriptors of its class.

    Args:
        doors: what ``doors_of`` gave for the class, to save its time.
    """
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
        if module_of(base) != "builtins":
            slots += [(key, one) for key, one in names.items() if type(one) is MemberDescriptorType]
        own = names.get("__dict__")
        if type(own) is GetSetDescriptorType:
            dicts.append(own)
    return slots, dicts


def root_of(kind: type, parts: int = 1) -> str:
    """The first parts of the name of the module that a class is from; empty where it says none."""
    name = module_of(kind)
    return ".".join(name.split(".")[:parts]) if type(name) is str else ""


def storage_of(tensor: Any) -> tuple[tuple[str, int, int] | None, int]:
    """((device type, device index, address), bytes) of a tensor's storage; ``None`` where it has no memory."""
    device = torch.Tensor.device.__get__(tensor)
    if device.type == "meta":
        return None, 0
    try:
        storage = torch.Tensor.untyped_storage(tensor)
        address = storage.data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse, functional and wrapping tensors have none of their own
        return None, 0
    index = -1 if device.type == "cpu" else device.index or 0
    return ((device.type, index, address), storage.nbytes()) if address else (None, 0)


def next_nodes(node: Any) -> list[Any]:
    """The nodes that a node of autograd's graph leads to; none where this torch hides them."""
    descriptor = class_dict_of(type(node)).get("next_functions")
    if type(descriptor) is not GetSetDescriptorType:
        descriptor = class_dict_of(torch._C._FunctionBase).get("next_functions")
    if type(descriptor) is not GetSetDescriptorType:
        return []
    try:
        return [following for following, _ in GetSetDescriptorType.__get__(descriptor, node, type(node))]
    except (TypeError, RuntimeError):  # the descriptor is another class's, or the node is not there any more
        return []


def saved_by(node: Any) -> list[Any]:
    """The tensors that a node of autograd's graph has saved; not those behind hooks, which are the user's code.

    A node of the user's own ``torch.autograd.Function`` may have put tensors on its ``ctx`` as well.
    """
    kind = type(node)
    own, found = class_dict_of(kind), list[Any]()
    if type(own.get("next_functions")) is not GetSetDescriptorType:
        own = class_dict_of(torch._C._FunctionBase)
        for _, value in names_of(node):
            found += [one for one in _unpacked(value) if id(torch.Tensor) in map(id, mro_of(type(one)))]
    for key, descriptor in own.items():
        if key.startswith("_raw_saved_") and type(descriptor) is GetSetDescriptorType:
            raw = GetSetDescriptorType.__get__(descriptor, node, kind)
            for one in raw if type(raw) is tuple else (raw,):
                # torch before 2.4 has neither of the two.
                if getattr(one, "unpack_hook", one) is None and (tensor := one.data) is not None:
                    found.append(tensor)
    return found


def _unpacked(value: Any) -> list[Any]:
    """The items of a list, tuple or dict, else the object itself."""
    if type(value) is list or type(value) is tuple:
        return list(islice(value, MOST_ITEMS))
    return [item for _, item in items_of(value)] if type(value) is dict else [value]
