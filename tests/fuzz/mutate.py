"""Damage to a trace that keeps it almost a trace: keys dropped, doubled, renamed, values swapped, bytes flipped.

What is done is decided by numbers from outside, so that a random generator, hypothesis and atheris drive one mutator.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
from collections.abc import Callable
from typing import Any

Choose = Callable[[int], int]
"""A number from 0 up to, not including, the argument."""

MOST_CHANGES = 8
DEEP = 1_000

_DEEP_LIST: Any = []
for _ in range(200):
    _DEEP_LIST = [_DEEP_LIST]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e-9, 1e15, 1e308, -1e308, math.nan, math.inf, -math.inf,
    2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 2**70, 10**400,
    "", "0", "-1", "12.5", "nan", "0x7f", "1e999", "x" * 5_000, "\0", "a\nb\r\tc", "\ud800", "\u202e", "$\\frac{1}{0}$",
    "<script>alert(1)</script>", "ProfilerStep#1", "ProfilerStep#99999999999999999999", "## line 3",
    "## line 99999999999999999999999", "enumerate(DataLoader)#_Iter.__next__", "cudaLaunchKernel", "cudaGraphLaunch",
    "cudaStreamSynchronize", "cudaMalloc", "cudaFree", "aten::mm", "aten::item", "aten::convolution", "aten::addmm",
    "autograd::engine::evaluate_function: MmBackward0", "aten::scaled_dot_product_attention", "aten::native_layer_norm",
    "Memcpy HtoD (Pageable -> Device)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "[memory]",
    "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset", "cuda_sync",
    "gpu_user_annotation", "python_function", "fwdbwd", "Operator", "X", "i", "M", "s", "f", "B", "E",
    [], {}, [[]], [0], [-1, -1, -1], [2**40, 2**40], [[2**62, 2**62], [2**62, 2**62]], [None], ["a", 1, None, []],
    [[1, 2], [2, 3]], [[[1, 2], [3]], []], ["float", "c10::BFloat16"], {"a": {"b": []}}, {"": 0}, _DEEP_LIST,
)  # fmt: skip

KEYS = (
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "traceEvents", "baseTimeNanoseconds",
    "deviceProperties", "distributedInfo", "ipyprof", "record_shapes", "schemaVersion", "External id", "external id",
    "Sequence number", "correlation", "device", "stream", "grid", "block", "est. achieved occupancy %", "bytes",
    "Concrete Inputs", "Input type", "Input Strides", "Input Dims", "Input dims", "Collective name", "dtype",
    "In msg nelems", "Out msg nelems", "Group size", "Process Group Name", "Process Group Ranks", "Bytes",
    "Device Type", "Device Id", "Total Allocated", "Total Reserved", "numSms", "computeMajor", "totalGlobalMem",
    "source", "baseline_ns", "profiled_ns", "loop_line", "mark", "cycle", "notes", "sync_sites", "utilization",
    "process_memory", "device_names", "", "nodes", "views", "verdict", "steps", "breakdown",
)  # fmt: skip

FACTORS = (-1, 0, 0.001, 1000, 1e9, 1e15, 1e300)


def mutated(seed: Any, choose: Choose) -> bytes:
    """A file's bytes: ``seed``, a JSON value, with one to eight changes, and now and then damaged as text or packed."""
    value = copy.deepcopy(seed)
    for _ in range(1 + choose(MOST_CHANGES)):
        value = _changed(value, choose)
    text = json.dumps(value, ensure_ascii=choose(2) == 0, separators=((",", ":"), (", ", ": "))[choose(2)])
    data = text.encode("utf-8", "surrogatepass")
    if choose(4) == 0:
        data = _damaged(data, choose)
    if choose(8) == 0:
        data = gzip.compress(data, 1)
        if choose(2):
            data = _damaged(data, choose)
    return data


def _value(choose: Choose) -> Any:
    return copy.deepcopy(VALUES[choose(len(VALUES))])


def _changed(root: Any, choose: Choose) -> Any:
    """``root`` with one change at a place that is reached by walking down at random."""
    holder, key, value = None, None, root
    while isinstance(value, (dict, list)) and value and (holder is None or choose(6)):
        holder = value
        key = list(value)[choose(len(value))] if isinstance(value, dict) else choose(len(value))
        value = holder[key]
    if holder is None or key is None:
        return _value(choose)
    action = choose(9)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(value)] * (1 + choose(3))
    elif action == 2 and isinstance(holder, dict):
        holder[KEYS[choose(len(KEYS))]] = holder.pop(key)
    elif action == 3 and isinstance(holder, dict):
        holder[KEYS[choose(len(KEYS))]] = _value(choose)
    elif action == 4 and isinstance(value, (int, float)):
        holder[key] = value * FACTORS[choose(len(FACTORS))] if abs(value) < 1e300 else 0
    elif action == 5 and isinstance(value, (int, float)):
        holder[key] = str(value)
    elif action == 6:
        other = list(holder)[choose(len(holder))] if isinstance(holder, dict) else choose(len(holder))
        holder[key], holder[other] = holder[other], holder[key]
    elif action == 7:
        holder[key] = [value]
    else:
        holder[key] = _value(choose)
    return root


def _damaged(data: bytes, choose: Choose) -> bytes:
    """``data`` as text is damaged: cut, bytes flipped, dropped, doubled or put in."""
    action = choose(6)
    if not data:
        return data
    at = choose(len(data))
    if action == 0:
        return data[:at]
    if action == 1:
        return data[:at] + bytes([data[at] ^ (1 << choose(8))]) + data[at + 1 :]
    if action == 2:
        return data[:at] + data[at + 1 + choose(16) :]
    if action == 3:
        return data[:at] + data[at : at + 1 + choose(64)] + data[at:]
    if action == 4:
        return data[:at] + bytes([choose(256)]) + data[at:]
    return data[:at] + (b"[", b'{"a":', b"NaN", b"\xff", b"\0", b'"', b"[" * DEEP)[choose(7)] + data[at:]
