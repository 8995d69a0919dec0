"""Pairs that were written after both halves had been run, with their expectations: they see finished code, once."""

from __future__ import annotations

from tests.gpu.planted.cells import DEVICE, STEPS, cell, size, trunk
from tests.gpu.workloads import Workload, pair

TOKENISED = Workload(
    name="tokenised_on_the_fly",
    # About 1 ms of Python an item, 16 items a batch, in front of 5 ms of GPU work.
    setup=trunk(8)
    + cell(f"""
        from torch.utils.data import DataLoader, Dataset

        letters = "the quick brown fox jumps over the lazy dog " * {size(40, 4)}

        class Tokenised(Dataset):
            def __len__(self):
                return ROWS * {STEPS}

            def __getitem__(self, index):
                words = [sum(map(ord, word)) % 1024 for word in letters.split() * {size(2, 1)}]
                return torch.tensor([words[(index + k) % len(words)] for k in range(LENGTH)])

        loader = DataLoader(Tokenised(), batch_size=ROWS)
    """),
    slow=cell("""
        for ids in loader:
            train(ids.to(device, non_blocking=True))
    """),
    fixed=cell("""
        for ids in loader:
            train(ids.to(device, non_blocking=True))
    """),
    fixed_setup=cell(f"""
        loader = DataLoader(
            Tokenised(), batch_size=ROWS, num_workers={size(10, 2)}, persistent_workers=True, prefetch_factor=4
        )
    """),
    slow_cause="data_loading",
    expected_lines=(2,),
    edit_is_fix=True,
)

COUNTED = pair(
    name="positions_each_step",
    # The GPU runs dry behind the read, while the host launches 180 small kernels.
    setup=cell(f"""
        import torch

        {DEVICE}
        N = {size(4096, 32)}
        w = torch.eye(N, device=device, dtype=torch.bfloat16)
        x = torch.randn(N, N, device=device, dtype=torch.bfloat16)
        state = torch.randn(64, 256, device=device)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            h = x
            for k in range({size(16, 2)}):
                h = h @ w
            positions = torch.nonzero(h[0])
            s = state
            for k in range({size(60, 6)}):
                s = torch.tanh(s * 0.9 + state)
    """),
    edits=(("    positions = torch.nonzero(h[0])\n", ""),),
    slow_cause="host_sync",
    expected_lines=(6,),
    edit_is_fix=True,
)

UNROLLED = Workload(
    name="unrolled_lstm",
    setup=cell(f"""
        import torch
        from torch import nn

        {DEVICE}
        torch.manual_seed(0)
        unit = nn.LSTMCell({size(256, 16)}, {size(256, 16)}).to(device)
        inputs = torch.randn({size(100, 6)}, 16, {size(256, 16)}, device=device)

        @torch.no_grad()
        def unroll():
            h = c = torch.zeros(16, {size(256, 16)}, device=device)
            for x in inputs:
                h, c = unit(x, (h, c))
            return h

        last = unroll()
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            last = unroll()
    """),
    fixed=cell(f"""
        for step in range({size(150, 12)}):
            graph.replay()
    """),
    fixed_setup=cell("""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            last = unroll()
    """),
    slow_cause="launch_bound",
    edit_is_fix=True,
)

ACTIVATIONS = pair(
    name="activations_to_host",
    setup=trunk(8)
    + cell(f"""
        ids = torch.randint(1024, (ROWS, LENGTH), device=device)
        features = torch.randn({size(16_000_000, 16_000)}, device=device)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            loss = train(ids)
            kept = features.to("cpu")
    """),
    edits=(('    kept = features.to("cpu")\n', ""),),
    slow_cause="transfer",
    expected_lines=(4,),
    edit_is_fix=True,
)

LOGGED = pair(
    name="json_each_step",
    # About 12 ms of Python in front of 5 ms of GPU work.
    setup=trunk(8)
    + cell(f"""
        import json

        ids = torch.randint(1024, (ROWS, LENGTH), device=device)
        history = [{{"step": n, "loss": n / 7, "name": f"run {{n}}"}} for n in range({size(6000, 200)})]
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            text = json.dumps(history)
            loss = train(ids)
    """),
    edits=(("    text = json.dumps(history)\n", ""),),
    slow_cause="cpu_bound",
    expected_lines=(3,),
    edit_is_fix=True,
)

RELEASED = pair(
    name="released_behind_each_step",
    # Enough GPU work that launches are no second cause. (Its first run had half of it, and they were.)
    setup=trunk(8)
    + cell(f"""
        ids = torch.randint(1024, (ROWS, LENGTH), device=device)

        def score():
            parts = [torch.ones({size(4_000_000, 4_000)}, device=device) for _ in range({size(12, 3)})]
            return parts[0][0]
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            loss = train(ids)
            first = score()
            del first
            torch.cuda.empty_cache()
    """),
    edits=(("    torch.cuda.empty_cache()\n", ""),),
    slow_cause="allocator",
    edit_is_fix=True,
)

ODD_WIDTH = Workload(
    name="layers_of_5003",
    setup=cell(f"""
        import torch
        from torch.nn import functional as F

        {DEVICE}
        WIDTH = {size(5003, 51)}
        x = torch.randn({size(4096, 64)}, WIDTH, device=device, dtype=torch.bfloat16)
        w = torch.eye(WIDTH, device=device, dtype=torch.bfloat16)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            h = x
            for k in range(8):
                h = F.linear(h, w)
    """),
    fixed=cell(f"""
        for step in range({STEPS}):
            h = x
            for k in range(8):
                h = F.linear(h, w)
    """),
    fixed_setup=cell(f"""
        WIDTH = {size(5056, 64)}
        x = torch.randn({size(4096, 64)}, WIDTH, device=device, dtype=torch.bfloat16)
        w = torch.eye(WIDTH, device=device, dtype=torch.bfloat16)
    """),
    slow_cause="misaligned_shapes",
    expected_lines=(5,),
    edit_is_fix=True,
)

NORM_BY_HAND = Workload(
    name="norm_by_hand",
    setup=cell(f"""
        import torch

        {DEVICE}
        x = torch.randn({size(8192, 32)}, 4096, device=device)
        residual, scale = torch.randn_like(x), torch.ones(4096, device=device)

        def norm(x, residual):
            y = x + residual
            return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * scale
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            for k in range({size(8, 2)}):
                y = norm(x, residual)
    """),
    fixed=cell(f"""
        for step in range({size(64, 12)}):
            for k in range({size(8, 2)}):
                y = fused(x, residual)
    """),
    fixed_setup=cell("""
        fused = torch.compile(norm) if device == "cuda" else norm
        y = fused(x, residual)
    """),
    slow_cause="memory_bound",
    expected_lines=(4,),
)

LATER = (TOKENISED, COUNTED, UNROLLED, ACTIVATIONS, LOGGED, RELEASED, ODD_WIDTH, NORM_BY_HAND)
