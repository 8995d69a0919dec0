"""The planted loops of the GPU suite, as the text of notebook cells.

A `Workload` has a setup cell and one loop cell per form: ``slow`` carries the planted cause, ``fixed`` is the same
work without it. The loop cell is what stands under ``%%gpuprofile``, so its first line is line 2 of the cell.

Sizes are those of the GPU run. With ``IPYPROF_SMALL=1``, or where there is no CUDA device, they shrink until every
loop runs on two CPU cores in a second or so: that checks the text, not the numbers. ``IPYPROF_SMALL=0`` keeps the
sizes of the GPU run anywhere, to look at the text.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import torch

REDUCED = {"1": True, "0": False}.get(os.environ.get("IPYPROF_SMALL", ""), not torch.cuda.is_available())

NOT_WAITING = "not waiting"
"""The expected verdict of a step whose GPU does not wait: no waiting cause heads it and none is found."""


WAITING = frozenset(
    {
        "data_loading", "host_sync", "allocator", "transfer", "cpu_bound", "launch_bound", "communication", "straggler",
        "unstable_shapes",
    }
)  # fmt: skip
"""The causes that make a GPU wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One planted loop.

    Attributes:
        name: its name in tables and file names.
        setup: the cell that runs once before.
        slow: the loop cell with the planted cause.
        fixed: the loop cell without it, or ``None`` where the loop stands alone.
        slow_cause: the cause that must head the verdict of ``slow``; ``NOT_WAITING``; ``None`` = only the step time
            and the sum of the breakdown are checked.
        fixed_setup: a cell that runs before the fixed loop only.
        expected_lines: lines of the slow cell that the verdict may name (line 1 is the magic line); empty = any.
        held_out: kept aside while thresholds are tuned, run once at the end.
        edit_is_fix: the fix is what the replay takes out and nothing else, so the prediction must hold.
        trainer: the cell has no loop of its own; its steps are those of the one optimizer that steps in it.
        variants: more forms that are only timed by hand and reported, each (form, setup cell, loop cell).
        options: more options on the magic's line.
        env: environment variables of the process, each (name, value); such a loop gets a process of its own.
        needs: modules that must be importable, else the loop is skipped.
        model: the real model in it, or empty.
        host_bound: the host decides the step of its slow form, which is therefore timed more often.
    """

    name: str
    setup: str
    slow: str
    fixed: str | None
    slow_cause: str | None
    fixed_setup: str = ""
    expected_lines: tuple[int, ...] = ()
    held_out: bool = False
    edit_is_fix: bool = False
    trainer: bool = False
    variants: tuple[tuple[str, str, str], ...] = ()
    options: str = ""
    env: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    model: str = ""
    host_bound: bool = False

    def forms(self) -> dict[str, str]:
        """The loop cells by form: ``slow``, and ``fixed`` where there is one."""
        return {"slow": self.slow} | ({} if self.fixed is None else {"fixed": self.fixed})


def pair(*, slow: str, edits: tuple[tuple[str, str], ...], **fields: Any) -> Workload:
    """A workload whose fixed cell is the slow one after these replacements, (old, new); each matches once."""
    fixed = slow
    for old, new in edits:
        assert fixed.count(old) == 1, (fields["name"], old)
        fixed = fixed.replace(old, new)
    return Workload(slow=slow, fixed=fixed, **fields)


def _size(full: int, reduced: int) -> int:
    return reduced if REDUCED else full


def _cell(text: str) -> str:
    return dedent(text).strip() + "\n"


DEVICE = 'device = "cuda" if torch.cuda.is_available() else "cpu"'


def _gpt_loop(batch: int) -> str:
    return _cell(f"""
        for step in range({_size(24, 12)}):
            rows = torch.arange({batch}, device=device) + step % 4
            tokens, targets = text[rows, :-1], text[rows, 1:]
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(tokens)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    """)


GPT = Workload(
    name="gpt2_training",
    setup=_cell(f"""
        import torch
        from torch import nn
        from torch.nn import functional as F

        {DEVICE}
        VOCABULARY, CONTEXT = {_size(50304, 512)}, {_size(1024, 32)}
        WIDTH, HEADS, LAYERS = {_size(768, 64)}, {_size(12, 4)}, {_size(12, 2)}
        torch.manual_seed(0)

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
                self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
                self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

            def forward(self, x):
                batch, length, _ = x.shape
                q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
                return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

        class GPT(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
                self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
                self.norm = nn.LayerNorm(WIDTH)
                self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
                self.head.weight = self.words.weight
                nn.init.normal_(self.words.weight, std=0.02)

            def forward(self, tokens):
                x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
                return self.head(self.norm(self.blocks(x)))

        model = GPT().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        text = torch.randint(VOCABULARY, (28, CONTEXT + 1), device=device)
    """),
    # Both are healthy. With 8 rows the GPU's 24 ms are within reach of a slow host, so a verdict would depend on it.
    slow=_gpt_loop(_size(16, 2)),
    fixed=_gpt_loop(_size(24, 4)),
    slow_cause=NOT_WAITING,
)

GPT_SMALLER = Workload(
    name="gpt2_smaller_batch",
    setup=GPT.setup,
    # Busy when it is not recorded; recorded, the host is slower than the GPU.
    slow=_gpt_loop(_size(13, 2)),
    fixed=None,
    slow_cause=NOT_WAITING,
)


def _loader_loop() -> str:
    return _cell("""
        for tokens in loader:
            x = embedding(tokens.to(device, non_blocking=True))
            for block in blocks:
                x = x + block(x)
            loss = x.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    """)


LOADER = Workload(
    name="sleeping_loader",
    setup=_cell(f"""
        import time
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, Dataset

        {DEVICE}
        WIDTH = {_size(2048, 32)}
        torch.manual_seed(0)

        class Slow(Dataset):
            def __len__(self):
                return 16 * {_size(48, 24)}

            def __getitem__(self, index):
                time.sleep(0.003)
                return torch.arange(index, index + {_size(512, 16)})

        embedding = nn.Embedding({_size(32000, 2000)}, WIDTH).to(device, torch.bfloat16)
        blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(6)
        ).to(device, torch.bfloat16)
        for block in blocks:  # mostly zeros keep the GPU below its power cap, so that its clock stays steady
            nn.init.eye_(block[0].weight)
            nn.init.eye_(block[2].weight)
        optimizer = torch.optim.SGD([*embedding.parameters(), *blocks.parameters()], lr=1e-6)
        loader = DataLoader(Slow(), batch_size=16, num_workers=0)
    """),
    slow=_loader_loop(),
    fixed=_loader_loop(),
    fixed_setup=_cell(f"""
        loader = DataLoader(
            Slow(), batch_size=16, num_workers={_size(8, 2)}, persistent_workers=True, prefetch_factor=4
        )
    """),
    slow_cause="data_loading",
    expected_lines=(2,),
)

ITEM = Workload(
    name="item_between_kernels",
    setup=_cell(f"""
        import math
        import torch

        {DEVICE}
        N = {_size(3072, 64)}
        torch.manual_seed(0)
        x = torch.randn(N, N, device=device, dtype=torch.bfloat16)
        w = torch.randn(N, N, device=device, dtype=torch.bfloat16) / math.sqrt(N)
        total = 0.0
    """),
    slow=_cell(f"""
        for step in range({_size(160, 40)}):
            h = x
            for k in range({_size(40, 4)}):
                h = h @ w
                total += h[0, 0].item()
                rate = sum([math.cos(0.01 * j) for j in range(60)]) / 60
    """),
    fixed=_cell(f"""
        for step in range({_size(220, 40)}):
            h = x
            for k in range({_size(40, 4)}):
                h = h @ w
                total += h[0, 0]
                rate = sum([math.cos(0.01 * j) for j in range(60)]) / 60
        total.item()
    """),
    fixed_setup=_cell("""
        total = torch.zeros((), device=device)
    """),
    slow_cause="host_sync",
    expected_lines=(6,),
)

ALLOCATOR = Workload(
    name="empty_cache",
    setup=_cell(f"""
        import torch

        {DEVICE}
        # Small enough that a run allocates less than the GPU's memory in all: the driver hands out memory that it
        # has cleared beforehand, and where none is left an allocation takes twice as long.
        x = torch.randn({_size(8_000_000, 2_000)}, device=device)
        scales = [0.5 + 0.1 * k for k in range(24)]
    """),
    slow=_cell(f"""
        for step in range({_size(60, 40)}):
            buffers = [x * scale for scale in scales]
            del buffers
            torch.cuda.empty_cache()
    """),
    fixed=_cell(f"""
        for step in range({_size(260, 40)}):
            buffers = [x * scale for scale in scales]
            del buffers
    """),
    slow_cause="allocator",
    expected_lines=(3, 5),
    host_bound=True,
)

TINY = Workload(
    name="tiny_kernels",
    setup=_cell(f"""
        import torch

        {DEVICE}
        x = torch.randn(4096, device=device)

        def chain(y):
            for k in range({_size(140, 20)}):
                y = y * 1.0001
                y = y + 0.0001
            return y

        y = chain(x)
    """),
    slow=_cell(f"""
        for step in range({_size(220, 40)}):
            y = x
            for k in range({_size(140, 20)}):
                y = y * 1.0001
                y = y + 0.0001
    """),
    fixed=_cell(f"""
        for step in range({_size(2500, 40)}):
            graph.replay()
    """),
    fixed_setup=_cell("""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = chain(x)
    """),
    slow_cause="launch_bound",
    host_bound=True,
)

COPIES = Workload(
    name="pageable_copies",
    setup=_cell(f"""
        import torch

        {DEVICE}
        N = {_size(8192, 64)}
        torch.manual_seed(0)
        on_host = [torch.randn(N, N) for _ in range(3)]
        w = torch.eye(N, device=device, dtype=torch.bfloat16)  # mostly zeros: below the power cap, a steady clock
    """),
    slow=_cell(f"""
        for step in range({_size(44, 40)}):
            y = on_host[step % 3].to(device)
            y = y.bfloat16()
            for k in range(6):
                y = y @ w
    """),
    fixed=_cell(f"""
        for step in range({_size(70, 40)}):
            compute.wait_stream(copies)
            copies.wait_stream(compute)
            with torch.cuda.stream(copies):
                on_device[(step + 1) % 2].copy_(pinned[(step + 1) % 3], non_blocking=True)
            y = on_device[step % 2].bfloat16()
            for k in range(6):
                y = y @ w
    """),
    fixed_setup=_cell("""
        pinned = [batch.pin_memory() for batch in on_host]
        on_device = [batch.to(device) for batch in pinned[:2]]
        compute, copies = torch.cuda.current_stream(), torch.cuda.Stream()
    """),
    slow_cause="transfer",
    host_bound=True,
    expected_lines=(3,),
)

PRODUCTS = Workload(
    name="ahead_products",
    setup=_cell(f"""
        import torch

        {DEVICE}
        N = {_size(4093, 61)}
        a = torch.randn(N, N, device=device, dtype=torch.bfloat16)
        b = torch.randn(N, N, device=device, dtype=torch.bfloat16)
    """),
    slow=_cell("""
        for step in range(40):
            for k in range(8):
                c = a @ b
    """),
    fixed=None,
    slow_cause=NOT_WAITING,
)

ELEMENTWISE = Workload(
    name="ahead_elementwise",
    setup=_cell(f"""
        import torch

        {DEVICE}
        x = torch.randn({_size(64_000_000, 4_000)}, device=device)
    """),
    slow=_cell("""
        for step in range(60):
            y = x
            for k in range(5):
                y = y * 1.01
                y = y + 0.01
    """),
    fixed=None,
    slow_cause=NOT_WAITING,
)

FIVE_STEPS = Workload(
    name="lecture_five_steps",
    setup=_cell(f"""
        import torch
        from torch import nn

        {DEVICE}
        WIDTH = {_size(4096, 64)}
        model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 10)).to(device)
        optimizer = torch.optim.Adam(model.parameters())
    """),
    slow=_cell(f"""
        for step in range(5):
            x = torch.randn({_size(4096, 32)}, WIDTH, device=device)
            target = torch.randint(10, ({_size(4096, 32)},), device=device)
            loss = nn.functional.cross_entropy(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """),
    fixed=None,
    slow_cause=None,
)

SLEEP = Workload(
    name="lecture_sleep",
    setup=_cell(f"""
        import time
        import torch

        {DEVICE}
        a = torch.randn({_size(2048, 64)}, {_size(2048, 64)}, device=device)
    """),
    slow=_cell("""
        for step in range(20):
            time.sleep(0.05)
            b = a @ a
    """),
    fixed=None,
    slow_cause=None,
)

SQUARES_SETUP = _cell(f"""
    import torch

    {DEVICE}
    n = {_size(2048, 64)}
    orthogonal = torch.linalg.qr(torch.randn(n, n))[0].to(device)  # its powers stay finite
""")

SQUARES = pair(
    name="lecture_squares",
    setup=SQUARES_SETUP,
    slow=_cell("""
        x = orthogonal
        for step in range(20):
            x = x @ x
            x[0, 0].item()
    """),
    edits=(("    x[0, 0].item()\n", ""),),
    slow_cause=None,
)

PAIRS = (GPT, LOADER, ITEM, ALLOCATOR, TINY, COPIES)
"""The six planted pairs, one per first verdict."""

SINGLES = (GPT_SMALLER, PRODUCTS, ELEMENTWISE, FIVE_STEPS, SLEEP, SQUARES)
"""Loops whose step time must be right; those with a cause must also be called not waiting."""

WORKLOADS = PAIRS + SINGLES

STAND_INS = _cell("""
    import contextlib
    import types
    import torch

    if not torch.cuda.is_available():
        nothing = types.SimpleNamespace(wait_stream=lambda other: None, replay=lambda: None)
        torch.cuda.synchronize = lambda *device: None
        torch.cuda.current_stream = torch.cuda.Stream = torch.cuda.CUDAGraph = lambda *device: nothing
        torch.cuda.stream = torch.cuda.graph = lambda other: contextlib.nullcontext()
        torch.Tensor.pin_memory = lambda tensor: tensor
""")
"""A cell for dry runs: stand-ins for streams, graphs and pinned memory where there is no CUDA device."""
