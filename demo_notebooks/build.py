"""Build the notebooks from the texts in ``lessons``.

    python demo_notebooks/build.py

A lesson is Markdown; what stands between a line ```` ```python ```` and a line ```` ``` ```` is a code cell, and
``[[on_h200]]`` is the cell that finds the reports recorded on an H200. The notebooks are written beside this file.
Where one is there with the same code, its outputs stay; ``python -m tests.gpu.notebooks --out DIR`` executes them, and
what it writes takes their place.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LESSONS = HERE / "lessons"

ON_H200 = '''\
```python
# Where there is no GPU, the reports of the same cells on an H200 are shown beside yours.
from pathlib import Path


def on_h200(part=""):
    """The recorded report of a cell, or None where yours is measured on a GPU or no recording is there."""
    recording = Path(f"recorded/{stem}{part}.json")
    if device == "cuda":
        return None
    if not recording.exists():
        print(f"There is no {recording} beside this notebook, so no report of a GPU can be shown.")
        return None
    return ipyprof.load(recording)
```'''

_CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def notebook(stem: str) -> dict[str, Any]:
    """The notebook of a lesson, such as ``01_first_profile``, as its JSON's plain values, without outputs."""
    text = (LESSONS / f"{stem}.md").read_text(encoding="utf-8")
    text = text.replace("[[on_h200]]", ON_H200.replace("{stem}", stem))
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(_CODE.split(text)):  # Markdown and code take turns
        source = part.strip("\n")
        if not source.strip():
            continue
        cell: dict[str, Any] = {
            "cell_type": "code" if number % 2 else "markdown",
            "id": f"{stem[:2]}-{len(cells):02}",
            # JupyterLab shows three dots in place of a source that is no part of the lesson.
            "metadata": {"jupyter": {"source_hidden": True}} if "def on_h200(" in source else {},
            "source": source.splitlines(keepends=True),
        }
        cells.append(cell | {"execution_count": None, "outputs": []} if number % 2 else cell)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def with_outputs(built: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """The built notebook with the outputs of one that is there, if its code cells are the same, else without any."""
    new, old = ([cell for cell in one["cells"] if cell["cell_type"] == "code"] for one in (built, there))
    if [_text(cell) for cell in new] != [_text(cell) for cell in old]:
        return built
    for cell, executed in zip(new, old, strict=True):
        cell |= {key: executed[key] for key in ("execution_count", "outputs")}
    return built


def _text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def stems() -> list[str]:
    """The names of the lessons, in order."""
    return sorted(path.stem for path in LESSONS.glob("*.md"))


def main() -> None:
    """Write all notebooks."""
    for stem in stems():
        path = HERE / f"{stem}.ipynb"
        built = notebook(stem)
        if path.exists():
            built = with_outputs(built, json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(built, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
