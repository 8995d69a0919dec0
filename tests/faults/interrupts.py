"""SIGINT to a real kernel at random moments of a profiled cell: the kernel lives, and nothing is left on.

    python -m tests.faults.interrupts [--times 200] [--seed 0]

After each interrupt the state is compared with that before, and the next profile has to be right. The cells take
every way to a step there is, and the moment is drawn from the whole time that the cell takes, from its compilation to
its report; so the report is interrupted as well.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from dataclasses import dataclass, field

from tests.faults.live_kernel import Kernel, started_kernel

PREPARE = """
data = TensorDataset(torch.ones(96, 64), torch.zeros(96, 1))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(loader):
    for a, b in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        time.sleep(0.004)

def product():
    time.sleep(0.004)
    return torch.tanh(x @ x)
"""
CELLS = {
    "loop": "%%gpuprofile -q\nfor i in range(60):\n    y = product()",
    "dashboard": "%%gpuprofile\nfor i in range(30):\n    y = product()",
    "long loop": "%%gpuprofile -q\nfor i in range(250):\n    y = product()",
    "training": "%%gpuprofile -q\nfor epoch in range(2):\n    train(DataLoader(data, batch_size=4))",
    "workers": "%%gpuprofile -q\nfor a, b in DataLoader(data, batch_size=4, num_workers=1):\n    product()",
    "once": "%%gpuprofile -q\nproduct()\ntime.sleep(0.2)\nproduct()",
    "repeat": "%%gpuprofile -q --repeat 2\nfor i in range(40):\n    y = product()",
    "stack": "%%gpuprofile -q --stack\nfor i in range(20):\n    y = product()",
    "step cell": "%%gpuprofile -q --step cell\ny = product()\ntime.sleep(0.02)",
    "block": (
        "with ipyprof.profile(quiet=True) as run:\n    for i in range(40):\n        y = product()\n        run.step()"
    ),
}


@dataclass
class Outcome:
    """What came of all interrupts.

    Attributes:
        ended: how often a cell ended in which way.
        wrong: what was wrong, each with its cell and moment.
    """

    times: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ways = ", ".join(f"{count} {way}" for way, count in self.ended.most_common())
        return "\n".join([f"{self.times} interrupts: {ways}; {len(self.wrong)} wrong", *self.wrong])


def interrupt(kernel: Kernel, times: int, seed: int) -> Outcome:
    """Interrupt the cells in turn, ``times`` times in all."""
    assert not kernel.run(PREPARE).error
    dice = random.Random(seed)
    cells = list(CELLS.items())
    dice.shuffle(cells)
    length = {}
    outcome = Outcome()
    for number in range(times):
        name, code = cells[number % len(cells)]
        if name not in length:
            whole = kernel.run(code)
            assert not whole.error, whole.written
            length[name] = whole.seconds
        moment = dice.uniform(0, length[name])
        reply = kernel.run(code, interrupt_after_s=moment)
        outcome.times += 1
        outcome.ended[reply.error or "not interrupted"] += 1
        kernel.settle()
        wrong = kernel.wrong()
        # The workers of a loader get the SIGINT too, and torch says so in an error of its own, profiled or not.
        expected = "DataLoader worker" in reply.written or reply.error in ("", "KeyboardInterrupt")
        if not expected:
            wrong.append(reply.written[-2000:])
        outcome.wrong += [f"{name} after {moment:.3f} of {length[name]:.3f} s: {text}" for text in wrong]
    return outcome


def main() -> int:
    """Exit status: 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with started_kernel() as kernel:
        outcome = interrupt(kernel, given.times, given.seed)
    print(outcome)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
