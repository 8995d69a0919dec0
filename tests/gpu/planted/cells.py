"""What the planted cells share: sizes that shrink for dry runs, and the GPU work that stands behind a host's cause."""

from __future__ import annotations

from textwrap import dedent

from tests.gpu.workloads import DEVICE, REDUCED, STAND_INS

__all__ = ["DEVICE", "PLANTED_STAND_INS", "STEPS", "cell", "size", "trunk"]

STEPS = 12 if REDUCED else 32


def size(full: int, reduced: int) -> int:
    """``full`` on the GPU, ``reduced`` in a dry run."""
    return reduced if REDUCED else full


def cell(text: str) -> str:
    """The text without its common indentation and with one line end."""
    return dedent(text).strip() + "\n"


def trunk(layers: int, *, width: int = 4096, tokens: int = 4096, dtype: str = "torch.bfloat16") -> str:
    """A setup cell with ``train(ids)``: one training step over ids (``ROWS`` of 256, any shape of as many).

    On an H200 a layer of 4096 takes about 0.55 ms for 4096 tokens, the host a tenth of that, so the GPU is the slower
    one. Its weights are mostly zeros: that keeps the GPU below its power cap, and so its clock steady.
    """
    return cell(f"""
        import time
        import numpy
        import torch
        from torch import nn

        {DEVICE}
        WIDTH, LAYERS, LENGTH = {size(width, 32)}, {size(layers, 2)}, {size(256, 16)}
        ROWS = {size(tokens // 256, 4)}
        torch.manual_seed(0)
        embedding = nn.Embedding(1024, WIDTH).to(device, {dtype}).requires_grad_(False)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)])
        for block in model:
            nn.init.eye_(block[0].weight)
        model = model.to(device, {dtype})
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def train(ids):
            loss = model(embedding(ids.flatten())).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()
    """)


PLANTED_STAND_INS = STAND_INS + cell("""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction = lambda fraction, *device: None
        torch.cuda.mem_get_info = lambda *device: (1 << 37, 1 << 37)
        torch.cuda.memory_reserved = lambda *device: 0
        # Classes: transformers has them in annotations.
        torch.cuda.CUDAGraph = type("CUDAGraph", (), {"replay": lambda graph: None})
        torch.cuda.Stream = type("Stream", (), {"wait_stream": lambda stream, other: None})
""")
"""A cell for dry runs: stand-ins where there is no CUDA device."""
