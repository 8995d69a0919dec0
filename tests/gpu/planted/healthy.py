"""Healthy and harmless loops: what looks like a cause, on a GPU that does not wait for it."""

from __future__ import annotations

from tests.gpu.planted.cells import DEVICE, STEPS, cell, size, trunk
from tests.gpu.workloads import GPT_SMALLER, NOT_WAITING, Workload


def _healthy(
    name: str, setup: str, loop: str, *, needs: tuple[str, ...] = (), model: str = "", held_out: bool = False
) -> Workload:
    return Workload(
        name=name,
        setup=setup,
        slow=loop,
        fixed=None,
        slow_cause=NOT_WAITING,
        needs=needs,
        model=model,
        held_out=held_out,
    )


ON_DEVICE = "ids = torch.randint(1024, (ROWS, LENGTH), device=device)\n"

ITEM_ON_BUSY = _healthy(
    "item_on_busy_gpu",
    trunk(32) + ON_DEVICE,
    cell(f"""
        for step in range({STEPS}):
            loss = train(ids)
            total = loss.item()
    """),
)

TWO_SYNCS = _healthy(
    "two_syncs_of_a_batch_copy",
    trunk(32) + "on_host = torch.randint(1024, (ROWS, LENGTH))\ntargets = torch.randint(10, (ROWS,))\n",
    cell(f"""
        for step in range({STEPS}):
            ids, wanted = on_host.to(device), targets.to(device)
            loss = train(ids)
    """),
    held_out=True,
)

SETTLED = _healthy(
    "settled_warm_cache",
    # Memory goes up and down by gigabytes in every step, all of it inside the allocator's cache.
    trunk(16)
    + cell(f"""
        ids = torch.randint(1024, (ROWS, LENGTH), device=device)
        shares = [1.0, 0.5, 0.75, 0.25]
        most = {size(400_000_000, 4_000)}
        large = torch.empty(most, device=device)
        del large
    """),
    cell(f"""
        for step in range({STEPS}):
            buffer = torch.ones(int(most * shares[step % 4]), device=device)
            loss = train(ids) + buffer[0]
            del buffer
    """),
)

LOADER_KEEPS_UP = _healthy(
    "loader_keeps_up",
    trunk(24)
    + cell(f"""
        from torch.utils.data import DataLoader, Dataset

        class Quick(Dataset):
            def __len__(self):
                return 16 * {STEPS}

            def __getitem__(self, index):
                time.sleep(0.001)
                return torch.arange(index, index + LENGTH) % 1024

        loader = DataLoader(Quick(), batch_size=16, num_workers={size(8, 2)}, persistent_workers=True)
    """),
    cell("""
        for ids in loader:
            loss = train(ids.to(device, non_blocking=True))
    """),
    held_out=True,
)

GPT_11 = _healthy("gpt2_batch_11", GPT_SMALLER.setup, GPT_SMALLER.slow)

HF_GPT2 = _healthy(
    "hf_gpt2_batch_14",
    'import os\n\nos.environ["HF_HUB_OFFLINE"] = "1"\n'
    + cell(f"""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        {DEVICE}
        torch.manual_seed(0)
        config = GPT2Config({size(0, 1) * "n_layer=2, n_embd=64, n_head=2, vocab_size=500"})
        model = GPT2LMHeadModel(config).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
        ids = torch.randint(500, ({size(14, 1)}, {size(1024, 16)}), device=device)
    """),
    cell(f"""
        for step in range({size(20, 12)}):
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    """),
    needs=("transformers",),
    model="transformers GPT-2",
    held_out=True,
)

BIG_PRODUCTS = _healthy(
    "large_products",
    cell(f"""
        import torch

        {DEVICE}
        N = {size(8192, 64)}
        w = torch.eye(N, device=device, dtype=torch.bfloat16)
        x = torch.randn(N, N, device=device, dtype=torch.bfloat16)
    """),
    cell(f"""
        for step in range({STEPS}):
            y = x
            for k in range(6):
                y = y @ w
    """),
)

RESNET = _healthy(
    "resnet50_large_batch",
    cell(f"""
        import torch
        import torchvision
        from torch.nn import functional as F

        {DEVICE}
        torch.manual_seed(0)
        model = torchvision.models.resnet50(weights=None).to(device, torch.bfloat16, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        pictures = torch.randn({size(192, 2)}, 3, 224, 224, device=device, dtype=torch.bfloat16)
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        labels = torch.randint(1000, (len(pictures),), device=device)
    """),
    cell(f"""
        for step in range({size(20, 12)}):
            loss = F.cross_entropy(model(pictures).float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    """),
    needs=("torchvision",),
    model="torchvision resnet50",
    held_out=True,
)

FUSED_ATTENTION = _healthy(
    "fused_attention",
    cell(f"""
        import torch
        from torch.nn import functional as F

        {DEVICE}
        torch.manual_seed(0)
        q, k, v = (
            torch.randn({size(8, 1)}, 16, {size(4096, 32)}, 64, device=device, dtype=torch.bfloat16) for _ in range(3)
        )
    """),
    cell(f"""
        for step in range({STEPS}):
            x = q
            for layer in range(4):
                x = F.scaled_dot_product_attention(x, k, v, is_causal=True)
    """),
)

CLIP_WITHOUT_SYNC = _healthy(
    "clip_grad_norm",
    trunk(32)
    + cell("""
        ids = torch.randint(1024, (ROWS, LENGTH), device=device)
    """),
    cell(f"""
        for step in range({STEPS}):
            loss = model(embedding(ids.flatten())).square().mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    """),
    held_out=True,
)

HEALTHY = (
    ITEM_ON_BUSY, TWO_SYNCS, SETTLED, LOADER_KEEPS_UP, GPT_11, HF_GPT2, BIG_PRODUCTS, RESNET, FUSED_ATTENTION,
    CLIP_WITHOUT_SYNC,
)  # fmt: skip
