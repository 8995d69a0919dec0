"""Planted ``data_loading``: the GPU waits for a batch."""

from __future__ import annotations

from tests.gpu.planted.cells import DEVICE, STEPS, cell, size, trunk
from tests.gpu.workloads import Workload, pair

LOOP = cell("""
    for ids in loader:
        train(ids.to(device, non_blocking=True))
""")

SLOW_ITEMS = cell(f"""
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 16 * {STEPS}

        def __getitem__(self, index):
            time.sleep(0.001)
            return torch.arange(index, index + LENGTH) % 1024
""")

SLEEPING_ITEMS = Workload(
    name="sleeping_items",
    # 16 ms of sleep a batch in front of 5 ms of GPU work.
    setup=trunk(8) + SLOW_ITEMS + "loader = DataLoader(Slow(), batch_size=16)\n",
    slow=LOOP,
    fixed=LOOP,
    fixed_setup=cell(f"""
        loader = DataLoader(
            Slow(), batch_size=16, num_workers={size(8, 2)}, persistent_workers=True, prefetch_factor=4
        )
    """),
    slow_cause="data_loading",
    expected_lines=(2,),
    edit_is_fix=True,
)

FEW_WORKERS = Workload(
    name="too_few_workers",
    # One worker makes a batch in 17 ms, the GPU takes 5.
    setup=trunk(8)
    + SLOW_ITEMS
    + cell("""
        loader = DataLoader(
            Slow(), batch_size=16, num_workers=1, persistent_workers=True, pin_memory=device == "cuda"
        )
    """),
    slow=LOOP,
    fixed=LOOP,
    fixed_setup=cell(f"""
        loader = DataLoader(
            Slow(), batch_size=16, num_workers={size(12, 2)}, persistent_workers=True, pin_memory=device == "cuda"
        )
    """),
    slow_cause="data_loading",
    expected_lines=(2,),
    held_out=True,
    edit_is_fix=True,
)

ROW_BY_ROW = Workload(
    name="row_by_row_dataset",
    setup=cell(f"""
        import torch
        from torch import nn
        from torch.nn import functional as F
        from torch.utils.data import DataLoader, TensorDataset

        {DEVICE}
        torch.manual_seed(0)
        images, labels = torch.rand({size(60000, 6000)}, 784), torch.randint(10, ({size(60000, 6000)},))
        model = nn.Sequential(nn.Linear(784, {size(2048, 64)}), nn.ReLU(), nn.Linear({size(2048, 64)}, 10)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(images, labels), batch_size=512, shuffle=True)
    """),
    slow=cell("""
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """),
    fixed=cell("""
        for rows in torch.randperm(len(images), device=device).split(512):
            loss = F.cross_entropy(model(images_there[rows]), labels_there[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """),
    fixed_setup="images_there, labels_there = images.to(device), labels.to(device)\n",
    slow_cause="data_loading",
    expected_lines=(2,),
    held_out=True,
)

SLOW_COLLATE = Workload(
    name="slow_collate",
    # About 10 ms of Python over 4096 words a batch.
    setup=trunk(8)
    + cell(f"""
        from torch.utils.data import DataLoader

        words = ["".join(chr(97 + (7 * n + k) % 26) for k in range(60)) for n in range(500)]
        texts = [[words[(n * k) % 500] for k in range(LENGTH)] for n in range(ROWS * {STEPS})]

        def collate(rows):
            return torch.tensor([[sum(map(ord, word)) % 1024 for word in row] for row in rows])

        loader = DataLoader(texts, batch_size=ROWS, collate_fn=collate)
    """),
    slow=LOOP,
    fixed=LOOP,
    fixed_setup=cell(f"""
        loader = DataLoader(
            texts, batch_size=ROWS, collate_fn=collate, num_workers={size(10, 2)}, persistent_workers=True
        )
    """),
    slow_cause="data_loading",
    expected_lines=(2,),
    edit_is_fix=True,
)

GENERATOR = pair(
    name="plain_generator",
    # No DataLoader anywhere: 14 ms a batch in a generator's own code.
    setup=trunk(8)
    + cell(f"""
        from concurrent.futures import ThreadPoolExecutor

        def make(number):
            time.sleep(0.013)
            ids = numpy.random.default_rng(number).integers(0, 1024, size=(ROWS, LENGTH))
            return torch.from_numpy(ids)

        def batches():
            for number in range({STEPS}):
                yield make(number)
    """),
    slow=cell("""
        for ids in batches():
            train(ids.to(device))
    """),
    edits=(("for ids in batches():", f"for ids in pool.map(make, range({STEPS})):"),),
    fixed_setup="pool = ThreadPoolExecutor(8)\n",
    slow_cause="data_loading",
    expected_lines=(2,),
    held_out=True,
    edit_is_fix=True,
)

PAIRS = (SLEEPING_ITEMS, FEW_WORKERS, ROW_BY_ROW, SLOW_COLLATE, GENERATOR)
