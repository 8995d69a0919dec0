"""Which variables hold a tensor beside the one that it is named by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

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
