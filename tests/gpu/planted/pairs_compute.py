"""Planted ``tensor_cores``, ``misaligned_shapes``, ``memory_bound``: a busy GPU, with work it could do better."""

from __future__ import annotations

from tests.gpu.planted.cells import DEVICE, STEPS, cell, size, trunk
from tests.gpu.workloads import REDUCED, Workload, pair

FP32_PRODUCTS = Workload(
    name="fp32_products",
    setup=cell(f"""
        import torch

        {DEVICE}
        torch.set_float32_matmul_precision("highest")
        N = {size(4096, 64)}
        a, b = torch.randn(N, N, device=device), torch.randn(N, N, device=device)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            for k in range(6):
                c = a @ b
    """),
    fixed=cell(f"""
        for step in range({size(80, 12)}):
            for k in range(6):
                c = a_short @ b_short
    """),
    # Cast once, outside: casts inside the loop would be more than the edit.
    fixed_setup="a_short, b_short = a.bfloat16(), b.bfloat16()\n",
    slow_cause="tensor_cores",
    edit_is_fix=True,
)

FP32_TRAINING = pair(
    name="fp32_training",
    setup='import torch\n\ntorch.set_float32_matmul_precision("highest")\n'
    + trunk(4, dtype="torch.float32")
    + "ids = torch.randint(1024, (ROWS, LENGTH), device=device)\n",
    slow=cell(f"""
        for step in range({size(28, 12)}):
            loss = train(ids)
    """),
    edits=((f"for step in range({size(28, 12)}):", f"for step in range({STEPS}):"),),
    fixed_setup='torch.set_float32_matmul_precision("high")\n',
    slow_cause="tensor_cores",
    held_out=True,
)

ODD_PRODUCTS = Workload(
    name="products_4093",
    setup=cell(f"""
        import torch

        {DEVICE}
        N, PADDED = {size(4093, 61)}, {size(4096, 64)}
        a = torch.randn(N, N, device=device, dtype=torch.bfloat16)
        b = torch.randn(N, N, device=device, dtype=torch.bfloat16)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            for k in range(8):
                c = a @ b
    """),
    fixed=cell(f"""
        for step in range({size(80, 12)}):
            for k in range(8):
                c = a_padded @ b_padded
    """),
    fixed_setup=cell("""
        a_padded = torch.nn.functional.pad(a, (0, PADDED - N, 0, PADDED - N))
        b_padded = torch.nn.functional.pad(b, (0, PADDED - N, 0, PADDED - N))
    """),
    slow_cause="misaligned_shapes",
    expected_lines=(4,),
    held_out=True,
    edit_is_fix=True,
)

VOCABULARY = Workload(
    name="vocabulary_50257",
    setup=cell(f"""
        import torch
        from torch import nn
        from torch.nn import functional as F

        {DEVICE}
        WIDTH, TOKENS = {size(2048, 32)}, {size(4096, 64)}
        WORDS, PADDED = {size(50257, 257)}, {size(50304, 320)}
        torch.manual_seed(0)
        head = nn.Linear(WIDTH, WORDS, bias=False).to(device, torch.bfloat16)
        x = torch.randn(TOKENS, WIDTH, device=device, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(WORDS, (TOKENS,), device=device)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            loss = F.cross_entropy(head(x), targets)
            loss.backward()
            head.weight.grad = x.grad = None
    """),
    fixed=cell(f"""
        for step in range({STEPS}):
            loss = F.cross_entropy(head(x), targets)
            loss.backward()
            head.weight.grad = x.grad = None
    """),
    fixed_setup="head = nn.Linear(WIDTH, PADDED, bias=False).to(device, torch.bfloat16)\n",
    slow_cause="misaligned_shapes",
    edit_is_fix=True,
)

BACKEND = "eager" if REDUCED else "inductor"

ELEMENTWISE = Workload(
    name="elementwise_chain",
    setup=cell(f"""
        import torch
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # one small kernel: a pool of processes would take longer to start
        {DEVICE}
        x = torch.randn({size(128_000_000, 4_000)}, device=device)

        def chain(y):
            y = (y * 1.01 + 0.01).abs()
            y = torch.exp(-y).clamp(max=0.9)
            return torch.relu(y - 0.1).square()
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            y = chain(x)
    """),
    fixed=cell(f"""
        for step in range({size(80, 12)}):
            y = fused(x)
    """),
    fixed_setup=f"fused = torch.compile(chain, backend={BACKEND!r})\n",
    slow_cause="memory_bound",
    edit_is_fix=True,
)

ATTENTION = Workload(
    name="materialised_attention",
    setup=cell(f"""
        import torch
        from torch.nn import functional as F

        {DEVICE}
        LENGTH = {size(2048, 32)}
        torch.manual_seed(0)
        q, k, v = (torch.randn({size(8, 1)}, 16, LENGTH, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            x = q
            for layer in range(4):
                scores = x @ k.transpose(-2, -1) / 8.0
                x = torch.softmax(scores, dim=-1) @ v
    """),
    fixed=cell(f"""
        for step in range({size(80, 12)}):
            x = q
            for layer in range(4):
                x = F.scaled_dot_product_attention(x, k, v)
    """),
    slow_cause="memory_bound",
    held_out=True,
)

LAYOUT = pair(
    name="layout_copies",
    # Convolutions alone, so that nothing else moves bytes: cuDNN turns each NCHW input over and its output back.
    setup=cell(f"""
        import torch
        from torch import nn

        {DEVICE}
        torch.manual_seed(0)
        CHANNELS = {size(128, 8)}
        model = nn.Sequential(*[nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(12)])
        model = model.to(device, torch.bfloat16)
        SIDE = {size(56, 8)}
        pictures = torch.randn({size(128, 1)}, CHANNELS, SIDE, SIDE, device=device, dtype=torch.bfloat16)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            with torch.no_grad():
                y = model(pictures)
    """),
    edits=((f"for step in range({STEPS}):", f"for step in range({size(60, 12)}):"),),
    fixed_setup=cell("""
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.contiguous(memory_format=torch.channels_last)
    """),
    slow_cause="memory_bound",
)

PAIRS = (FP32_PRODUCTS, FP32_TRAINING, ODD_PRODUCTS, VOCABULARY, ELEMENTWISE, ATTENTION, LAYOUT)
