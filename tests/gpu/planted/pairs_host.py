"""Planted ``host_sync`` and ``cpu_bound``: the GPU runs dry behind a wait or behind the host's own work."""

from __future__ import annotations

from tests.gpu.planted.cells import DEVICE, STEPS, cell, size, trunk
from tests.gpu.workloads import Workload, pair

CNN_SETUP = cell(f"""
    import torch
    from torch import nn

    {DEVICE}
    SIDE, CHANNELS = {size(112, 8)}, {size(96, 8)}
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.ReLU(inplace=True)) for _ in range(10)
    )
    blocks = blocks.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-6)
    images = torch.randn(8, CHANNELS, SIDE, SIDE, device=device).to(memory_format=torch.channels_last)
    seen = []
""")

ITEM_IN_CNN = pair(
    name="item_ten_times",
    setup=CNN_SETUP,
    slow=cell(f"""
        for step in range({STEPS}):
            x = images
            for block in blocks:
                x = block(x)
                seen.append(x.mean().item())
                text = " ".join([f"{{value:.4f}}" for value in seen[-60:]])
            x.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    """),
    edits=(("seen.append(x.mean().item())", "kept.append(x.detach().mean())"),),
    fixed_setup="kept = []\n",
    slow_cause="host_sync",
    expected_lines=(6,),
    edit_is_fix=True,
)

CLIP = pair(
    name="clip_with_if",
    setup=cell(f"""
        import torch
        from torch import nn

        {DEVICE}
        WIDTH, LAYERS = {size(2048, 32)}, {size(96, 4)}
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
        for layer in model:
            nn.init.eye_(layer.weight)
        model = model.to(device, torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        x = torch.randn({size(2048, 16)}, WIDTH, device=device, dtype=torch.bfloat16)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            model(x).float().square().mean().backward()
            for p in model.parameters():
                scale = (1.0 / p.grad.norm()).clamp(max=1.0)
                if scale < 1.0:
                    p.grad.mul_(scale)
            optimizer.step()
            optimizer.zero_grad()
    """),
    edits=(("        if scale < 1.0:\n            p.grad.mul_(scale)\n", "        p.grad.mul_(scale)\n"),),
    slow_cause="host_sync",
    expected_lines=(6,),
    held_out=True,
    edit_is_fix=True,
)

MASKS = pair(
    name="mask_counts",
    setup=cell(f"""
        import torch
        from torch import nn

        {DEVICE}
        WIDTH, TOKENS = {size(4096, 32)}, {size(4096, 64)}
        torch.manual_seed(0)
        heads = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(15)]
        for head in heads:
            nn.init.eye_(head.weight)
        heads = nn.ModuleList(heads).to(device, torch.bfloat16)
        x = torch.randn(TOKENS, WIDTH, device=device, dtype=torch.bfloat16)
        masks = [torch.rand(TOKENS, device=device) < 0.5 for _ in range(15)]
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            total = 0.0
            for head, mask in zip(heads, masks):
                values = head(x)[:, :64].float().square().mean(1)
                chosen = values[mask]
                assert torch.isfinite(chosen).all()
                count = mask.nonzero().shape[0]
                total = total + chosen.sum() / count
            total.backward()
    """),
    edits=(
        (
            "        chosen = values[mask]\n        assert torch.isfinite(chosen).all()\n"
            "        count = mask.nonzero().shape[0]\n",
            "        chosen = torch.where(mask, values, 0.0)\n        count = mask.sum()\n",
        ),
    ),
    slow_cause="host_sync",
    expected_lines=(6, 7, 8),
    held_out=True,
)

PRINT = pair(
    name="print_loss",
    # The GPU is behind while the large products run and would stay so through the next step's small kernels.
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
            s = state
            for k in range({size(150, 10)}):
                s = torch.tanh(s * 0.9 + state)
            h = x
            for k in range({size(24, 2)}):
                h = h @ w
            loss = h[:64].float().square().mean() + s.mean()
            print(float(loss))
    """),
    edits=(("    print(float(loss))\n", ""),),
    slow_cause="host_sync",
    expected_lines=(10,),
    held_out=True,
    edit_is_fix=True,
)

SYNCHRONISE = pair(
    name="synchronise_each_layer",
    setup=cell(f"""
        import time
        import torch
        from torch import nn

        {DEVICE}
        WIDTH = {size(2048, 32)}
        torch.manual_seed(0)
        layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(24)
        )
        for layer in layers:
            nn.init.eye_(layer[0].weight)
            nn.init.eye_(layer[2].weight)
        layers = layers.to(device, torch.bfloat16)
        x = torch.randn({size(2048, 16)}, WIDTH, device=device, dtype=torch.bfloat16)
        took = [0.0] * 200
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            with torch.no_grad():
                y = x
                for layer in layers:
                    begun = time.perf_counter()
                    y = layer(y)
                    torch.cuda.synchronize()
                    took.append(time.perf_counter() - begun)
                    text = f"{{sorted(took[-200:])[100]:.6f}} {{sum(took[-200:]):.6f}}"
    """),
    edits=(("            torch.cuda.synchronize()\n", ""),),
    slow_cause="host_sync",
    expected_lines=(8,),
    held_out=True,
    edit_is_fix=True,
)

NUMPY = pair(
    name="numpy_augmentation",
    # About 15 ms of numpy a batch on the main thread; the GPU takes 6.
    setup=trunk(8)
    + cell(f"""
        stem = nn.Linear(192, WIDTH).to(device, torch.bfloat16)
        generator = numpy.random.default_rng(0)
        pictures = generator.integers(0, 255, size=({size(32, 2)}, 3, 96, 96), dtype=numpy.uint8)

        def augment(number):
            done = []
            for picture in pictures:
                picture = picture.astype(numpy.float32) / 255
                blurred = numpy.zeros_like(picture)
                for shift in range(10):
                    blurred += numpy.roll(picture, shift + number, axis=2) * 0.1
                done.append(blurred[:, :, ::-1] if number % 2 else blurred)
            return torch.from_numpy(numpy.stack(done))

        def train_on(pictures):
            patches = pictures.bfloat16().unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(-1, 192)
            loss = model(stem(patches)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    """),
    slow=cell(f"""
        for step in range({STEPS}):
            batch = augment(step)
            train_on(batch.to(device))
    """),
    edits=(("batch = augment(step)", "batch = ready[step % 8]"),),
    fixed_setup="ready = [augment(number) for number in range(8)]\n",
    slow_cause="cpu_bound",
    expected_lines=(3,),
    edit_is_fix=True,
)

PYTHON = Workload(
    name="python_lists",
    setup=trunk(4) + "ids = torch.randint(1024, (ROWS, LENGTH), device=device)\n",
    slow=cell(f"""
        for step in range({STEPS}):
            weights = [k * k % 7 for k in range({size(120_000, 2_000)})]
            total = sum(weights[::3])
            train(ids)
    """),
    fixed=cell(f"""
        for step in range({STEPS}):
            total = sum(weights[::3000])
            train(ids)
    """),
    fixed_setup="weights = list(range(6000))\n",
    slow_cause="cpu_bound",
    expected_lines=(3, 4),
    held_out=True,
    edit_is_fix=True,
)

SLEEP = Workload(
    name="sleep_before_product",
    setup=cell(f"""
        import time
        import torch

        {DEVICE}
        N = {size(12288, 64)}
        a = torch.eye(N, device=device, dtype=torch.bfloat16)
    """),
    slow=cell(f"""
        for step in range({size(16, 12)}):
            time.sleep({size(50, 2)} / 1000)
            b = a @ a
    """),
    fixed=cell(f"""
        for step in range({STEPS}):
            b = a @ a
    """),
    slow_cause="cpu_bound",
    expected_lines=(3,),
    edit_is_fix=True,
)

PAIRS = (ITEM_IN_CNN, CLIP, MASKS, PRINT, SYNCHRONISE, NUMPY, PYTHON, SLEEP)
