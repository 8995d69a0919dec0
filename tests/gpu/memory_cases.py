"""The cells of the memory suite, smaller without a GPU, and what it asks of the report of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

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

SHARE = 0.01
COST = 1.20
SAME_STEP = 1.05
READING_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one case gave: ``measured`` in words, and what does not hold."""

    measured: str
    failures: tuple[str, ...] = ()


def near(name: str, measured: float, expected: float, share: float = SHARE) -> list[str]:
    """What does not hold, where two sizes differ by more than a share of the expected one."""
    if abs(measured - expected) <= share * expected:
        return []
    return [f"{name}: {measured:,.0f} is not {expected:,.0f} within {share:.0%}"]


def held(report: Mapping[str, Any]) -> dict[str, int]:
    """Holder → bytes at the peak."""
    return {holder["name"]: holder["bytes"] for holder in report["memory"]["holders"]}


def megabytes(size: float) -> str:
    """Such as ``536.9 MB``."""
    return f"{size / 1e6:,.1f} MB"


def judge_attention(
    slow: Mapping[str, Any], fixed: Mapping[str, Any], most_allocated: int, matrix_bytes: int = MATRIX_BYTES
) -> Found:
    """The weights are activations of line 3, and gone after the change."""
    before, after = held(slow), held(fixed)
    mine = before.get("activations of line 3", 0)
    later = after.get("activations of line 3", 0)
    failures = near("activations of line 3", mine, matrix_bytes)
    failures += near("the peak against max_memory_allocated", slow["memory"]["peak_bytes"], most_allocated)
    failures += near("the sum of the holders", sum(before.values()), slow["memory"]["peak_bytes"], 0.0)
    if later > 0.1 * matrix_bytes:
        failures.append(f"after the change line 3 still has {megabytes(later)} of activations")
    if fixed["memory"]["peak_bytes"] > slow["memory"]["peak_bytes"] - matrix_bytes:
        failures.append(f"the peak fell only to {megabytes(fixed['memory']['peak_bytes'])}")
    measured = (
        f"activations of line 3 {megabytes(mine)} of {megabytes(matrix_bytes)}, then {megabytes(later)}; peak "
        f"{megabytes(slow['memory']['peak_bytes'])} (max_memory_allocated {megabytes(most_allocated)}), then "
        f"{megabytes(fixed['memory']['peak_bytes'])}"
    )
    return Found(measured=measured, failures=tuple(failures))


def judge_training(measured: Mapping[str, int], expected: Mapping[str, int], wrong_sums: int) -> Found:
    """Each role within 1 % of its tensors, and the holders add up everywhere."""
    failures = [text for name in expected for text in near(name, measured.get(name, 0), expected[name])]
    if wrong_sums:
        failures.append(f"at {wrong_sums} records the holders do not add up to the total")
    shown = "; ".join(
        f"{name} {megabytes(measured.get(name, 0))} of {megabytes(size)}" for name, size in expected.items()
    )
    return Found(measured=shown, failures=tuple(failures))


def judge_leak(report: Mapping[str, Any], step_bytes: int = LEAK_BYTES) -> Found:
    """The list is named with its bytes per step and its line."""
    growing = report["views"].get("memory", {}).get("growing") or []
    failures = []
    if [one["name"] for one in growing] != ["kept"]:
        failures.append(f"what grows is {[one['name'] for one in growing]}, not kept")
    else:
        failures += near("bytes per step of kept", growing[0]["bytes"], step_bytes)
        if growing[0]["line"] != 4:
            failures.append(f"its line is {growing[0]['line']}, not 4")
    failures += near("growth of the total", report["memory"]["growth_bytes_per_step"] or 0, step_bytes)
    return Found(measured=f"{growing} of {step_bytes:,} bytes per step", failures=tuple(failures))


def judge_churn(report: Mapping[str, Any]) -> Found:
    """Every recorded step has calls of both kinds, and reserved memory falls and rises."""
    calls = report["views"].get("memory", {}).get("calls") or []
    steps = {step for _, _, _, _, step, *_ in calls}
    reserved = report["views"]["heartbeat"]["reserved"]
    failures = []
    if steps != set(range(1, report["steps"]["count"] + 1)):
        failures.append(f"calls in steps {sorted(steps)} of {report['steps']['count']}")
    if not any("given back" in what for _, _, _, what, *_ in calls):
        failures.append("no call gave memory back")
    if min(reserved) > 0.5 * max(reserved):
        failures.append(f"reserved memory only fell from {max(reserved):,} to {min(reserved):,}")
    total = sum(count for _, _, count, *_ in calls)
    return Found(measured=f"{total} calls in {len(steps)} steps", failures=tuple(failures))


def judge_caught(report: Mapping[str, Any]) -> Found:
    """One place with a request in each recorded step, under trust too, and the verdict is not of it."""
    refused = report["views"].get("memory", {}).get("refused") or []
    failures = []
    if [(one["line"], one["count"]) for one in refused] != [(CAUGHT_LINE, report["steps"]["count"])]:
        failures.append(f"the requests are not one a step at line {CAUGHT_LINE}")
    if not any(one["check"] == "out of memory" and one["status"] == "warn" for one in report["trust"]):
        failures.append("trust does not warn")
    if "ran out of" in report["verdict"]["headline"]:
        failures.append(f"the verdict is {report['verdict']['headline']!r}")
    shown = [(one["operator"], one["line"], one["count"], one["asked_bytes"]) for one in refused]
    return Found(measured=f"{shown}", failures=tuple(failures))


def judge_reading(entries: int, seconds: float) -> Found:
    """At least as many entries as asked for, in time."""
    failures = [] if entries >= ENTRIES else [f"{entries:,} entries are not {ENTRIES:,}"]
    if seconds > READING_SECONDS:
        failures.append(f"{seconds:.2f} s are more than {READING_SECONDS:g} s")
    return Found(measured=f"{entries:,} entries in {seconds:.2f} s", failures=tuple(failures))


def judge_devices(report: Mapping[str, Any]) -> Found:
    """The second device has a curve with what is allocated there, and the holder by name."""
    curves = {one["device"]: one for one in report["views"]["memory"].get("devices") or []}
    found = {one["index"]: one["memory"] for one in report["devices"]}
    first = report["device"]["index"]
    failures = [] if set(curves) == {0, 1} - {first} else [f"curves of {sorted(curves)} beside {first}"]
    size = 4 * 2**24
    for index, name in ((0, "one"), (1, "other")):
        sizes = {one["name"]: one["bytes"] for one in (found.get(index) or {}).get("holders") or []}
        failures += near(f"{name} on device {index}", sizes.get(name, 0), size)
    return Found(measured=f"curves of {sorted(curves)} beside {first}", failures=tuple(failures))


def judge_failure(report: Mapping[str, Any], big_bytes: int = 4 * BIG) -> Found:
    """The line of the backward call, the request, and the three largest holders."""
    failed = report["views"].get("memory", {}).get("out_of_memory")
    if failed is None:
        return Found(measured="", failures=("the report knows of no request that failed",))
    first = failed["holders"][:3]
    failures = []
    if failed["line"] != FAILURE_LINE:
        failures.append(f"the line is {failed['line']}, not {FAILURE_LINE}")
    if {one["name"] for one in first} != FAILURE_HOLDERS:
        failures.append(f"the largest holders are {[one['name'] for one in first]}, not {sorted(FAILURE_HOLDERS)}")
    failures += [text for one in first for text in near(one["name"], one["bytes"], big_bytes)]
    failures += near("the request", failed["tried_bytes"] or 0, big_bytes, 0.02)
    sentence = report["verdict"]["headline"]
    told = f"Line {FAILURE_LINE} ran out of memory", first[0]["name"] if first else ""
    if not all(part in sentence for part in told) or len(sentence.split()) > 25:
        failures.append(f"the verdict is {sentence!r}")
    shown = ", ".join(f"{one['name']} {megabytes(one['bytes'])}" for one in first)
    return Found(measured=f"line {failed['line']}: {shown}; {sentence}", failures=tuple(failures))


def judge_cost(
    recorded: Sequence[tuple[float, float]], unprofiled: Sequence[tuple[float, float]], *, most: float = COST
) -> Found:
    """Medians of pairs, each (with memory, without), in ms."""
    ratio = median(one / other for one, other in recorded)
    same = median(one / other for one, other in unprofiled)
    failures = [] if ratio <= most else [f"recording takes {ratio:.2f} times as long with memory, not {most:.2f}"]
    if not 1 / SAME_STEP <= same <= SAME_STEP:
        failures.append(f"the unprofiled step changes by {same:.3f} times")
    ratios = [one / other for one, other in recorded]
    measured = (
        f"recorded step {ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f}) times, unprofiled step {same:.3f} times, "
        f"{len(ratios)} pairs"
    )
    return Found(measured=measured, failures=tuple(failures))
