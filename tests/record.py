"""Records the fixture traces on a GPU: planted loops through ``%%gpuprofile --trace``, small enough for the repository.

    python -m tests.record [--out DIR] [NAME ...]

writes ``NAME.json.gz`` to DIR (``tests/fixtures`` if not given), each at most 200 kB, and prints their sizes. The exit
code is 1 when one is missing or too large. Absolute times differ from run to run; tests hold what stays: causes,
lines, shares within a tolerance.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from IPython.core.interactiveshell import InteractiveShell

from tests.gpu.workloads import PRODUCTS, REDUCED, STAND_INS, WORKLOADS, Workload

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LIMIT_BYTES = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """One file to record.

    Attributes:
        workload: name of the planted loop.
        form: ``slow`` or ``fixed``.
        options: options of the magic that keep the file small.
        smaller: replacements in the setup and loop text, (old, new), for the same reason; each must match.
    """

    workload: str
    form: str = "slow"
    options: str = ""
    smaller: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """File name without its ending."""
        return f"{self.workload}_{self.form}"


TWO_LAYERS = (("768, 12, 12", "768, 12, 2"),)
TEN_ITEMS = (("range(40)", "range(10)"),)
FORTY_PAIRS = (("range(140)", "range(40)"),)

RECORDED = (
    Fixture(workload="gpt2_training", options="--active 2", smaller=TWO_LAYERS),
    Fixture(workload="sleeping_loader", options="--active 2"),
    Fixture(workload="sleeping_loader", form="fixed", options="--active 2"),
    Fixture(workload="item_between_kernels", smaller=TEN_ITEMS),
    Fixture(workload="item_between_kernels", form="fixed", smaller=TEN_ITEMS),
    Fixture(workload="empty_cache"),
    Fixture(workload="tiny_kernels", smaller=FORTY_PAIRS),
    Fixture(workload="tiny_kernels", form="fixed", smaller=FORTY_PAIRS),
    Fixture(workload="pageable_copies"),
    Fixture(workload="pageable_copies", form="fixed"),
    Fixture(workload=PRODUCTS.name),
)
"""The files; each carries the ``LiveRecord`` of its run."""


def texts(fixture: Fixture) -> tuple[list[str], str]:
    """The setup cells and the loop of a fixture.

    Raises:
        ValueError: a replacement matches nothing.
    """
    workload: Workload = next(one for one in WORKLOADS if one.name == fixture.workload)
    cells = [workload.setup, workload.fixed_setup if fixture.form == "fixed" else "", workload.forms()[fixture.form]]
    for old, new in () if REDUCED else fixture.smaller:
        if not any(old in cell for cell in cells):
            raise ValueError(f"{fixture.name}: {old!r} is not in the text")
        cells = [cell.replace(old, new) for cell in cells]
    return cells[:2], cells[2]


def record(fixture: Fixture, shell: InteractiveShell, out: Path) -> Path:
    """The recorded file.

    Raises:
        Exception: what a cell of the fixture raised.
    """
    path = out / f"{fixture.name}.json.gz"
    setup, loop = texts(fixture)
    for cell in [*setup, f"%%gpuprofile -q --trace {path} {fixture.options}\n{loop}"]:
        shell.run_cell(cell).raise_error()
    strip_folders(path)
    return path


def strip_folders(path: Path) -> None:
    """Leave of the paths in a recorded file (its own name and the magic's line) their last part only."""
    text = gzip.decompress(path.read_bytes())
    text = re.sub(rb"(?:/[\w.+-]+)+/((?:trace\.json|\w+\.json\.gz)\b)", rb"\1", text)
    path.write_bytes(gzip.compress(text, 9, mtime=0))


def main() -> int:
    """0 when every file was written and is small enough, else 1."""
    names = [fixture.name for fixture in RECORDED]
    parser = argparse.ArgumentParser(prog="python -m tests.record", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=FIXTURES)
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(names)):
        parser.error(f"no fixture {', '.join(unknown)}; there are {', '.join(names)}")
    if not torch.cuda.is_available():
        print("no CUDA device: a dry run, these files are no fixtures", file=sys.stderr)
        if arguments.out == FIXTURES:
            parser.error("without CUDA give another directory to --out")
    arguments.out.mkdir(parents=True, exist_ok=True)
    shell = InteractiveShell.instance()
    exec(STAND_INS, {})
    shell.run_cell("%load_ext ipyprof").raise_error()
    bad = 0
    for fixture in RECORDED:
        if arguments.names and fixture.name not in arguments.names:
            continue
        try:
            path = record(fixture, shell, arguments.out.resolve())
            size = path.stat().st_size
        except Exception as error:
            bad += 1
            print(f"{fixture.name:32} {error!r}", flush=True)
            continue
        bad += size > LIMIT_BYTES
        print(f"{fixture.name:32} {size:9,} bytes{'  TOO LARGE' * (size > LIMIT_BYTES)}", flush=True)
        shell.reset(new_session=False)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
