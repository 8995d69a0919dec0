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

import gc
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from ipyprof.capture import objects
from ipyprof.capture.objects import (
    OPAQUE,
    Doors,
    doors_of,
    ends_of,
    items_of,
    listed,
    mro_of,
    names_of,
    next_nodes,
    root_of,
    saved_by,
    storage_of,
)
from ipyprof.capture.sharing import Sharing, largest_holder
from ipyprof.trace.model import Owner

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
        self._complete &= length <= objects.MOST_ITEMS
        for item in list(islice(items, objects.MOST_ITEMS)):
            self.add(item, f"{name}[…]", variable)

    def _ends(self, ahead: Iterable[Any], behind: Iterable[Any], length: int) -> list[tuple[int, Any]]:
        self._complete &= length <= objects.MOST_ITEMS
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
        for item in islice(objects.referents(value), objects.MOST_ITEMS):
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
