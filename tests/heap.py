"""A caching allocator on the fake clock: it writes the ``[memory]`` records of a ``TraceBuilder`` with their totals."""

from __future__ import annotations

from tests.builder import TraceBuilder

BLOCK = 512
FIRST_ADDRESS = 0x7F00_0000_0000
FAR_APART = 1 << 32


class Heap:
    """Gives out blocks; a freed address is given out again for the same size, as a steady loop sees it.

    Args:
        held: bytes that were there before the recording and stay unknown to it.
        reserved: bytes taken from the driver.
    """

    def __init__(self, builder: TraceBuilder, *, held: int = 0, reserved: int = 1 << 34, device: int = 0) -> None:
        self.allocated = held
        self._builder = builder
        self._reserved = reserved
        self._device = device
        self._size: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        self._last = 0

    def alloc(self, at: float, size: int, tid: int = 1) -> int:
        """The address of a new block."""
        address = self.older(size, counted=False)
        self.allocated += size
        self._builder.memory(at, size, self.allocated, self._reserved, self._device, address=address, tid=tid)
        return address

    def free(self, at: float, address: int, tid: int = 1) -> None:
        """A block goes back."""
        size = self._size.pop(address)
        self._free.setdefault(size, []).append(address)
        self.allocated -= size
        self._builder.memory(at, -size, self.allocated, self._reserved, self._device, address=address, tid=tid)

    def older(self, size: int, *, counted: bool = True) -> int:
        """The address of a block from before the recording, which writes no record."""
        reused = self._free.get(size)
        if reused:
            address = reused.pop()
        else:
            self._last += 1
            address = FIRST_ADDRESS + self._last * FAR_APART
        self._size[address] = size
        self.allocated += size if counted else 0
        return address
