"""A small training cell with one planted mistake, profiled in an IPython shell without a front end."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ipyprof.errors import IpyprofError

SETUP = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Pictures(Dataset):
    \"\"\"Noise in place of files; every picture is blurred on the CPU when it is asked for.\"\"\"

    def __len__(self):
        return 16 * 24

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        picture = torch.rand(3, 64, 64, generator=generator)
        for _ in range(4):
            picture = nn.functional.avg_pool2d(picture, 5, stride=1, padding=2)
        return picture, index % 10


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Pictures(), batch_size=16)
"""

CELL = """\
for pictures, labels in loader:
    pictures, labels = pictures.to(device), labels.to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures), labels)
    loss.backward()
    optimizer.step()
"""

OPTIONS = "--items 16 --unit pictures --name demo"


def run_demo() -> Path:
    """The HTML page of the demo, in a new temporary folder. The cell and the text of its report are printed.

    Raises:
        IpyprofError: a cell failed, or wrote no page.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    page = Path(tempfile.mkdtemp(prefix="ipyprof-demo-")) / "demo.html"
    config = Config()
    config.HistoryManager.enabled = False  # nothing is written to the user's own history
    with tempfile.TemporaryDirectory(prefix="ipyprof-shell-") as folder:
        shell = InteractiveShell.instance(config=config, ipython_dir=folder)
        magic = f"%%gpuprofile {OPTIONS}"
        print(f"{magic}\n{CELL}", flush=True)
        for code in ("%load_ext ipyprof", SETUP, f'{magic} --html "{page}"\n{CELL}'):
            result = shell.run_cell(code)
            if not result.success:
                error = result.error_before_exec or result.error_in_exec
                raise IpyprofError(f"the demo's cell failed: {error}", "it runs with a working torch", "check torch")
    if not page.exists():
        raise IpyprofError("the demo wrote no page", "it writes one when the report is ready", "see the lines above")
    return page
