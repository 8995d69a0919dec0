"""Planted causes in real models and under real trainers; random weights from configurations, nothing is downloaded."""

from __future__ import annotations

from tests.gpu.planted.cells import DEVICE, STEPS, cell, size
from tests.gpu.workloads import Workload, pair

OFFLINE = 'import os\n\nos.environ["HF_HUB_OFFLINE"] = "1"\n'

RESNET = Workload(
    name="resnet50_loader",
    model="torchvision resnet50",
    needs=("torchvision",),
    setup=cell(f"""
        import time
        import torch
        import torchvision
        from torch.nn import functional as F
        from torch.utils.data import DataLoader, Dataset

        {DEVICE}
        torch.manual_seed(0)
        # Large enough that the fixed form waits for the GPU, on a slow host too.
        BATCH = {size(224, 2)}
        model = torchvision.models.resnet50(weights=None).to(device, torch.bfloat16, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        picture = torch.randint(255, (3, 56, 56), dtype=torch.uint8)  # small, so that the copy is no cause

        class Pictures(Dataset):
            def __len__(self):
                return BATCH * {size(18, 10)}

            def __getitem__(self, index):
                time.sleep(0.0005)  # stands for the decoding
                return picture, index % 1000

        loader = DataLoader(Pictures(), batch_size=BATCH, pin_memory=device == "cuda")
    """),
    slow=(
        loop := cell("""
            for pictures, labels in loader:
                x = pictures.to(device, non_blocking=True).bfloat16().div(255)
                x = F.interpolate(x, size=224).contiguous(memory_format=torch.channels_last)
                loss = F.cross_entropy(model(x).float(), labels.to(device, non_blocking=True))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        """)
    ),
    fixed=loop,
    fixed_setup=cell(f"""
        loader = DataLoader(
            Pictures(), batch_size=BATCH, num_workers={size(10, 2)}, persistent_workers=True,
            pin_memory=device == "cuda",
        )
    """),
    slow_cause="data_loading",
    expected_lines=(2,),
    held_out=True,
    edit_is_fix=True,
)

VIT = Workload(
    name="vit_checked_layers",
    model="torchvision ViT-B/16",
    needs=("torchvision",),
    setup=cell(f"""
        import torch
        import torchvision

        {DEVICE}
        torch.manual_seed(0)
        model = torchvision.models.vit_b_16(weights=None).to(device, torch.bfloat16).eval()
        pictures = torch.randn({size(32, 1)}, 3, 224, 224, device=device, dtype=torch.bfloat16)
        largest = []

        def watch(layer, given, result):
            largest.append(result[:, 0].float().amax().item())

        hooks = [layer.register_forward_hook(watch) for layer in model.encoder.layers]
        hooks += [layer.mlp.register_forward_hook(watch) for layer in model.encoder.layers]
    """),
    slow=(
        loop := cell(f"""
            for step in range({STEPS}):
                with torch.no_grad():
                    classes = model(pictures).argmax(1)
        """)
    ),
    fixed=loop,
    fixed_setup=cell("""
        def keep(layer, given, result):
            largest.append(result[:, 0].float().amax())

        for hook in hooks:
            hook.remove()
        hooks = [layer.register_forward_hook(keep) for layer in model.encoder.layers]
        hooks += [layer.mlp.register_forward_hook(keep) for layer in model.encoder.layers]
    """),
    slow_cause="host_sync",
    edit_is_fix=True,
)

GPT2 = pair(
    name="gpt2_logits_to_host",
    model="transformers GPT-2",
    needs=("transformers",),
    setup=OFFLINE
    + cell(f"""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        {DEVICE}
        torch.manual_seed(0)
        config = GPT2Config({size(0, 1) * "n_layer=2, n_embd=64, n_head=2, vocab_size=500"})
        model = GPT2LMHeadModel(config).to(device, torch.bfloat16).eval()
        ids = torch.randint(500, ({size(12, 1)}, {size(1024, 16)}), device=device)
        kept = None
    """),
    slow=cell(f"""
        for step in range({size(28, 12)}):
            with torch.no_grad():
                logits = model(ids, use_cache=False, logits_to_keep={size(64, 4)}).logits
                kept = logits.cpu()
    """),
    edits=(
        (f"for step in range({size(28, 12)}):", f"for step in range({STEPS}):"),
        ("kept = logits.cpu()", "kept = logits"),
    ),
    slow_cause="transfer",
    expected_lines=(5,),
    held_out=True,
    edit_is_fix=True,
)

BERT = pair(
    name="bert_fp32",
    model="transformers BERT",
    needs=("transformers",),
    setup=OFFLINE
    + cell(f"""
        import torch
        from transformers import BertConfig, BertForMaskedLM

        {DEVICE}
        torch.set_float32_matmul_precision("highest")
        torch.manual_seed(0)
        config = BertConfig({size(0, 1) * "num_hidden_layers=2, hidden_size=64, num_attention_heads=2, vocab_size=500"})
        model = BertForMaskedLM(config).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
        ids = torch.randint(500, ({size(32, 2)}, {size(128, 16)}), device=device)
    """),
    slow=cell(f"""
        for step in range({size(20, 12)}):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    """),
    edits=(
        (
            f"for step in range({size(20, 12)}):\n    loss = model(input_ids=ids, labels=ids).loss\n",
            f"for step in range({size(28, 12)}):\n    with torch.autocast(device, dtype=torch.bfloat16):\n"
            "        loss = model(input_ids=ids, labels=ids).loss\n",
        ),
    ),
    slow_cause="tensor_cores",
    held_out=True,
)

LLAMA = Workload(
    name="llama_decode",
    model="transformers Llama",
    needs=("transformers",),
    setup=OFFLINE
    + cell(f"""
        import inspect
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

        {DEVICE}
        torch.manual_seed(0)
        PLACES = 1024
        config = LlamaConfig(
            hidden_size={size(2048, 64)}, intermediate_size={size(5632, 128)}, num_hidden_layers={size(16, 2)},
            num_attention_heads={size(16, 4)}, vocab_size=8000, max_position_embeddings=PLACES,
        )
        model = LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
        cache = StaticCache(config=config, max_cache_len=PLACES)
        asked = inspect.signature(model.model.forward).parameters
        token = torch.zeros(1, 1, dtype=torch.long, device=device)
        place = torch.zeros(1, dtype=torch.long, device=device)
        places = torch.arange(PLACES, device=device)
        given = {{"cache" if "cache" in asked else "past_key_values": cache}}
        if "cache_position" in asked:
            given["cache_position"] = place

        @torch.no_grad()
        def decode():
            visible = (places <= place).view(1, 1, 1, PLACES)
            result = model(token, attention_mask=visible, position_ids=place[None], use_cache=True, **given)
            token.copy_(result.logits[:, -1].argmax(-1, keepdim=True))
            place.add_(1).remainder_(PLACES)

        decode()
    """),
    slow=cell(f"""
        for position in range({size(40, 12)}):
            decode()
    """),
    fixed=cell(f"""
        for position in range({size(60, 12)}):
            graph.replay()
    """),
    fixed_setup=cell("""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decode()
    """),
    slow_cause="launch_bound",
    edit_is_fix=True,
)

HF_TRAINER = Workload(
    name="hf_trainer",
    model="transformers BERT in Trainer",
    needs=("transformers", "accelerate"),
    trainer=True,
    setup=OFFLINE
    + cell(f"""
        import tempfile
        import time
        import torch
        from torch.utils.data import Dataset
        from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

        {DEVICE}
        torch.manual_seed(0)
        # Large enough that the fixed form waits for the GPU, on a slow host too.
        BATCH, LENGTH = {size(160, 2)}, {size(256, 16)}
        config = BertConfig({
        "num_hidden_layers=6" if not size(0, 1) else "num_hidden_layers=2, hidden_size=64, num_attention_heads=2"
    })
        model = BertForSequenceClassification(config).to(device, torch.bfloat16)

        class Reviews(Dataset):
            def __len__(self):
                return BATCH * {size(24, 12)}

            def __getitem__(self, index):
                time.sleep(0.0005)
                return {{"input_ids": torch.arange(index, index + LENGTH) % 30000, "labels": index % 2}}

        def arguments(**more):
            return TrainingArguments(
                output_dir=tempfile.mkdtemp(), max_steps={size(24, 12)}, per_device_train_batch_size=BATCH,
                report_to="none", disable_tqdm=True, logging_strategy="no", save_strategy="no", learning_rate=1e-6,
                use_cpu=device == "cpu", **more,
            )

        more = {{}}
    """),
    slow=(
        loop := cell("""
            trainer = Trainer(model=model, args=arguments(**more), train_dataset=Reviews())
            trainer.train()
        """)
    ),
    fixed=loop,
    fixed_setup=f"more = dict(dataloader_num_workers={size(10, 2)}, dataloader_persistent_workers=True)\n",
    slow_cause="data_loading",
    edit_is_fix=True,
)

LIGHTNING = Workload(
    name="lightning_trainer",
    model="Lightning Trainer",
    needs=("lightning",),
    trainer=True,
    setup=cell(f"""
        import lightning.pytorch as pl
        import logging
        import torch
        import warnings
        from torch import nn
        from torch.utils.data import DataLoader

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning")
        WIDTH, LAYERS, LENGTH, STEPS = {size(3072, 32)}, {size(24, 2)}, {size(4096, 64)}, {STEPS}
        torch.manual_seed(0)

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.words = nn.Embedding(1024, WIDTH).requires_grad_(False)
                self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS))
                for layer in self.layers:
                    nn.init.eye_(layer[0].weight)
                self.seen = []

            def read(self, x):
                return x[0].float().norm().item()

            def training_step(self, batch, number):
                x = self.words(batch)
                for layer in self.layers:
                    x = layer(x)
                    self.seen.append(self.read(x.detach()))
                    text = " ".join([f"{{float(k):.4f}}" for k in range(60)])
                return x.float().square().mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1e-6)

        module = Module().to(torch.bfloat16)
        loader = DataLoader([torch.randint(1024, (LENGTH,)) for _ in range(STEPS)], batch_size=None)
        options = dict(
            max_steps=STEPS, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )
    """),
    slow=(
        loop := cell("""
            trainer = pl.Trainer(**options)
            trainer.fit(module, loader)
        """)
    ),
    fixed=loop,
    fixed_setup="Module.read = lambda self, x: x[0].float().norm()\n",
    slow_cause="host_sync",
    edit_is_fix=True,
)

CLASSIC_LOOP = cell("""
    for ids in loader:
        ids = ids.to(device, non_blocking=True)
        with sdpa_kernel(backend):
            loss = step_loss(ids)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
""")

CLASSIC = Workload(
    name="classic_attention_or_loader",
    # About 300 ms a step: 240 ms of loader, then some 50 ms of GPU, of which some 15 ms are attention. Variant
    # "attention" makes the attention 2 to 3 times faster and leaves the loader as it is. The loss is read in every
    # step, as so often: else the GPU's work would hide behind the loader, and faster attention would gain nothing.
    setup=cell(f"""
        import time
        import torch
        from torch import nn
        from torch.nn import functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.data import DataLoader, Dataset

        {DEVICE}
        WORDS, WIDTH, HEADS = {size(32000, 500)}, {size(768, 64)}, {size(12, 2)}
        LAYERS, LENGTH = {size(6, 1)}, {size(4096, 32)}
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
                return x + self.down(F.gelu(self.up(self.norm_2(x))))

        embedding, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        model = nn.Sequential(embedding, *[Block() for _ in range(LAYERS)], nn.LayerNorm(WIDTH), head)
        model = model.to(device, torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        losses = []

        def step_loss(ids):
            return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

        class Slow(Dataset):
            def __len__(self):
                return 4 * {size(10, 8)}

            def __getitem__(self, index):
                time.sleep({size(60, 2)} / 1000)
                return torch.arange(index, index + LENGTH + 1) % WORDS

        loader = DataLoader(Slow(), batch_size=4)
        backend = SDPBackend.EFFICIENT_ATTENTION if device == "cuda" else SDPBackend.MATH
    """),
    slow=CLASSIC_LOOP,
    fixed=CLASSIC_LOOP,
    # 40 batches, all of them under way at once: ten steps are over before a second round would be needed.
    fixed_setup=cell(f"""
        backend = SDPBackend.EFFICIENT_ATTENTION if device == "cuda" else SDPBackend.MATH
        loader = DataLoader(Slow(), batch_size=4, num_workers={size(12, 2)}, persistent_workers=True)
    """),
    variants=(
        (
            "attention",
            'backend = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION] if device == "cuda" else backend\n',
            CLASSIC_LOOP,
        ),
    ),
    slow_cause="data_loading",
    expected_lines=(2,),
    edit_is_fix=True,
)

PAIRS = (RESNET, VIT, GPT2, BERT, LLAMA, HF_TRAINER, LIGHTNING, CLASSIC)
