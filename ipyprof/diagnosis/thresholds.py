"""Every threshold of the verdict, with the run that set it (tables in ``tests/gpu/RESULTS.md``)."""

from __future__ import annotations

# A cause is found when it recovers more than this share of the step: below it the spread of interleaved unprofiled
# medians on an H200 (1 to 3 %) and the replay's error on GPU-bound loops (1 to 2 %) leave nothing to promise.
FOUND_SHARE = 0.05
# Without a baseline the step itself is an estimate.
FOUND_SHARE_NO_BASELINE = 0.08
# The gain must also be over this many times what the replay gets wrong on the unedited step.
ERRORS = 2.0

# The GPU is not waiting when compute kernels fill this share of the step. GPT-2 training on an H200: 0.96 to 0.97;
# `.item()` between 50 us products: 0.58; sleeping loader: 0.26.
BUSY_SHARE = 0.85
# From here to BUSY_SHARE it is nearly busy: same verdict, medium confidence.
NEARLY_BUSY_SHARE = 0.80

# A specific cause goes before the residual launch_bound when it recovers this share of the step, or this share of what
# one graph launch would.
SPECIFIC_SHARE = 0.15
SPECIFIC_OF_GRAPH = 0.5

# Replay: the recorded window must be reproduced within this share.
FIT_SHARE = 0.03
# GPU work whose launch is not in the file is in no step; with most of it like that, no step can be replayed.
CARRIED_SHARE = 0.5

# Kernels this long before their launch: the two clocks disagree. Smaller ones are jitter (under 2 us in the recordings
# of tests/fixtures; some hundred ns to 2 us in pytorch/kineto PR 991 and PR 1082).
CLOCK_EARLY_NS = 20_000
# With this share of them the device's whole time line is shifted, not a record.
CLOCK_EARLY_SHARE = 0.10
# The first kernel behind a synchronisation starts within 0.1 ms of its launch's end in the recordings on an H200.
CLOCK_LATE_NS = 5_000_000

# Copies from this size on are transfers; smaller ones to the host are reads of a value.
LARGE_COPY_BYTES = 1_000_000
# Giving the host tensor of a copy back to the system, bytes per second at least: 64 MB took 2.0 to 3.6 ms behind the
# planted `activations_to_host` on an H200's host.
RELEASE_RATE = 10e9
# Host to device from pinned memory, bytes per second by compute capability (PCIe 3, 4, 5 x16; H200 measured 55e9).
PINNED_RATE = {7: 12e9, 8: 25e9, 9: 55e9, 10: 55e9, 12: 55e9}
PINNED_RATE_UNKNOWN = 25e9

# A stretch of Python this long between operators is the program's own work; shorter ones go with the launches around
# them when a graph replaces those.
PYTHON_GAP_NS = 100_000
# One launch of a captured graph on the host (measured 5 to 12 us for 280 nodes on an H200).
GRAPH_LAUNCH_NS = 10_000.0
# From so many launches in a step on, what lies between two of them belongs to launching, unless it is long.
MANY_LAUNCHES = 10

# Recording may make the step this many times as long before taking its cost out is called hedged. What is less is
# measured and taken out: 45 of 111 recordings on an H200 were 1.15 to 1.95 times as long.
OVERHEAD_WARN = 2.0
# Unprofiled steps this much slower or faster than the recorded ones, the cost of recording apart. GPU clocks differ by
# up to 17 % between idle and full load on an H200, so more than half of that is said.
DRIFT_SHARE = 0.10
# Spread (90th − 10th percentile over the median) of the unprofiled samples.
UNSTABLE_SHARE = 0.25

# Advice on loading. Most of the waits lie at the start of an epoch when this share of them does.
EPOCH_START_SHARE = 0.5
# Pinning is what a fetch costs when it takes this share of it.
PINNING_SHARE = 0.5
# A batch of 64 small tensors from a worker costs the main process 0.4 to 0.7 ms, from 0 to 100 us an item (torch 2.13,
# 2 cores): below twice that, making it in the main process is as good. One batch from one worker came later than from
# the main process at every item below 20 us, where indexing the whole batch at once takes nearly all of it away.
HANDOVER_NS = 1_000_000
CHEAP_ITEM_NS = 20_000

# The clock of an H200 under full load is at 0.86 of its maximum by its power limit, always: that is its speed. Below
# this share something else holds it back, and the numbers speak of a slower GPU than there is.
CLOCK_SHARE = 0.80
# Advice on memory, of what is held. No run set these two: below a twentieth nobody looks, and below a tenth a second
# forward pass of a line costs more than the room is worth.
DROP_SHARE = 0.05
CHECKPOINT_SHARE = 0.10
# Two moments of AdamW are half of weights, gradients and state together, but 6 % of a GPT-2 training's peak on an H200,
# which is activations (1.0 of 17.2 GB): from here on a smaller state is worth naming.
STATE_SHARE = 0.30
# Growth per step that is told: a list of detached losses grows by 512 bytes a step and is no leak.
GROWTH_BYTES = 1_000_000
# Reserved memory that is not given out at the peak is a cache, and harmless (0 to 70 % in planted loops on an H200),
# until the allocator has to flush it for a request, or this share or less of the device is left. The loop that flushed
# it in every step (growing_history_capped) had 14 % of it unused.
FRAGMENTED_SHARE = 0.05
NEARLY_FULL_SHARE = 0.10

# The heartbeat's peak and torch's own agree within one block: small ones come from segments of 2 MiB
# (CUDACachingAllocator.cpp, kSmallBuffer). Set by no run: both come from the same counter.
SAME_PEAK_BYTES = 2 << 20

# Another process that computes for at least this share of the time takes it from the steps.
OTHERS_BUSY_SHARE = 0.01

# Without a GPU: fetching over this share of the step is the verdict.
CPU_LOADING_SHARE = 0.20
# Without a GPU: a mark takes up to 0.1 ms in the recording, so shorter steps are mostly marks; a recording this many
# times longer than the step, or a step this much of which it does not show, speaks of something else.
CPU_LEAST_STEP_NS = 100_000
CPU_MOST_OVERHEAD = 5.0
CPU_MOST_OTHER = 0.30
# Without a GPU: recorded steps that differ by more than this from the unprofiled ones, the cost of recording apart,
# were other steps, and their parts are not those of the step that was timed.
CPU_MOST_OFF = 0.30
