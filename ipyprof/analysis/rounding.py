"""What the caching allocator gives beyond what it was asked for, where the requests are known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

# CUDACachingAllocator.cpp, kMinBlockSize and kSmallSize: a remainder of at most so much stays with a block that is
# larger than the second, of less than the first with a smaller one.
GRAIN_BYTES = 512
SMALL_BYTES = 1 << 20


def matched(blocks: Sequence[int], sizes: Sequence[int], asked: Sequence[int]) -> list[tuple[int, int]]:
    """(block, bytes asked for) of the blocks that can be for one of these requests, each request once.

    From the largest block down, each takes the largest request that is left and fits, so that all find theirs where
    there is one for each.
    """
    left = sorted(asked)
    found = []
    for size, block in sorted(zip(sizes, blocks, strict=True), reverse=True):
        at = bisect_right(left, size) - 1
        if at >= 0:
            rounded = -(-left[at] // GRAIN_BYTES) * GRAIN_BYTES
            if size - rounded <= (SMALL_BYTES if rounded > SMALL_BYTES else 0):
                found.append((block, left.pop(at)))
    return found
