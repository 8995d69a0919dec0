"""One file of results with a part for each suite: writing one leaves the others."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def put(target: Path, part: str, text: str) -> None:
    """Write ``text`` as this part of ``target``, in place of an earlier one; the rest of the file stays."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    block = f"{begin}\n\n{text.strip()}\n\n{end}\n"
    old = target.read_text() if target.exists() else ""
    if begin in old and end in old:
        before, rest = old.split(begin, 1)
        target.write_text(before + block + rest.split(end, 1)[1].lstrip("\n"))
    else:
        target.write_text((old.rstrip("\n") + "\n\n" if old else "") + block)
