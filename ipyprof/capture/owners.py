"""Which name of the notebook holds which storage, found without calling the user's code.

Objects are opened as ``ipyprof.capture.looking`` says, tensors with torch functions switched off. Autograd graphs are
walked by their saved tensors, of which those with hooks (checkpointing, offloading) are left alone.

Of several names for one storage, in this order: a parameter's, gradient's or state's name in its module; the shortest
name from the notebook's variables, then from locals of running functions, then from those of an error (breadth first);
names from around the shell; ``Out[n]``; ``_``, ``__``, ``___``; and last what only a graph has saved. What comes out is
text and numbers: no reference is kept.

A notebook may hold more than there is time for, such as lists of lists. So each of these kinds of names has a part of
the limits that those before it cannot use up, and tensors, modules and optimizers go before containers.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from inspect import CO_OPTIMIZED
from itertools import islice
from types import CellType, FrameType, FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from IPython.core.getipython import get_ipython

from ipyprof.capture import looking
from ipyprof.capture.looking import (
    NOT_THE_USERS,
    OPAQUE,
    Doors,
    causes_of,
    class_dict_of,
    doors_of,
    ends_of,
    frames_of,
    has_base,
    items_of,
    names_of,
    referents,
    root_of,
)
from ipyprof.trace.live import Owner

Key = tuple[str, int, int]
"""(device type, device index, address) of a storage."""
Named = tuple[Any, str, str]
"""(object, its name, the variable that the name begins from)."""


def storage_of(tensor: Any) -> tuple[Key | None, int]:
    """(key, bytes) of a tensor's storage; ``None`` where it has no memory."""
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


def _next_nodes(node: Any) -> list[Any]:
    """The nodes that a node of autograd's graph leads to; none where this torch hides them."""
    for kind in (type(node), torch._C._FunctionBase):
        descriptor = class_dict_of(kind).get("next_functions")
        if type(descriptor) is GetSetDescriptorType:
            try:
                following = GetSetDescriptorType.__get__(descriptor, node, type(node))
                return [one for one, _ in following if one is not None]
            except (TypeError, RuntimeError):  # the descriptor is another class's, or the node is not there any more
                return []
    return []


def _saved_by(node: Any) -> list[Any]:
    """The tensors that a node of autograd's graph has saved; not those behind hooks, which are the user's code.

    A node of the user's own ``torch.autograd.Function`` may have put tensors on its ``ctx`` as well.
    """
    kind = type(node)
    own, found = class_dict_of(kind), list[Any]()
    if type(own.get("next_functions")) is not GetSetDescriptorType:
        own = class_dict_of(torch._C._FunctionBase)
        for _, value in names_of(node):
            parts = [value]
            if type(value) is list or type(value) is tuple:
                parts = list(islice(value, looking.MOST_ITEMS))
            elif type(value) is dict:
                parts = [item for _, item in items_of(value)]
            found += [one for one in parts if has_base(type(one), torch.Tensor)]
    for key, descriptor in own.items():
        if key.startswith("_raw_saved_") and type(descriptor) is GetSetDescriptorType:
            raw = GetSetDescriptorType.__get__(descriptor, node, kind)
            for one in raw if type(raw) is tuple else (raw,):
                if one.unpack_hook is None and (tensor := one.data) is not None:
                    found.append(tensor)
    return found


# -- names --

_SHELL_PACKAGES = (
    *("IPython", "ipykernel", "traitlets", "tornado", "zmq", "jupyter_client", "pytest", "_pytest", "pluggy"),
    *("xdist", "execnet", "__channelexec__"),  # what execnet calls the module that it runs in a worker of xdist
)
# The shell calls Out itself _oh: the user may give the name Out to something else.
_RESULTS = (("Out", "_oh"), ("_", "_"), ("__", "__"), ("___", "___"))
LAST_ERROR = ", last error"  # behind the name of a function whose locals the last error keeps
_MOST_FRAMES = 200


class Namespaces(NamedTuple):
    """Names to objects: those that the user gave, those of frames beyond the shell or test runner, which may be the
    user's or a server's, and ``Out``, ``_``, ``__``, ``___``, which keep results alive.
    """

    given: list[dict[str, Any]]
    around: list[dict[str, Any]]
    results: dict[str, Any]


@contextmanager
def namespaces(error: BaseException | None = None) -> Iterator[Namespaces]:
    """The notebook's names first, then of frames of the user's that run, of those that the cell's ``error`` left, and
    of those that the notebook's last error left, whose traceback keeps their tensors.

    Names that begin with ``_`` are the shell's or private and are left out, but for the results. A frame's locals come
    as ``name (in function)``. On the way out the copies of locals that Python before 3.13 keeps in a frame are emptied
    again, unless the user's own code holds that copy.
    """
    shell = get_ipython()
    spaces = Namespaces([], [], {})
    globals_seen: set[int] = set()
    copies: list[dict[str, Any]] = []
    if shell is not None:
        globals_seen.add(id(shell.user_ns))
        spaces.given.append(_public(shell.user_ns))
        spaces.results.update((name, shell.user_ns[key]) for name, key in _RESULTS if key in shell.user_ns)
    inner, outer = _running_frames()
    inner += _innermost_first(error)
    last = _innermost_first(_last_error())
    named = [(frame, "", spaces.given) for frame in inner]
    named += [(frame, LAST_ERROR, spaces.given) for frame in last]
    named += [(frame, "", spaces.around) for frame in outer]
    frame: FrameType | None
    for frame, more, into in named:
        if not _is_users(frame):
            continue
        if id(frame.f_globals) not in globals_seen:
            globals_seen.add(id(frame.f_globals))
            into.append(_public(frame.f_globals))
        if frame.f_code.co_flags & CO_OPTIMIZED:
            where = frame.f_code.co_name
            into.append({f"{name} (in {where}{more})": value for name, value in frame.f_locals.items()})
            if sys.version_info < (3, 13):
                copies.append(frame.f_locals)
    frame = None
    for frames in (named, inner, outer, last):
        frames.clear()
    try:
        yield spaces
    finally:
        for names in spaces:
            names.clear()
        while copies:
            copy = copies.pop()
            if sys.getrefcount(copy) <= 3:  # the frame's, ours, and the call's: nobody else looks at it
                copy.clear()


def _innermost_first(error: BaseException | None) -> list[FrameType]:
    """The frames of an error, then those of what it was raised from."""
    return [frame for one in causes_of(error) for frame, _ in reversed(frames_of(one)[-_MOST_FRAMES:])]


def _last_error() -> BaseException | None:
    """What the shell showed last, or ``None``; Python 3.12 gave it another name."""
    known = (vars(sys).get(name) for name in ("last_exc", "last_value"))
    return next((one for one in known if one is not None and has_base(type(one), BaseException)), None)


def users_file(error: BaseException) -> str:
    """The file name of the outermost frame of the user's in an error's traceback; empty without one."""
    return next((str(frame.f_code.co_filename) for frame, _ in frames_of(error) if _is_users(frame)), "")


def _public(names: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in dict.items(names)
        if type(name) is str and not name.startswith("_") and name not in ("In", "Out")
    }


def _running_frames() -> tuple[list[FrameType], list[FrameType]]:
    """(frames, frames around): those that run, the innermost first, up to the first of the shell's; those beyond it."""
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _MOST_FRAMES:
        found.append(frame)
        frame = frame.f_back
    border = next((at for at, one in enumerate(found) if _is_shells(one)), len(found))
    return found[:border], found[border:]


def _is_users(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(NOT_THE_USERS) and not _is_shells(frame)


def _is_shells(frame: FrameType) -> bool:
    module = dict.get(frame.f_globals, "__name__")
    return type(module) is str and module.split(".")[0] in _SHELL_PACKAGES


# -- the look --

MOST_OBJECTS = 200_000
MOST_OWNERS = 20_000
MOST_NS = 500_000_000
MOST_OTHERS = 8
MOST_GRAPHS = 32
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
_NAMES, _AROUND, _OF_RESULTS, _GRAPHS = 0.6, 0.05, 0.1, 0.25
_ATOMS = frozenset(map(id, (int, float, complex, bool, str, bytes, bytearray, type(None), type, range, slice, object)))
_SKIPPED = frozenset(
    {"builtins", "numpy", "pandas", "matplotlib", "IPython", "traitlets", "ipywidgets", "PIL", "scipy", "pyarrow"}
    | {"asyncio", "threading", "logging", "io", "re", "argparse", "typing", "abc", "ipyprof", "ipykernel", "zmq"}
)
_WRAPPED = "._orig_mod"  # what torch.compile puts between a module and its name
_closure_of = FunctionType.__dict__["__closure__"].__get__
_contents_of = CellType.__dict__["cell_contents"].__get__
_self_of = MethodType.__dict__["__self__"].__get__
_Action = Callable[[Any, str, str], None]
_One = TypeVar("_One")


def owners_of(spaces: Namespaces, sizes: Mapping[tuple[int, int], int] | None = None) -> tuple[tuple[Owner, ...], bool]:
    """(owners, complete): one ``Owner`` per storage that a name reaches, the largest first.

    ``complete`` is false where a limit ended the look: objects, items of one container, time, or the table's length.

    Args:
        spaces: looked through in order; of two names as short, the first wins. The names of results count only where
            no other name reaches the storage.
        sizes: (device, address) → bytes that the allocator gave, where they are known.
    """
    walk = _Walk()
    # What the walk makes would have the collector look at everything again and again, and run finalisers.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch._C.DisableTorchFunctionSubclass():
            walk.run(spaces)
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
    tensor: int  # its id, while the walk runs; 0 = none that the notebook has a name for


class _Walk:
    """One look through the namespaces; everything it holds goes with it."""

    def __init__(self) -> None:
        self._queue: deque[Named] = deque()
        self._first: deque[Named] = deque()  # what goes before the queue
        self._kept: list[Any] = []  # keeps ids unique while the walk runs
        self._seen: set[int] = set()
        self._actions: dict[int, _Action | None] = {}
        self._go_first: set[int] = set()  # ids of classes
        self._doors: dict[int, Doors] = {}
        self._optimizers: list[Named] = []
        self._graphs: list[Named] = []
        self._names: dict[int, tuple[str, int]] = {}  # id of a tensor → its best name and that one's rank
        self._found: dict[Key, _Found] = {}
        self._plain: set[str] = set()  # variables that are tensors themselves
        # Who else holds a storage: by ids of objects, and each no longer than MOST_OTHERS.
        self._variables_of: dict[int, list[str]] = {}  # an object that was met again → through these
        self._held_through: dict[Key, list[tuple[str, int]]] = {}  # a storage → variables, each with its tensor
        self._graphs_over: dict[int, list[tuple[str, int]]] = {}  # a tensor → those whose graph goes on to its own
        self._roots: dict[int, int] = {}  # the first node of a graph → its tensor
        self._most_rank = OF_MODULE
        self._complete = True
        self._most_objects = 0
        self._deadline_ns = 0

    def run(self, spaces: Namespaces) -> None:
        """Names first, then what optimizers hold, the same for what is around and the results, then autograd graphs."""
        for group, share in ((spaces.given, _NAMES), (spaces.around, _AROUND)):
            self._allow(share)
            for namespace in group:
                for name, value in self._ends(namespace, dict):
                    self._add(value, name, name)
                    if self._actions.get(id(type(value))) == self._look_at_tensor:
                        self._plain.add(name)
            self._look_at_all()
        self._allow(_OF_RESULTS)
        self._most_rank = RESULT
        for name, value in spaces.results.items():
            self._add(value, name, name)
            self._look_at_all()
        self._allow(_GRAPHS)
        nodes: set[int] = set()
        for tensor, name, variable in self._newest_graphs():
            self._walk_graph(tensor, name, variable, nodes)

    def table(self, sizes: Mapping[tuple[int, int], int]) -> tuple[tuple[Owner, ...], bool]:
        """What was found, the largest first, and whether it is all."""
        others = {key: self._others(key, one) for key, one in self._found.items() if one.role in (TENSOR, GRAPH)}
        counts = Counter(self._found[key].variable for key in others)
        counts.update(name for names in others.values() for name in names)
        # All tensors of a list that grows are the list's, whatever else one of them is called: the variable with the
        # most tensors holds them, of equals the container, then the first.
        ranks = {name: (count, name not in self._plain, -at) for at, (name, count) in enumerate(counts.items())}
        owners = []
        for key, one in self._found.items():
            best = max((one.variable, *others.get(key, ())), key=lambda name: ranks.get(name, ()))
            owners.append(
                Owner(
                    address=key[2],
                    device=key[1],
                    bytes=sizes.get(key[1:], one.bytes),
                    name=one.name,
                    role=one.role,
                    variable=one.variable,
                    also="" if best == one.variable else best[:LONGEST_NAME],
                )
            )
        owners.sort(key=lambda owner: -owner.bytes)
        return tuple(owners[:MOST_OWNERS]), self._complete and len(owners) <= MOST_OWNERS

    def forget(self) -> None:
        """Let go of every object now: the actions are methods of this object, so it goes only with the collector."""
        for held in (self._queue, self._first, self._kept, self._actions, self._doors, self._optimizers, self._graphs):
            held.clear()

    def _others(self, key: Key, one: _Found) -> list[str]:
        """The other variables that hold a storage, the first met first: of its tensor, and through other tensors."""
        found: list[str] = [*self._variables_of.get(one.tensor, ())]
        waiting = [*self._held_through.get(key, ())]  # grows while it is gone through
        for variable, tensor in waiting:
            for name in (variable, *self._variables_of.get(tensor, ())):
                _put(found, name)
            for further in self._graphs_over.get(tensor, ()):
                if further not in waiting and len(waiting) < MOST_GRAPHS:
                    waiting.append(further)
        return [name for name in found if name != one.variable]

    # -- the queue --

    def _add(self, value: Any, name: str, variable: str) -> None:
        """Look at this object when its turn comes."""
        kind = id(type(value))
        if kind in _ATOMS:
            return
        number = id(value)
        if number in self._seen:
            if self._most_rank > RESULT:
                _put(self._variables_of.setdefault(number, []), variable)
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

    def _allow(self, share: float) -> None:
        """This share of the limits from now on, and what is left of those before."""
        self._most_objects += int(MOST_OBJECTS * share)
        self._deadline_ns = max(self._deadline_ns, time.perf_counter_ns()) + int(MOST_NS * share)

    def _is_late(self) -> bool:
        late = time.perf_counter_ns() >= self._deadline_ns
        self._complete &= not late
        return late

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

    def _action(self, kind: type) -> _Action | None:
        """What to do with objects of this class, decided once."""
        number = id(kind)
        if number not in self._actions:
            action = self._actions[number] = self._chosen(kind)
            self._kept.append(kind)
            if action in (self._look_at_tensor, self._look_at_module, self._keep_optimizer):
                self._go_first.add(number)
        return self._actions[number]

    def _chosen(self, kind: type) -> _Action | None:
        if has_base(kind, torch.Tensor):
            return None if root_of(kind, 2) == "torch._subclasses" else self._look_at_tensor
        if has_base(kind, torch.nn.Module):
            return self._look_at_module
        if has_base(kind, torch.optim.Optimizer):
            return self._keep_optimizer
        for container in looking.CONTAINERS:
            if has_base(kind, container):
                return partial(self._look_at_items, container)
        if kind is FunctionType:
            return self._look_at_function
        if kind is MethodType:
            return self._look_at_method
        if id(kind) in OPAQUE:
            return self._look_at_opaque
        if has_base(kind, type) or has_base(kind, ModuleType) or root_of(kind) in _SKIPPED:
            return None
        return self._look_at_instance

    # -- what is in an object --

    def _ends(self, value: Any, container: type) -> list[Any]:
        """Items of a dict, (place, item) of all else."""
        found, complete = ends_of(value, container)
        self._complete &= complete
        return [item for _, item in found] if container is dict else found

    def _look_at_items(self, container: type, value: Any, name: str, variable: str) -> None:
        for place, item in self._ends(value, container):
            told = container not in (set, frozenset) and (type(place) is str or type(place) is int)
            self._add(item, f"{name}[{repr(place) if told else '…'}]", variable)

    def _look_at_instance(self, value: Any, name: str, variable: str) -> None:
        for key, item in self._names_of(value):
            self._add(item, f"{name}.{key}", variable)

    def _names_of(self, value: Any) -> list[tuple[str, Any]]:
        number = id(type(value))
        if number not in self._doors:
            self._doors[number] = doors_of(type(value))
        return names_of(value, self._doors[number])

    def _look_at_function(self, value: Any, name: str, variable: str) -> None:
        for cell in _closure_of(value) or ():
            with suppress(ValueError):  # an empty cell
                self._add(_contents_of(cell), f"{name}()", variable)

    def _look_at_method(self, value: Any, name: str, variable: str) -> None:
        self._add(_self_of(value), name, variable)

    def _look_at_opaque(self, value: Any, name: str, variable: str) -> None:
        for item in islice(referents(value), looking.MOST_ITEMS):
            self._add(item, f"{name}()", variable)

    def _look_at_module(self, value: Any, name: str, variable: str) -> None:
        name = name.removesuffix(_WRAPPED)
        for key, item in self._names_of(value):
            if key == "_modules":
                for own, part in items_of(item):
                    if type(own) is str:
                        self._add(part, f"{name}.{own}", variable)
            elif key in ("_parameters", "_buffers"):
                role = PARAMETER if key == "_parameters" else BUFFER
                for own, part in items_of(item):
                    if type(own) is str and part is not None:
                        self._seen.add(id(part))
                        self._kept.append(part)
                        self._note(part, f"{name}.{own}", variable, role, rank=OF_MODULE)
            elif not key.endswith("_hooks"):
                self._add(item, f"{name}.{key}", variable)

    def _keep_optimizer(self, value: Any, name: str, variable: str) -> None:
        self._optimizers.append((value, name, variable))

    def _look_at_optimizer(self, value: Any, name: str, variable: str) -> None:
        names = dict(names_of(value))
        for group in _listed(names.pop("param_groups", None)):
            for key, members in items_of(group):
                if type(key) is str and key == "params":
                    for at, parameter in enumerate(_listed(members)):
                        with suppress(Exception):
                            self._note_trained(parameter, f"{name} parameter {at}", variable)
        for parameter, state in items_of(names.pop("state", None)):
            owner, _ = self._names.get(id(parameter), ("a parameter", 0))
            for key, item in items_of(state):
                with suppress(Exception):
                    if type(key) is str and has_base(type(item), torch.Tensor):
                        self._note(item, f"{name}: {key} of {owner}", variable, OPTIMIZER, rank=OF_MODULE)
        for key, item in names.items():
            self._add(item, f"{name}.{key}", variable)

    # -- tensors --

    def _look_at_tensor(self, value: Any, name: str, variable: str) -> None:
        self._note(value, name, variable, PARAMETER if has_base(type(value), torch.nn.Parameter) else TENSOR)

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
            _put(self._held_through.setdefault(key, []), (variable, of))
        if known is None or rank > known.rank:
            self._found[key] = _Found(name[:LONGEST_NAME], role, variable, size, rank, of)

    # -- graphs --

    def _newest_graphs(self) -> list[Named]:
        """The first tensor of each variable, then the last found first: what was recorded is at a list's end."""
        first: dict[str, Named] = {}
        others = [one for one in self._graphs if first.setdefault(one[2], one) is not one]
        return [*first.values(), *reversed(others)]

    def _walk_graph(self, tensor: Any, name: str, variable: str, nodes: set[int]) -> None:
        """Keep what the graph behind a tensor has saved for its backward pass, under the tensor's name."""
        first = torch.Tensor.grad_fn.__get__(tensor)
        waiting = [] if first is None else [first]
        self._roots.setdefault(id(first), id(tensor))
        while waiting:
            node = waiting.pop()
            if id(node) in nodes:  # what this one has saved is in the graph of both
                root = self._roots.get(id(node), 0)
                if root and root != id(tensor):
                    _put(self._graphs_over.setdefault(root, []), (variable, id(tensor)))
                continue
            if len(nodes) >= MOST_OBJECTS or (len(nodes) % 256 == 0 and self._is_late()):
                self._complete = False
                return
            nodes.add(id(node))
            self._kept.append(node)
            with suppress(Exception):
                for saved in _saved_by(node):
                    self._keep(saved, f"graph of {name}", variable, GRAPH, SAVED, id(tensor))
            waiting += _next_nodes(node)


def _listed(value: Any) -> list[Any]:
    """Items of a list of any class, else nothing; at most ``MOST_ITEMS``."""
    return list(islice(list.__iter__(value), looking.MOST_ITEMS)) if has_base(type(value), list) else []


def _put(known: list[_One], one: _One) -> None:
    if len(known) < MOST_OTHERS and one not in known:
        known.append(one)
