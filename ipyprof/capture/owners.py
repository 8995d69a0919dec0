"""Which name of the notebook holds which storage, found without calling the user's code.

Every look at an object goes through the interpreter's own doors: ``type(o)`` and never ``isinstance``, iteration of
``list``, ``tuple``, ``dict``, ``set`` and ``deque`` by their unbound methods, an instance's names by the class's own
descriptors, tensors with torch functions switched off. So a class with a hostile ``__getattr__``, ``__iter__`` or
``__len__`` sees no call, and what is lazy stays lazy. Autograd graphs are walked by their saved tensors, of which those
with hooks (checkpointing, offloading) are left alone.

Of several names for one storage, in this order: a parameter's, gradient's or state's name in its module; the shortest
name from the notebook's variables, then from locals of running functions, then from those of an error (breadth first);
names from around the shell; ``Out[n]``; ``_``, ``__``, ``___``; and last what only a graph has saved. What comes out is
text and numbers: no reference is kept.

A notebook may hold more than there is time for, such as lists of lists. So each of these kinds of names has a part of
the limits that those before it cannot use up, and tensors, modules and optimizers go before containers.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sys
import sysconfig
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import CO_OPTIMIZED
from itertools import islice
from types import (
    CellType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple, TypeVar

import torch
from IPython.core.getipython import get_ipython

from ipyprof.trace.live import Owner

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


_NOT_THE_USERS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    sysconfig.get_paths()["stdlib"] + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<frozen ",
)
_SHELL_PACKAGES = (
    "IPython",
    "ipykernel",
    "traitlets",
    "tornado",
    "zmq",
    "jupyter_client",
    "pytest",
    "_pytest",
    "pluggy",
    "xdist",
    "execnet",
    "__channelexec__",  # what execnet calls the module that it runs in a worker of xdist
)
_HISTORY = "_oh"  # what the shell calls Out itself: the user may give that name to something else
_LAST = ("_", "__", "___")
LAST_ERROR = ", last error"  # behind the name of a function whose locals the last error keeps
_MOST_FRAMES = 200
_MOST_CAUSES = 8


class Namespaces(NamedTuple):
    """Names to objects: those that the user gave, those of frames beyond the shell or test runner, which may be the
    user's or a server's, and ``Out``, ``_``, ``__``, ``___``, which keep results alive.
    """

    given: list[dict[str, Any]]
    around: list[dict[str, Any]]
    results: dict[str, Any]


@contextmanager
def namespaces(error: BaseException | None = None) -> Iterator[Namespaces]:
    """The notebook's names first, then of frames of the user's that run, of those that ``error`` left, and of those
    that the notebook's last error left, whose traceback keeps their tensors.

    Names that begin with ``_`` are the shell's or private and are left out, but for the results. A frame's locals come
    as ``name (in function)``. On the way out the copies of locals that Python before 3.13 keeps in a frame are emptied
    again, unless the user's own code holds that copy.

    Args:
        error: what the cell raised.
    """
    shell = get_ipython()
    spaces: list[dict[str, Any]] = []
    around: list[dict[str, Any]] = []
    results: dict[str, Any] = {}
    frame: FrameType | None
    globals_seen: set[int] = set()
    copies: list[dict[str, Any]] = []
    if shell is not None:
        globals_seen.add(id(shell.user_ns))
        spaces.append(_public(shell.user_ns))
    inner, outer = _running_frames()
    named = [(frame, "", spaces) for frame in (*inner, *_frames_of(error))]
    named += [(frame, LAST_ERROR, spaces) for frame in _frames_of(_last_error())]
    named += [(frame, "", around) for frame in outer]
    for frame, more, into in named:
        if not _is_users(frame):
            continue
        if id(frame.f_globals) not in globals_seen:
            globals_seen.add(id(frame.f_globals))
            into.append(_public(frame.f_globals))
        if frame.f_code.co_flags & CO_OPTIMIZED:
            into.append(_locals(frame, more))
            if sys.version_info < (3, 13):
                copies.append(frame.f_locals)
    if shell is not None:
        for name, key in (("Out", _HISTORY), *((name, name) for name in _LAST)):
            if key in shell.user_ns:
                results[name] = shell.user_ns[key]
    frame = None
    for frames in (named, inner, outer):
        frames.clear()
    try:
        yield Namespaces(spaces, around, results)
    finally:
        spaces.clear()
        around.clear()
        results.clear()
        while copies:
            copy = copies.pop()
            if sys.getrefcount(copy) <= 3:  # the frame's, ours, and the call's: nobody else looks at it
                copy.clear()


def _locals(frame: FrameType, more: str) -> dict[str, Any]:
    where = frame.f_code.co_name
    return {f"{name} (in {where}{more})": value for name, value in frame.f_locals.items()}


def _last_error() -> BaseException | None:
    """What the shell showed last, or ``None``; Python 3.12 gave it another name."""
    for name in ("last_exc", "last_value"):
        error = vars(sys).get(name)
        if error is not None and any(base is BaseException for base in mro_of(type(error))):
            found: BaseException = error
            return found
    return None


def users_file(error: BaseException) -> str:
    """The file name of the outermost frame of the user's in an error's traceback; empty without one."""
    trace = part_of(error, "__traceback__")
    while trace is not None and not _is_users(trace.tb_frame):
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_code.co_filename)


def _public(names: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in dict.items(names)
        if type(name) is str and not name.startswith("_") and name not in ("In", "Out")
    }


def _running_frames() -> tuple[list[FrameType], list[FrameType]]:
    """(frames, frames around): those that run, the innermost first, up to the first of the shell's; those beyond it."""
    found: list[FrameType] = []
    border = _MOST_FRAMES
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _MOST_FRAMES:
        if _is_shells(frame):
            border = min(border, len(found))
        found.append(frame)
        frame = frame.f_back
    return found[:border], found[border:]


def _frames_of(error: BaseException | None) -> Iterator[FrameType]:
    """The frames of an error and of what caused it, the innermost first."""
    seen: set[int] = set()
    for _ in range(_MOST_CAUSES):
        if error is None or id(error) in seen:
            return
        seen.add(id(error))
        found = []
        trace = part_of(error, "__traceback__")
        while trace is not None:
            found.append(trace.tb_frame)
            trace = trace.tb_next
        yield from reversed(found[-_MOST_FRAMES:])
        error = part_of(error, "__cause__") or part_of(error, "__context__")


def part_of(error: BaseException, name: str) -> Any:
    """An attribute that every exception has, past whatever its class does with names."""
    return BaseException.__dict__[name].__get__(error)


def _is_users(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_NOT_THE_USERS) and not _is_shells(frame)


def _is_shells(frame: FrameType) -> bool:
    module = dict.get(frame.f_globals, "__name__")
    return type(module) is str and module.split(".")[0] in _SHELL_PACKAGES


MOST_OTHERS = 8
MOST_GRAPHS = 32
Key = tuple[str, int, int]
One = TypeVar("One")


class Sharing:
    """What a look for holders meets again: objects by their id, and storages through other tensors.

    Ids are those of objects that the look keeps while it runs; only names stay here.
    """

    def __init__(self) -> None:
        self._of_object: dict[int, list[str]] = {}
        self._of_storage: dict[Key, list[tuple[str, int]]] = {}
        self._of_graph: dict[int, list[tuple[str, int]]] = {}

    def object_again(self, number: int, variable: str) -> None:
        """An object that was met before is reached from this variable too."""
        _put(self._of_object.setdefault(number, []), variable)

    def storage_again(self, key: Key, variable: str, tensor: int) -> None:
        """A storage that has a name is held from this variable too, by the tensor of this id, 0 = none."""
        _put(self._of_storage.setdefault(key, []), (variable, tensor))

    def graph_again(self, root: int, variable: str, tensor: int) -> None:
        """All that the graph of one tensor has saved is in the graph of another too; ``root`` 0 = of none."""
        if root and root != tensor:
            _put(self._of_graph.setdefault(root, []), (variable, tensor))

    def others(self, key: Key, variable: str, tensor: int) -> list[str]:
        """The other variables, the first met first, of a storage that is named by ``variable`` for a tensor."""
        found: list[str] = [*self._of_object.get(tensor, ())]
        waiting = [*self._of_storage.get(key, ())]  # grows while it is gone through
        for name, through in waiting:
            for one in (name, *self._of_object.get(through, ())):
                _put(found, one)
            for one in self._of_graph.get(through, ()):
                if one not in waiting and len(waiting) < MOST_GRAPHS:
                    waiting.append(one)
        return [name for name in found if name != variable]


def largest_holder(variable: str, others: Iterable[str], ranks: Mapping[str, tuple[int, ...]]) -> str:
    """The one of the others with the highest rank, where that of ``variable`` itself is not higher; else empty.

    So all tensors of a list that grows are the list's, whatever else one of them is called.

    Args:
        ranks: a number of tensors first, no two of them the same.

    Example:
        >>> largest_holder("loss", ["last", "losses"], {"loss": (1, 0), "last": (1, 1), "losses": (30, 2)})
        'losses'
        >>> largest_holder("losses", ["last"], {"last": (1, 0), "losses": (30, 1)})
        ''
    """
    best = max((variable, *others), key=lambda name: ranks.get(name, ()))
    return "" if best == variable else best


def _put(known: list[One], one: One) -> None:
    if len(known) < MOST_OTHERS and one not in known:
        known.append(one)


MOST_OBJECTS = 200_000
MOST_OWNERS = 20_000
MOST_NS = 500_000_000
LONGEST_NAME = 160
PARAMETER = "parameter"
BUFFER = "buffer"
GRADIENT = "gradient"
OPTIMIZER = "optimizer state"
TENSOR = "tensor"
GRAPH = "graph"

# Of two names for one storage the one of the higher rank counts, of equals the first.
SAVED, RESULT, NAMED, OF_GRADIENT, OF_MODULE = range(5)

# Shares of MOST_OBJECTS and MOST_NS for each kind of names, with what those before it have left.
_NAMES, _AROUND, _RESULTS, _GRAPHS = 0.6, 0.05, 0.1, 0.25
_ATOMS = frozenset(map(id, (int, float, complex, bool, str, bytes, bytearray, type(None), type, range, slice, object)))
_SKIPPED = frozenset(
    {"builtins", "numpy", "pandas", "matplotlib", "IPython", "traitlets", "ipywidgets", "PIL", "scipy", "pyarrow"}
    | {"asyncio", "threading", "logging", "io", "re", "argparse", "typing", "abc", "ipyprof", "ipykernel", "zmq"}
)
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_WRAPPED = "._orig_mod"  # what torch.compile puts between a module and its name
_closure_of = FunctionType.__dict__["__closure__"].__get__
_contents_of = CellType.__dict__["cell_contents"].__get__
_self_of = MethodType.__dict__["__self__"].__get__


def owners_of(
    namespaces: Sequence[dict[str, Any]],
    sizes: Mapping[tuple[int, int], tuple[int, int]] | None = None,
    *,
    around: Sequence[dict[str, Any]] = (),
    results: Mapping[str, Any] | None = None,
) -> tuple[tuple[Owner, ...], bool]:
    """(owners, complete): one ``Owner`` per storage that a name reaches, the largest first.

    ``complete`` is false where a limit ended the look: objects, items of one container, time, or the table's length.

    Args:
        namespaces: names to objects, looked through in this order; of two names as short, the first wins.
        sizes: (device, address) to (bytes that the allocator gave, bytes that were asked for), where they are known.
        around: namespaces to look through when those are done: of whatever runs the notebook.
        results: ``Out`` and ``_``: their names count only where no other name reaches the storage.
    """
    walk = _Walk()
    # What the walk makes would have the collector look at everything again and again, and run finalisers.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch._C.DisableTorchFunctionSubclass():
            walk.run(namespaces, around, results or {})
        return walk.table(sizes or {})
    finally:
        walk.forget()
        if collecting:
            gc.enable()


class _Found(NamedTuple):
    name: str
    role: str
    variable: str
    bytes: int
    rank: int
    tensor: int  # its id, while the walk runs


class _Walk:
    """One look through the namespaces; everything it holds goes with it."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Any, str, str]] = deque()
        self._first: deque[tuple[Any, str, str]] = deque()  # what goes before the queue
        self._kept: list[Any] = []  # keeps ids unique while the walk runs
        self._seen: set[int] = set()
        self._actions: dict[int, Callable[[Any, str, str], None] | None] = {}
        self._optimizers: list[tuple[Any, str, str]] = []
        self._graphs: list[tuple[Any, str, str]] = []
        self._roots: dict[int, int] = {}  # id of a graph's first node to the id of its tensor
        self._names: dict[int, tuple[str, int]] = {}
        self._found: dict[tuple[str, int, int], _Found] = {}
        self._doors: dict[int, Doors] = {}
        self._sharing = Sharing()
        self._most_rank = OF_MODULE
        self._complete = True
        self._most_objects = 0
        self._deadline_ns = 0
        self._plain: set[str] = set()  # variables that are tensors themselves
        self._go_first: set[int] = set()  # ids of classes

    def add(self, value: Any, name: str, variable: str) -> None:
        """Look at this object when its turn comes."""
        kind = id(type(value))
        if kind in _ATOMS:
            return
        number = id(value)
        if number in self._seen:
            if self._most_rank > RESULT:
                self._sharing.object_again(number, variable)
            return
        action = self._actions[kind] if kind in self._actions else self._action(type(value))
        if action is None:
            return
        if len(self._seen) >= self._most_objects:
            self._complete = False
            return
        self._seen.add(number)
        self._kept.append(value)
        (self._first if kind in self._go_first else self._queue).append((value, name, variable))

    def run(
        self, namespaces: Sequence[dict[str, Any]], around: Sequence[dict[str, Any]], results: Mapping[str, Any]
    ) -> None:
        """Names first, then what optimizers hold, the same for what is around and ``results``, then autograd graphs."""
        for spaces, share in ((namespaces, _NAMES), (around, _AROUND)):
            self._allow(share)
            for namespace in spaces:
                self._begin(namespace)
            self._look_at_all()
        self._allow(_RESULTS)
        self._most_rank = RESULT
        for name, value in results.items():
            self.add(value, name, name)
            self._look_at_all()
        self._allow(_GRAPHS)
        nodes: set[int] = set()
        for tensor, name, variable in self._newest_graphs():
            self._walk_graph(tensor, name, variable, nodes)

    def _begin(self, namespace: dict[str, Any]) -> None:
        for name, value in self._items(namespace):
            if type(name) is str:
                self.add(value, name, name)
                if self._actions.get(id(type(value))) == self._look_at_tensor:
                    self._plain.add(name)

    def _allow(self, share: float) -> None:
        """This share of the limits from now on, and what is left of those before."""
        self._most_objects += int(MOST_OBJECTS * share)
        self._deadline_ns = max(self._deadline_ns, time.perf_counter_ns()) + int(MOST_NS * share)

    def _newest_graphs(self) -> list[tuple[Any, str, str]]:
        """The first tensor of each variable, then the last found first: what was recorded is at a list's end."""
        first: dict[str, tuple[Any, str, str]] = {}
        others = [one for one in self._graphs if first.setdefault(one[2], one) is not one]
        return [*first.values(), *reversed(others)]

    def table(self, sizes: Mapping[tuple[int, int], tuple[int, int]]) -> tuple[tuple[Owner, ...], bool]:
        """What was found, the largest first, and whether it is all."""
        others = {
            key: self._sharing.others(key, one.variable, one.tensor)
            for key, one in self._found.items()
            if one.role in (TENSOR, GRAPH)
        }
        counts = Counter(self._found[key].variable for key in others)
        counts.update(name for names in others.values() for name in names)
        # Of equals the container, then the first.
        ranks = {name: (count, name not in self._plain, -at) for at, (name, count) in enumerate(counts.items())}
        owners = [
            Owner(
                address=address,
                device=device,
                bytes=given,
                name=one.name,
                role=one.role,
                variable=one.variable,
                also=largest_holder(one.variable, others.get(key, ()), ranks)[:LONGEST_NAME],
                rounding=given - asked,
            )
            for key, one in self._found.items()
            for _, device, address in (key,)
            for given, asked in (sizes.get((device, address), (one.bytes, one.bytes)),)
        ]
        owners.sort(key=lambda owner: -owner.bytes)
        return tuple(owners[:MOST_OWNERS]), self._complete and len(owners) <= MOST_OWNERS

    def forget(self) -> None:
        """Let go of every object now: the actions are methods of this object, so it goes only with the collector."""
        for held in (self._queue, self._first, self._kept, self._actions, self._doors, self._optimizers, self._graphs):
            held.clear()

    # -- the queue --

    def _look_at_all(self) -> None:
        self._empty_queue()
        while self._optimizers:
            self._look_at_optimizer(*self._optimizers.pop(0))
            self._empty_queue()

    def _empty_queue(self) -> None:
        count = 0
        while self._first or self._queue:
            value, name, variable = (self._first or self._queue).popleft()
            count += 1
            if count % 16 == 0 and self._is_late():  # one of them may hold ten thousand
                self._first.clear()
                self._queue.clear()
                return
            action = self._action(type(value))
            if action is not None:
                with suppress(Exception):  # a torch or interpreter that refuses one object: the others go on
                    action(value, name, variable)

    def _is_late(self) -> bool:
        late = time.perf_counter_ns() >= self._deadline_ns
        self._complete &= not late
        return late

    def _action(self, kind: type) -> Callable[[Any, str, str], None] | None:
        """What to do with objects of this class, decided once."""
        number = id(kind)
        if number not in self._actions:
            action = self._actions[number] = self._chosen(kind)
            self._kept.append(kind)
            if action in (self._look_at_tensor, self._look_at_module, self._keep_optimizer):
                self._go_first.add(number)
        return self._actions[number]

    def _chosen(self, kind: type) -> Callable[[Any, str, str], None] | None:
        bases = {id(base) for base in mro_of(kind)}
        if id(torch.Tensor) in bases:
            return None if root_of(kind, 2) == "torch._subclasses" else self._look_at_tensor
        if id(torch.nn.Module) in bases:
            return self._look_at_module
        if id(torch.optim.Optimizer) in bases:
            return self._keep_optimizer
        for container, look in (
            (dict, self._look_at_dict),
            (list, self._look_at_list),
            (tuple, self._look_at_tuple),
            (set, self._look_at_set),
            (frozenset, self._look_at_frozenset),
            (deque, self._look_at_deque),
        ):
            if id(container) in bases:
                return look
        if kind is FunctionType:
            return self._look_at_function
        if kind is MethodType:
            return self._look_at_method
        if id(kind) in OPAQUE:
            return self._look_at_opaque
        if id(type) in bases or id(ModuleType) in bases or root_of(kind) in _SKIPPED:
            return None
        return self._look_at_instance

    # -- containers --

    def _look_at_dict(self, value: Any, name: str, variable: str) -> None:
        for key, item in self._items(value):
            shown = repr(key) if type(key) is str or type(key) is int else "…"
            self.add(item, f"{name}[{shown}]", variable)

    def _look_at_list(self, value: Any, name: str, variable: str) -> None:
        self._add_ends(list.__iter__(value), list.__reversed__(value), list.__len__(value), name, variable)

    def _look_at_tuple(self, value: Any, name: str, variable: str) -> None:
        self._add_ends(tuple.__iter__(value), (), tuple.__len__(value), name, variable)

    def _look_at_deque(self, value: Any, name: str, variable: str) -> None:
        self._add_ends(deque.__iter__(value), deque.__reversed__(value), deque.__len__(value), name, variable)

    def _look_at_set(self, value: Any, name: str, variable: str) -> None:
        self._add_some(set.__iter__(value), set.__len__(value), name, variable)

    def _look_at_frozenset(self, value: Any, name: str, variable: str) -> None:
        self._add_some(frozenset.__iter__(value), frozenset.__len__(value), name, variable)

    def _items(self, value: Any) -> list[tuple[Any, Any]]:
        items = dict.items(value)
        ends = self._ends(items, reversed(items), dict.__len__(value))
        return [item for _, item in ends]

    def _add_ends(self, ahead: Iterable[Any], behind: Iterable[Any], length: int, name: str, variable: str) -> None:
        for at, item in self._ends(ahead, behind, length):
            self.add(item, f"{name}[{at}]", variable)

    def _add_some(self, items: Iterable[Any], length: int, name: str, variable: str) -> None:
        self._complete &= length <= MOST_ITEMS
        for item in list(islice(items, MOST_ITEMS)):
            self.add(item, f"{name}[…]", variable)

    def _ends(self, ahead: Iterable[Any], behind: Iterable[Any], length: int) -> list[tuple[int, Any]]:
        self._complete &= length <= MOST_ITEMS
        return ends_of(ahead, behind, length)

    # -- instances --

    def _look_at_instance(self, value: Any, name: str, variable: str) -> None:
        for key, item in names_of(value, self._doors_of(value)):
            self.add(item, f"{name}.{key}", variable)

    def _doors_of(self, value: Any) -> Doors:
        number = id(type(value))
        if number not in self._doors:
            self._doors[number] = doors_of(type(value))
        return self._doors[number]

    def _look_at_function(self, value: Any, name: str, variable: str) -> None:
        for cell in _closure_of(value) or ():
            with suppress(ValueError):  # an empty cell
                self.add(_contents_of(cell), f"{name}()", variable)

    def _look_at_method(self, value: Any, name: str, variable: str) -> None:
        self.add(_self_of(value), name, variable)

    def _look_at_opaque(self, value: Any, name: str, variable: str) -> None:
        for item in islice(referents(value), MOST_ITEMS):
            self.add(item, f"{name}()", variable)

    def _look_at_module(self, value: Any, name: str, variable: str) -> None:
        name = name.removesuffix(_WRAPPED)
        for key, item in names_of(value, self._doors_of(value)):
            if key not in _MODULE_PARTS:
                if not key.endswith("_hooks"):
                    self.add(item, f"{name}.{key}", variable)
                continue
            for own, part in items_of(item):
                if type(own) is not str or part is None:
                    continue
                if key == "_modules":
                    self.add(part, f"{name}.{own}", variable)
                else:
                    self._seen.add(id(part))
                    self._kept.append(part)
                    role = PARAMETER if key == "_parameters" else BUFFER
                    self._note(part, f"{name}.{own}", variable, role, rank=OF_MODULE)

    def _keep_optimizer(self, value: Any, name: str, variable: str) -> None:
        self._optimizers.append((value, name, variable))

    def _look_at_optimizer(self, value: Any, name: str, variable: str) -> None:
        names = dict(names_of(value))
        for group in listed(names.get("param_groups")):
            for key, members in items_of(group):
                if type(key) is str and key == "params":
                    for at, parameter in enumerate(listed(members)):
                        with suppress(Exception):
                            self._note_trained(parameter, f"{name} parameter {at}", variable)
        for parameter, state in items_of(names.get("state")):
            owner, _ = self._names.get(id(parameter), ("a parameter", 0))
            for key, item in items_of(state):
                with suppress(Exception):
                    if type(key) is str and id(torch.Tensor) in map(id, mro_of(type(item))):
                        self._note(item, f"{name}: {key} of {owner}", variable, OPTIMIZER, rank=OF_MODULE)
        for key, item in names.items():
            if key not in ("param_groups", "state"):
                self.add(item, f"{name}.{key}", variable)

    # -- tensors --

    def _look_at_tensor(self, value: Any, name: str, variable: str) -> None:
        is_parameter = id(torch.nn.Parameter) in map(id, mro_of(type(value)))
        self._note(value, name, variable, PARAMETER if is_parameter else TENSOR)

    def _note(self, tensor: Any, name: str, variable: str, role: str, *, rank: int = NAMED) -> None:
        """Keep the tensor's storage under this name, its gradient's beside it, and its graph for later."""
        rank = min(rank, self._most_rank)
        if rank > self._names.get(id(tensor), ("", -1))[1]:
            self._names[id(tensor)] = (name, rank)
        self._keep(tensor, name, variable, role, rank, id(tensor))
        if torch.Tensor.is_leaf.__get__(tensor):
            gradient = torch.Tensor.grad.__get__(tensor)
            if gradient is not None:
                self._keep(gradient, f"{name}.grad", variable, GRADIENT, max(rank, OF_GRADIENT), 0)
        else:
            self._graphs.append((tensor, name, variable))
        if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
            self._look_at_instance(tensor, name, variable)  # wrappers keep the tensors that they stand for

    def _note_trained(self, parameter: Any, name: str, variable: str) -> None:
        """A tensor that an optimizer steps is a parameter; the notebook's own name for it goes before its place."""
        key, _ = storage_of(parameter)
        known = None if key is None else self._found.get(key)
        if key is None or known is None:
            self._note(parameter, name, variable, PARAMETER)
        elif known.role == TENSOR:
            self._found[key] = known._replace(role=PARAMETER)

    def _keep(self, tensor: Any, name: str, variable: str, role: str, rank: int, of: int) -> None:
        """Keep a storage under a name; ``of`` is the id of the tensor that the notebook has a name for, 0 = none."""
        key, size = storage_of(tensor)
        if key is None or size == 0:
            return
        rank = min(rank, self._most_rank)
        known = self._found.get(key)
        if known is not None and (role == GRAPH or (known.variable != variable and self._most_rank > RESULT)):
            self._sharing.storage_again(key, variable, of)
        if known is None or rank > known.rank:
            self._found[key] = _Found(name[:LONGEST_NAME], role, variable, size, rank, of)

    def _walk_graph(self, tensor: Any, name: str, variable: str, nodes: set[int]) -> None:
        """Keep what the graph behind a tensor has saved for its backward pass, under the tensor's name."""
        first = torch.Tensor.grad_fn.__get__(tensor)
        waiting = [] if first is None else [first]
        self._roots.setdefault(id(first), id(tensor))
        while waiting:
            node = waiting.pop()
            if id(node) in nodes:
                self._sharing.graph_again(self._roots.get(id(node), 0), variable, id(tensor))
                continue
            if len(nodes) >= MOST_OBJECTS or (len(nodes) % 256 == 0 and self._is_late()):
                self._complete = False
                return
            nodes.add(id(node))
            self._kept.append(node)
            with suppress(Exception):
                for saved in saved_by(node):
                    self._keep(saved, f"graph of {name}", variable, GRAPH, SAVED, id(tensor))
            waiting += [following for following in next_nodes(node) if following is not None]
