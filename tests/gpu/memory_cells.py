"""The cells of the memory suite, smaller without a GPU."""

from __future__ import annotations

from tests.gpu.workloads import DEVICE, REDUCED

ENTRIES = 100_000
BLOCK = 512


def size_of(full: int, reduced: int) -> int:
    """The size on this machine."""
    return reduced if REDUCED else full


LENGTH = size_of(2048, 64)
MATRIX_BYTES = 2 * 32 * LENGTH * LENGTH * 2
LEAK_NUMBERS = size_of(2**22, 2**10)
LEAK_BYTES = 4 * LEAK_NUMBERS + BLOCK
BIG = size_of(2**28, 2**12)

ATTENTION_SETUP = f"""
import torch
from torch.nn import functional as F
{DEVICE}
q, k, v = (torch.randn(2, 32, {LENGTH}, 128, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
scale = 128 ** -0.5
def clear():
    q.grad = k.grad = v.grad = None
"""
MATERIALISED = """for step in range(24):
    out = torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v
    out.sum().backward()
    clear()
"""
FUSED = MATERIALISED.replace("torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v",
                             "F.scaled_dot_product_attention(q, k, v)")  # fmt: skip

LEAK_SETUP = f"import torch\n{DEVICE}\nweights = torch.zeros({LEAK_NUMBERS}, device=device, requires_grad=True)\n"
LEAK = """kept = []
for step in range(30):
    loss = torch.exp(weights * 0.001).sum()
    kept.append(loss)
"""

CHURN_SETUP = f"import torch\n{DEVICE}\n"
CHURN = f"""for step in range(20):
    buffers = [torch.empty({size_of(2**26, 2**8)}, device=device, dtype=torch.uint8) for _ in range(4)]
    buffers = None
    torch.cuda.empty_cache()
"""

CAUGHT_SETUP = f"import torch\n{DEVICE}\nx = torch.zeros(2**20, device=device)\n"
CAUGHT = """for step in range(12):
    try:
        torch.empty(2**50, device=device)
    except RuntimeError:
        pass
    x = x * 2
"""
CAUGHT_LINE = 4

KEPT_SETUP = f"""
import torch
{DEVICE}
class Thing:
    def __init__(self):
        self.weight = torch.zeros({size_of(2**22, 2**10)}, device=device, requires_grad=True)
        self.losses = [self.weight.exp().sum()]
thing = Thing()
"""
KEPT = """for step in range(12):
    y = torch.exp(thing.weight).sum()
"""

STEPS_READ = 3
READING_SETUP = f"""
import torch
{DEVICE}
x = torch.zeros(2**10, device=device)
def allocate():
    for _ in range({size_of(ENTRIES // 2 // STEPS_READ + 1, 10)}):
        torch.empty(256, device=device)
"""
READING = """for step in range(6):
    allocate()
    x = x * 2
"""

DEVICES_SETUP = "import torch\none, other = (torch.zeros(2**24, device=f'cuda:{at}') for at in (0, 1))\n"
DEVICES = """for step in range(12):
    y = torch.exp(one) + one
    z = torch.exp(other)
"""

FAILURE_SETUP = f"""
import torch
{DEVICE}
big = torch.zeros({BIG}, device=device, requires_grad=True)
optimizer = torch.optim.SGD([big], lr=1e-3)
def limit(step):
    if step != 3:
        return
    if device == "cpu":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**27) / total)
"""
FAILURE = """for step in range(12):
    hidden = torch.tanh(big * 1.5)
    loss = (hidden * hidden).sum()
    limit(step)
    loss.backward()
    optimizer.step()
"""
FAILURE_LINE = 6
FAILURE_HOLDERS = {"parameters of big", "gradients of big", "hidden"}
