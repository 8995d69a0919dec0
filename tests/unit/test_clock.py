"""Times as the digits in the file say."""

from __future__ import annotations

import msgspec
import pytest

from ipyprof.trace.kineto import UNKNOWN_NS, joined_times, nanoseconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"12", 12_000),
        (b"12.5", 12_500),
        (b"12.0625", 12_063),
        (b"0.001", 1),
        (b"1712195495519689.047", 1712195495519689047),
        (b'"12.5"', 12_500),
        (b"-3.25", -3_250),
        (b"1.5e3", 1_500_000),
        (b"", UNKNOWN_NS),
        (b"null", UNKNOWN_NS),
        (b'"nan"', UNKNOWN_NS),
        (b"1e30", UNKNOWN_NS),
        (b"[1,2]", UNKNOWN_NS),
    ],
)
def test_nanoseconds_of_one_text(text: bytes, expected: int) -> None:
    for others in ([], [b"7.125"], [b"1", b"22.5"]):
        texts = [msgspec.Raw(part) for part in [*others, text]]
        assert nanoseconds(joined_times(texts)).tolist()[-1] == expected


def test_no_texts_have_no_times() -> None:
    assert nanoseconds(joined_times([])).tolist() == []
