"""Planted ``launch_bound`` and ``unstable_shapes``: launches longer than their kernels, and new shapes every step."""

from __future__ import annotations

from tests.gpu.planted.cells import DEVICE, STEPS, cell, size, trunk
from tests.gpu.workloads import Workload, pair

TINY = Workload(
    name="tiny_kernels",
    setup=cell(f"""
        import torch

        {DEVICE}
        x = torch.randn(4096, device=device)

        def chain(y):
            for k in range({size(140, 10)}):
                y = y * 1.0001
                y = y + 0.0001
            return y

        y = chain(x)
    """),
    slow=cell(f"""
        for step in range({size(60, 12)}):
            y = chain(x)
    """),
    fixed=cell(f"""
        for step in range({size(300, 12)}):
            graph.replay()
    """),
    fixed_setup=cell("""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = chain(x)
    """),
    slow_cause="launch_bound",
    edit_is_fix=True,
)

ADAM = pair(
    name="adam_one_by_one",
    setup=cell(f"""
        import torch

        {DEVICE}
        parameters = [torch.nn.Parameter(torch.randn(32, 32, device=device)) for _ in range({size(2000, 30)})]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = torch.optim.Adam(parameters, lr=1e-6, foreach=False)
    """),
    slow=cell(f"""
        for step in range({size(12, 12)}):
            optimizer.step()
    """),
    edits=((f"for step in range({size(12, 12)}):", f"for step in range({STEPS}):"),),
    fixed_setup="optimizer = torch.optim.Adam(parameters, lr=1e-6, fused=True)\n",
    slow_cause="launch_bound",
    held_out=True,
    options="--active 2",
)

DECODE = Workload(
    name="decode_step",
    setup=cell(f"""
        import torch
        from torch import nn
        from torch.nn import functional as F

        {DEVICE}
        WIDTH, HEADS, LAYERS, PLACES = {size(1024, 32)}, {size(16, 4)}, {size(24, 2)}, {size(512, 128)}
        torch.manual_seed(0)

        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
                self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
                self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
                self.register_buffer("keys", torch.zeros(1, HEADS, PLACES, WIDTH // HEADS))
                self.register_buffer("values", torch.zeros(1, HEADS, PLACES, WIDTH // HEADS))

            def forward(self, x, place, visible):
                q, k, v = self.qkv(self.norm_1(x)).view(1, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
                self.keys.index_copy_(2, place, k)
                self.values.index_copy_(2, place, v)
                mixed = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=visible)
                x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, WIDTH))
                return x + self.down(F.gelu(self.up(self.norm_2(x))))

        layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to(device, torch.bfloat16)
        words = torch.randn(2048, WIDTH, device=device, dtype=torch.bfloat16)
        places = torch.arange(PLACES, device=device)
        token = torch.zeros(1, dtype=torch.long, device=device)
        place = torch.zeros(1, dtype=torch.long, device=device)

        @torch.no_grad()
        def decode():
            x = words[token].view(1, 1, WIDTH)
            visible = (places <= place).view(1, 1, 1, PLACES)
            for layer in layers:
                x = layer(x, place, visible)
            token.copy_((x.view(1, WIDTH) @ words.T).argmax(1))
            place.add_(1).remainder_(PLACES)
    """),
    slow=cell(f"""
        for position in range({size(60, 12)}):
            decode()
    """),
    fixed=cell(f"""
        for position in range({size(100, 12)}):
            graph.replay()
    """),
    fixed_setup=cell("""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decode()
    """),
    slow_cause="launch_bound",
    held_out=True,
    edit_is_fix=True,
)

RECOMPILES = Workload(
    name="recompiles_each_length",
    # Lengths never come twice, over all runs of the loop. Backend aot_eager: tens of ms for each, not seconds. The GPU
    # has more to do than the host, on a slow one too: the fixed form waits for nothing.
    setup=trunk(8, tokens=12288)
    + cell(f"""
        import torch._dynamo

        torch._dynamo.config.recompile_limit = 200
        MOST = ROWS * LENGTH
        lengths = iter((MOST - torch.randperm({size(90, 50)})).tolist())
        x = embedding(torch.randint(1024, (MOST,), device=device))
        compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    """),
    slow=cell(f"""
        for step in range({size(15, 10)}):
            length = next(lengths)
            with torch.no_grad():
                y = compiled(x[:length])
    """),
    fixed=cell(f"""
        for step in range({STEPS}):
            with torch.no_grad():
                y = compiled(x)
    """),
    slow_cause="unstable_shapes",
    edit_is_fix=True,
)

BENCHMARK = Workload(
    name="cudnn_benchmark_sizes",
    setup=cell(f"""
        import torch
        from torch import nn

        {DEVICE}
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        MOST, CHANNELS = {size(256, 24)}, {size(64, 8)}
        model = nn.Sequential(
            nn.Conv2d(16, CHANNELS, 3, padding=1), nn.ReLU(),
            nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, padding=1), nn.ReLU(),
            nn.Conv2d(2 * CHANNELS, 2 * CHANNELS, 3, padding=1),
        ).to(device, torch.bfloat16, memory_format=torch.channels_last)
        pictures = torch.randn({size(32, 1)}, 16, MOST, MOST, device=device, dtype=torch.bfloat16)
        sizes = iter([(MOST - n // 16, MOST - n % 16) for n in torch.randperm(256).tolist()])
    """),
    slow=cell(f"""
        for step in range({size(14, 12)}):
            height, width = next(sizes)
            batch = pictures[:, :, :height, :width].contiguous(memory_format=torch.channels_last)
            with torch.no_grad():
                y = model(batch)
    """),
    fixed=cell(f"""
        for step in range({STEPS}):
            batch = pictures.contiguous(memory_format=torch.channels_last)
            with torch.no_grad():
                y = model(batch)
    """),
    slow_cause="unstable_shapes",
    held_out=True,
    edit_is_fix=True,
)

PAIRS = (TINY, ADAM, DECODE, RECOMPILES, BENCHMARK)
