"""What a cause is and how it is cured, and how the profiler works: Markdown for notebooks, text for terminals."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

PROFILER = "profiler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of an explanation: plain sentences, paragraphs apart by an empty line, and code below them."""

    title: str
    text: str
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``topic`` is a cause's identifier or ``profiler``; ``bound`` the word people ask for, or empty."""

    topic: str
    title: str
    bound: str
    parts: tuple[Part, ...]


def cause(
    topic: str, title: str, bound: str, *, shows: str, why: str, cure: str, before: str, after: str, then: str = ""
) -> Explanation:
    """The explanation of a cause: what the timeline shows, why, the cure with an example, and how to see it worked."""
    parts = [
        Part(title="What the timeline shows", text=shows),
        Part(title="Why it costs time", text=why),
        Part(title="The cure", text=cure),
    ]
    if before:
        parts += [Part(title="Before", text="", code=before), Part(title="After", text="", code=after)]
    if then:
        parts.append(Part(title="How to see that it worked", text=then))
    return Explanation(topic=topic, title=title, bound=bound, parts=tuple(parts))


def markdown(told: Explanation) -> str:
    """The explanation as Markdown, code in fences."""
    lines = [f"### {told.title}", ""]
    if told.bound:
        lines += [f"`{told.topic}` · **{told.bound}**", ""]
    for part in told.parts:
        lines += [f"**{part.title}**", ""]
        lines += [*_paragraphs(part.text), ""] if part.text else []
        lines += (
            ["```python" if not part.code.startswith("$") else "```console", part.code.strip("\n"), "```", ""]
            if part.code
            else []
        )
    return "\n".join(lines).rstrip() + "\n"


def plain_text(told: Explanation, width: int = 80) -> str:
    """The explanation in lines of at most ``width`` columns; code stays as it is, indented."""
    lines = [told.title, "=" * len(told.title)]
    if told.bound:
        lines.append(f"{told.topic} · {told.bound}")
    for part in told.parts:
        lines += ["", f"{part.title}:"]
        for paragraph in _paragraphs(part.text) if part.text else ():
            if paragraph:
                lines += textwrap.wrap(
                    paragraph.replace("`", ""), width - 2, initial_indent="  ", subsequent_indent="  "
                )
        lines += [f"    {line}".rstrip() for line in part.code.strip("\n").splitlines()]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> list[str]:
    """Paragraphs on one line each, with an empty line between them."""
    found = [" ".join(one.split()) for one in re.split(r"\n\s*\n", text.strip())]
    return [line for one in found for line in (one, "")][:-1]


_EXPLANATIONS = (
    cause(
        "data_loading",
        "The GPU waits for a batch",
        "IO-bound",
        shows="A long bar `next(loader)` on the host lane, and under it an empty GPU lane. When the batch is there, "
        "all GPU work comes in one short burst, and then the lane is empty again.",
        why="The training loop fetches the batch itself: files are read, decoded and put together in the main process "
        "while nothing is queued for the GPU. One step then takes loading plus computing. The two could overlap: the "
        "batch of the next step does not depend on this step. Faster kernels cannot help, they are the short part.",
        cure="Load in worker processes, so that the next batch is ready before it is needed. `persistent_workers` "
        "spares their start in each epoch, `pin_memory` lets the copy to the GPU run beside kernels. Where all workers "
        "are busy and the GPU still waits, the loading itself has to shrink: decode smaller images, store what is "
        "decoded again and again, index a whole batch at once instead of one sample at a time. More workers than CPU "
        "cores make it slower, not faster.",
        before="loader = DataLoader(dataset, batch_size=64)\nfor x, y in loader:\n    train_step(x.cuda(), y.cuda())",
        after="loader = DataLoader(dataset, batch_size=64, num_workers=8,\n"
        "                    pin_memory=True, persistent_workers=True)\n"
        "for x, y in loader:\n"
        "    train_step(x.cuda(non_blocking=True), y.cuda(non_blocking=True))",
        then="Data loading leaves the pie, or shrinks to what the workers cannot hide. Profile again: the step is now "
        "held back by something else, and that one has its own share.",
    ),
    cause(
        "host_sync",
        "The host waits for the GPU, and then the GPU waits for the host",
        "CPU-bound",
        shows="Between short groups of kernels stands a small copy to the host and `cudaStreamSynchronize`, over and "
        "over. After each of them the GPU lane is empty, until the host has launched the next kernel.",
        why="Normally the host runs ahead: it queues kernels faster than the GPU finishes them, and the queue hides "
        "Python. `.item()`, `.cpu()`, `print(tensor)`, `if tensor:`, `nonzero` and boolean indexing need a value, so "
        "the host must wait until all queued work is done. The wait itself costs nothing, since the GPU works "
        "meanwhile. The loss comes behind it: the queue is empty, and the GPU has nothing to do until Python has "
        "built it up again. That is why a read that waits for 0.2 ms can cost 1.3 ms, and why a read at the very end "
        "of a long step can cost nothing. ipyprof replays the step without the read to tell the two apart.",
        cure="Keep values on the GPU and read them rarely: add up a tensor, and call `.item()` every hundred steps or "
        "after the loop. Replace `if tensor:` by `torch.where`, a boolean index by a mask that is multiplied. Where a "
        "value is needed each step, read the one of the step before: it is long finished.",
        before="total = 0.0\nfor x, y in batches:\n    loss = train_step(x, y)\n    total += loss.item()",
        after="total = torch.zeros((), device='cuda')\nfor x, y in batches:\n    loss = train_step(x, y)\n"
        "    total += loss.detach()\nprint(total.item())",
        then="The line loses its count under “syncs”, and the gaps behind it close.",
    ),
    cause(
        "allocator",
        "The GPU waits for the memory allocator",
        "CPU-bound",
        shows="`cudaMalloc` and `cudaFree` inside the step, often hundreds of microseconds each; around them the GPU "
        "lane is empty. The heartbeat's reserved line goes up and down like a saw.",
        why="PyTorch keeps freed memory for the next tensor: taking it from that cache costs a microsecond. Asking the "
        "driver is slow, and `cudaFree` waits for the whole GPU first. The cache fails when it is emptied "
        "(`torch.cuda.empty_cache()`), when memory is almost full and must be flushed, or when each step asks for "
        "other sizes. In the first steps such calls are normal: the cache is still filling.",
        cure="Do not call `empty_cache()` in a loop: it does not give your program more memory. Allocate buffers once "
        "and fill them with `copy_` or `out=`. Where sizes change from step to step, set the variable "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` before torch starts, or pad to a few sizes.",
        before="for x in batches:\n    y = model(x)\n    torch.cuda.empty_cache()",
        after="for x in batches:\n    y = model(x)",
        then="No `cudaMalloc` or `cudaFree` in the recorded steps, and a flat reserved line.",
    ),
    cause(
        "transfer",
        "The GPU waits for copies",
        "IO-bound",
        shows="Long copies between host and device (`Memcpy HtoD`, `Pageable -> Device`) with no kernel beside them; "
        "the host stands in `cudaMemcpyAsync` as long.",
        why="Ordinary (pageable) memory may be moved by the operating system at any time, so the driver copies it "
        "through a small buffer of its own: on an H200 6 instead of 55 GB/s, and the host is blocked meanwhile. "
        "`non_blocking=True` alone changes nothing, because there is nothing to be asynchronous about. A copy to the "
        "host blocks as well, and a result that is copied back each step is often never looked at.",
        cure="First see whether the copy is needed: keep statistics and buffers on the GPU, copy what is read. Else "
        "put the data into pinned memory (`pin_memory=True` in the loader) and copy with `non_blocking=True`: then it "
        "runs beside the kernels of the step before. Smaller types help: send `uint8` images, convert on the GPU.",
        before="loader = DataLoader(dataset, batch_size=64, num_workers=8)\nfor x, y in loader:\n    x = x.to('cuda')",
        after="loader = DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True)\nfor x, y in loader:\n"
        "    x = x.to('cuda', non_blocking=True)",
        then="The copies read `Pinned -> Device`, are several times shorter, and lie beside kernels.",
    ),
    cause(
        "cpu_bound",
        "The GPU waits for Python",
        "CPU-bound",
        shows="A long stretch of host time that launches nothing, with an empty GPU lane below it. “Your lines” shows "
        "one line with many milliseconds of host time and little GPU time.",
        why="The host prepares something by itself: a metric in numpy, a loop over samples, tokenising, logging, "
        "writing a file. The GPU finishes what was queued and waits. It is one program: what the main thread does "
        "between two launches is part of the step.",
        cure="Move the work off the main thread (into the loader's workers), do it every hundredth step, or do it with "
        "tensors on the GPU. A Python loop over samples becomes one operation over the batch.",
        before="for x, y in loader:\n    loss = train_step(x, y)\n    for i in range(len(y)):\n"
        "        counts[int(y[i])] += 1",
        after="for x, y in loader:\n    loss = train_step(x, y)\n"
        "    counts += torch.bincount(y, minlength=len(counts))",
        then="The line's host time is gone, and the GPU's share of the step grows by as much.",
    ),
    cause(
        "launch_bound",
        "The GPU runs kernels that are shorter than their launch",
        "CPU-bound",
        shows="A fence: thousands of thin kernels with gaps as wide as they are, and a host lane that is full from end "
        "to end with operators and launches. No single call is long.",
        why="An operator costs the host 5 to 20 microseconds in Python, dispatch and the launch, whatever its size. A "
        "kernel that runs for 3 microseconds is over before the next one is launched, so the host never gets ahead. "
        "`nvidia-smi` may show a high number all the same: it only asks whether some kernel was running. This cause is "
        "what is left after the others: look for reads and allocations first, a graph cannot hold those.",
        cure="Launch less often. `torch.compile(model)` fuses chains of small operators; `mode='reduce-overhead'` also "
        "replays them as one CUDA graph. Optimizers with `fused=True` or `foreach=True` update all parameters in a few "
        "kernels instead of several per parameter. A larger batch gives each kernel more to do, if memory and the "
        "training allow it.",
        before="model = Net().cuda()\nopt = torch.optim.Adam(model.parameters(), foreach=False)",
        after="model = torch.compile(Net().cuda(), mode='reduce-overhead')\n"
        "opt = torch.optim.Adam(model.parameters(), fused=True)",
        then="Far fewer calls per step in the operator table, and kernels that stand side by side.",
    ),
    cause(
        "communication",
        "The GPU waits in collectives",
        "GPU-bound (communication)",
        shows="Long `ncclDevKernel_AllReduce` (or similar) kernels with no compute kernel beside them, mostly at the "
        "end of the backward pass.",
        why="A collective starts when the last rank arrives and ends when all data has moved. What lies beside compute "
        "kernels is free; what does not is exposed and lengthens the step. From one rank's file nobody can tell "
        "whether the network is slow or another rank is late: that one waits least.",
        cure="Overlap: DistributedDataParallel sends gradients while the backward pass goes on, in buckets "
        "(`bucket_cap_mb`). Send less: `no_sync()` while gradients are accumulated, gradients in bf16. Look at all "
        "ranks' files together before you blame the network.",
        before="for x, y in batches:\n    loss_fn(ddp(x), y).backward()\n    if last_of_four():\n        opt.step()",
        after="for x, y in batches:\n    with contextlib.nullcontext() if last_of_four() else ddp.no_sync():\n"
        "        loss_fn(ddp(x), y).backward()\n    if last_of_four():\n        opt.step()",
        then="Communication stays as long in total, but its exposed part, the one in the pie, shrinks.",
    ),
    cause(
        "straggler",
        "One rank is late, and all others wait for it",
        "depends on what holds the late rank up",
        shows="With the files of all ranks side by side: one rank reaches each collective later than the others, and "
        "has the shortest collective itself. The others stand in the collective and wait.",
        why="A collective needs everybody. If one rank loads slower, has a longer batch, or runs on a slower or hotter "
        "GPU, every step takes as long as its step. The rank with the most communication time is not the guilty one "
        "but the one that waits longest.",
        cure="Find the phase in which the rank falls behind (loader, forward, backward, optimizer) and profile that "
        "rank alone: it has one of the other causes. Uneven batches: sort or bucket by length. A slow host: move the "
        "loader's work or the rank.",
        before="sampler = DistributedSampler(texts)            # one rank may get all the long ones",
        after="sampler = LengthGroupedSampler(texts)          # your own: every rank gets the same lengths in one step",
        then="All ranks spend the same time in collectives.",
    ),
    cause(
        "unstable_shapes",
        "New shapes make the step search or compile again",
        "CPU-bound",
        shows="Some steps are many times longer than others. In them stand cuDNN's search (long waits inside a "
        "convolution), `cudaMalloc` for new sizes, or seconds of torch.compile's own work.",
        why="Several things are prepared once per shape and kept: cuDNN's choice of algorithm with "
        "`cudnn.benchmark=True`, a compiled graph, blocks in the allocator's cache. If each batch has another length, "
        "nothing that is kept is ever used.",
        cure="Have few shapes: pad to multiples of 64 or to a handful of bucket lengths, `drop_last=True` for the last "
        "batch. Else tell the tools: `torch.backends.cudnn.benchmark = False`, "
        "`torch.compile(model, dynamic=True)`.",
        before="batch = pad_sequence(texts)                    # as long as the longest of this batch",
        after="longest = max(len(text) for text in texts)\n"
        "batch = pad_to(texts, -(-longest // 64) * 64)  # at most a few different lengths",
        then="Step times become equal, and the searching or compiling is gone from recorded steps.",
    ),
    cause(
        "tensor_cores",
        "Products run without Tensor Cores",
        "GPU-bound (compute)",
        shows="The GPU lane is full; matrix products and convolutions in float32 (`sgemm`, `_f32f32_` kernels) take "
        "most of it. The table says “○ no” under Tensor Cores.",
        why="Tensor Cores multiply small blocks of bf16, fp16, fp8 or TF32 numbers. Plain float32 cannot use them. On "
        "an H200 that is a data sheet peak of 67 against 989 TFLOP/s in bf16. PyTorch leaves TF32 off for matrix "
        "products because it rounds inputs to 10 bits of mantissa: that is your decision, and it may be float32 on "
        "purpose.",
        cure="If float32 is not intended: `torch.autocast` in bfloat16 for training (no scaling of gradients needed), "
        "or only TF32 with `torch.set_float32_matmul_precision('high')`. Watch the loss curve for a while. Where "
        "accuracy needs float32, leave it: then this is the price.",
        before="loss = loss_fn(model(x), y)",
        after="with torch.autocast('cuda', torch.bfloat16):\n    loss = loss_fn(model(x), y)",
        then="“● yes” in the table, and products that take a fraction of the time. Often something else leads then.",
    ),
    cause(
        "misaligned_shapes",
        "Sizes that tile badly",
        "GPU-bound (compute)",
        shows="A product uses Tensor Cores and is slow all the same; its kernel's name says `align1` or `align2`, its "
        "shape has an odd number such as 4093 or 50257.",
        why="Kernels load 16 bytes at once: eight bf16 numbers. A row whose length is no multiple of eight makes the "
        "next row begin in the middle of such a load, and slower loads are used. Tiles of 64 or 128 that stick out "
        "over the edge compute zeros. On an H200 a product of 4093³ in bf16 reaches a fifth of its ceiling.",
        cure="Choose sizes that are multiples of 64, at least of 8: hidden sizes, heads, batch, vocabulary. A "
        "vocabulary of 50257 becomes 50304; the new rows are never used. It may gain much or nothing: some libraries "
        "pad by themselves, so measure.",
        before="head = torch.nn.Linear(768, 50257, bias=False)",
        after="head = torch.nn.Linear(768, 50304, bias=False)  # 50257 rounded up to a multiple of 64",
        then="The kernel's name says `align8`, and its time per FLOP is that of its neighbours.",
    ),
    cause(
        "memory_bound",
        "The GPU moves bytes",
        "GPU-bound (bandwidth)",
        shows="A full GPU lane made of many kernels with “▬ memory”: elementwise operations, norms, softmax, copies "
        "between layouts. Their time follows the size of the tensors, not the arithmetic.",
        why="An H200 can do about 200 operations for each byte it loads. `x * 2 + 1` does two per eight bytes, so the "
        "arithmetic is free and the way to memory is the cost. Three operators in a row read and write the tensor "
        "three times. Attention written out writes a matrix of length × length per head only to read it again.",
        cure="Fuse, so that each input is read once and each output written once: `torch.compile`, "
        "`F.scaled_dot_product_attention` in place of softmax(QKᵀ)V, `fused=True` in optimizers. Keep one layout: "
        "`channels_last` for the model and its input. Smaller types (bf16) halve the bytes.",
        before="scores = (q @ k.transpose(-2, -1)) / math.sqrt(d)\nout = scores.softmax(-1) @ v",
        after="out = F.scaled_dot_product_attention(q, k, v)",
        then="Fewer kernels, a smaller peak in the heartbeat, and a step that is at least as much faster as promised: "
        "fusing does more than the replay can take out.",
    ),
    cause(
        "compute_bound",
        "Healthy: the GPU computes",
        "GPU-bound",
        shows="Kernels fill at least 85 % of the unprofiled step, side by side, and the host runs ahead.",
        why="Nothing waits, and no cause was found that costs 5 % of the step. By Amdahl's law only the kernels "
        "themselves are left: removing every wait would give a few percent. `nvidia-smi` says the same about a GPU "
        "that runs bad kernels, so look at the ladder: MFU is the share of the arithmetic that the chip could do; 40 "
        "to 50 % is a well-tuned training of a large model.",
        cure="Change nothing in the loop. To go faster, do less work: a smaller model, fewer tokens, lower precision "
        "where accuracy allows, or more GPUs. For a single kernel that seems slow, go on to Nsight Compute "
        "(`%gpuprofile --explain profiler` has the command).",
        before="",
        after="",
    ),
    cause(
        "inconclusive",
        "Could not tell",
        "unknown",
        shows="A report whose headline says that it could not be judged, and why: one cold step, no step marks in the "
        "file, lost records, a replay that does not fit the recording.",
        why="It is another answer than “healthy”: there we looked and found nothing. A confident wrong answer would "
        "cost you a day. The reasons stand under the headline and under “Trust”.",
        cure="Give it what is missing: a loop of at least seven steps (two before, two to warm up, three recorded); "
        "`--step` or `--loop` where the wrong loop was taken; `prof.step()` after each step in a recording of your "
        "own; a GPU that nobody else uses. Then profile again.",
        before="%%gpuprofile\ny = model(x)",
        after="%%gpuprofile --step cell\ny = model(x)",
    ),
)
_PROFILER = Explanation(
    topic=PROFILER,
    title="How the profiler works, and what its numbers mean",
    bound="",
    parts=(
        Part(
            title="From the operator to the GPU's time stamp",
            text="`x @ w` calls PyTorch's dispatcher. While the profiler is on, a callback there writes down the "
            "operator's name, thread, shapes and time (host clock). The operator calls `cudaLaunchKernel`, which only "
            "puts the kernel into a queue and returns after a few microseconds. CUPTI, NVIDIA's tracing interface, "
            "gives that call a correlation number. Later the kernel runs; the GPU itself stamps its start and end, and "
            "CUPTI hands these records over in buffers. Kineto, the library inside torch.profiler, joins the three by "
            "the correlation number: operator, launch, kernel. That is how a kernel is charged to an operator, and "
            "through it to a line of your cell.",
        ),
        Part(
            title="Launching is not running",
            text="The host runs ahead of the GPU: up to about 1,024 launches are queued. So a timer around a line "
            "measures how long it takes to queue the work, and the wait shows up where the host needs a value, in a "
            "line that is not to blame. To time by hand, call `torch.cuda.synchronize()` at both ends, or use CUDA "
            "events. A GPU lane without gaps means that the host is ahead, and then Python costs nothing.",
            code="torch.cuda.synchronize(); start = time.perf_counter()\nfor _ in range(20):\n    step()\n"
            "torch.cuda.synchronize(); print((time.perf_counter() - start) / 20)",
        ),
        Part(
            title="Why the first steps are thrown away",
            text="The first step of a process loads kernels, fills the memory cache and searches algorithms; the first "
            "start of CUPTI takes 4 to 5 s. So the schedule is: wait (steps without the profiler), warmup (it runs, "
            "its records are discarded), active (these are recorded). A number from a first step says nothing about "
            "the thousandth.",
        ),
        Part(
            title="The observer effect",
            text="Recording costs host time for each operator, while kernels stay as long as they are. 280 tiny "
            "kernels take 4.3 ms, and 1.36 times that while shapes are recorded. GPT-2 training keeps the GPU 96 % "
            "busy, and in its own trace looks 60 % busy: judged by the trace alone it would be “launch-bound”, which "
            "is false. ipyprof therefore times steps without the profiler, before and after, and takes the cost of "
            "recording out until the replayed step is as long as those.",
        ),
        Part(
            title="Self and total",
            text="An operator calls others: `aten::linear` calls `aten::addmm`. Total time is with what it calls, self "
            "time without. Rows of self time add up to the whole, each kernel once; rows of total time do not. Look "
            "for the largest self time, then go up to find who called it.",
        ),
        Part(
            title="Amdahl's law",
            text="If a part is the share p of the step and becomes s times faster, the step becomes "
            "1 / ((1 − p) + p / s) times faster. A part of 10 % that becomes twice as fast gains 5 %, and at most "
            "11 % if it vanishes. So ask first what the part is worth: the column “if free” says it for each "
            "operator, by replaying the step, because what is hidden behind the GPU gains nothing at all.",
        ),
        Part(
            title="IO-bound, CPU-bound, GPU-bound",
            text="IO-bound: the GPU waits for data (a batch, a copy). CPU-bound: it waits for the host (Python, "
            "launches, reads of a value). GPU-bound: it works all the time, and the limit is arithmetic (compute) or "
            "the way to its memory (bandwidth). Only in the last case do faster kernels help. Most training loops are "
            "not there when they are first looked at.",
        ),
        Part(
            title="When to go on to Nsight Systems",
            text="When the time is lost outside of what PyTorch sees: the operating system, several processes, the "
            "network, other libraries' threads. It needs a script, not a notebook; put "
            "`torch.cuda.profiler.start()` and `stop()` around a few steps.",
            code="$ nsys profile --trace=cuda,nvtx,osrt,cudnn,cublas --capture-range=cudaProfilerApi \\\n"
            "      --capture-range-end=stop --output=step python train.py",
        ),
        Part(
            title="When to go on to Nsight Compute",
            text="When one kernel is the problem and you can change it: your own CUDA or Triton kernel, or a choice "
            "between two. It runs the kernel many times with hardware counters (occupancy, stalls, cache hits), which "
            "torch.profiler cannot read. Take the name from the kernel table.",
            code="$ ncu --set full --kernel-name regex:my_kernel --launch-skip 20 --launch-count 3 \\\n"
            "      --export=kernel python train.py",
        ),
    ),
)
BY_TOPIC = {told.topic: told for told in (*_EXPLANATIONS, _PROFILER)}
TOPICS = tuple(BY_TOPIC)
