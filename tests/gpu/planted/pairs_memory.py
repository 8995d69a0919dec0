"""Planted ``allocator`` and ``transfer``: the GPU waits for cudaMalloc and cudaFree, or for copies."""

from __future__ import annotations

from tests.gpu.planted.cells import DEVICE, STEPS, cell, size, trunk
from tests.gpu.workloads import Workload, pair

EMPTY_CACHE = pair(
    name="empty_cache_each_step",
    setup=trunk(8) + "ids = torch.randint(1024, (ROWS, LENGTH), device=device)\n",
    slow=cell(f"""
        for step in range({STEPS}):
            train(ids)
            torch.cuda.empty_cache()
    """),
    edits=(("    torch.cuda.empty_cache()\n", ""),),
    slow_cause="allocator",
    expected_lines=(3, 4),
    edit_is_fix=True,
)

GROWING = Workload(
    name="growing_history_capped",
    # Every step needs larger blocks than the freed ones, and the cap on the process's memory leaves no room to keep
    # both: a cudaMalloc for each, and cudaFree for all whenever the cap is met.
    setup=cell(f"""
        import torch

        {DEVICE}
        ROWS, WIDTH, MORE = {size(32768, 64)}, 4096, {size(512, 8)}
        torch.cuda.empty_cache()
        first = [torch.zeros(ROWS, WIDTH, device=device, dtype=torch.bfloat16) for _ in range(6)]
        new = torch.ones(MORE, WIDTH, device=device, dtype=torch.bfloat16)
        total_bytes = torch.cuda.mem_get_info()[1]
        room = {size(3_200, 100)} * 1_000_000
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / total_bytes)
    """),
    slow=cell(f"""
        history = None
        torch.cuda.empty_cache()
        history = list(first)
        for step in range({STEPS}):
            for k in range(6):
                history[k] = torch.cat([history[k], new])
                mean = history[k].mean()
    """),
    fixed=cell(f"""
        history = list(first)
        for step in range({STEPS}):
            for k in range(6):
                place = space[k][step % 2][: ROWS + MORE * (step + 1)]
                history[k] = torch.cat([history[k], new], out=place)
                mean = history[k].mean()
    """),
    fixed_setup=cell(f"""
        history = place = None
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)
        most = ROWS + MORE * {STEPS}
        space = [[torch.empty(most, WIDTH, device=device, dtype=torch.bfloat16) for _ in range(2)] for _ in range(6)]
    """),
    slow_cause="allocator",
    expected_lines=(7,),
    held_out=True,
    edit_is_fix=True,
)

PAGEABLE = Workload(
    name="pageable_batch",
    setup=cell(f"""
        import torch

        {DEVICE}
        N = {size(8192, 64)}
        on_host = [torch.rand(N, N) for _ in range(2)]  # 256 MB each
        w = torch.eye(N, device=device, dtype=torch.bfloat16)
    """),
    slow=cell(f"""
        for step in range({size(28, 12)}):
            y = on_host[step % 2].to(device, non_blocking=True)
            y = y.bfloat16()
            for k in range(8):
                y = y @ w
    """),
    fixed=cell(f"""
        for step in range({STEPS}):
            compute.wait_stream(copies)
            copies.wait_stream(compute)
            with torch.cuda.stream(copies):
                on_device[(step + 1) % 2].copy_(pinned[(step + 1) % 2], non_blocking=True)
            y = on_device[step % 2].bfloat16()
            for k in range(8):
                y = y @ w
    """),
    fixed_setup=cell("""
        pinned = [batch.pin_memory() for batch in on_host]
        on_device = [batch.to(device) for batch in pinned]
        compute, copies = torch.cuda.current_stream(), torch.cuda.Stream()
    """),
    slow_cause="transfer",
    expected_lines=(3,),
    edit_is_fix=True,
)

BUFFER = pair(
    name="buffer_left_on_cpu",
    setup=trunk(8)
    + cell(f"""
        ids = torch.randint(1024, (ROWS, LENGTH), device=device)
        statistics = torch.rand({size(8192, 64)}, {size(4096, 64)})  # 128 MB, forgotten on the host
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            scale = statistics.to(device).mean()
            train(ids)
    """),
    edits=(("scale = statistics.to(device).mean()", "scale = statistics_there.mean()"),),
    fixed_setup="statistics_there = statistics.to(device)\n",
    slow_cause="transfer",
    expected_lines=(3,),
    held_out=True,
    edit_is_fix=True,
)

RESULTS = pair(
    name="results_to_host",
    setup=cell(f"""
        import torch

        {DEVICE}
        N = {size(8192, 64)}
        w = torch.eye(N, device=device, dtype=torch.bfloat16)
        x = torch.rand(N, N, device=device, dtype=torch.bfloat16)
        kept = None
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            y = x
            for k in range(4):
                y = y @ w
            kept = y.cpu()
    """),
    edits=(("kept = y.cpu()", "kept = y"),),
    slow_cause="transfer",
    expected_lines=(6,),
    edit_is_fix=True,
)

PAIRS = (EMPTY_CACHE, GROWING, PAGEABLE, BUFFER, RESULTS)
