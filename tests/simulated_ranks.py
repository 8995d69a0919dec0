"""Many ranks without a cluster: summaries of one simulated job, with planted delays, clock offsets and gaps.

    python -m tests.simulated_ranks [RANKS]

diagnoses that many (1,024 if not given) and prints how long it took and how much memory; the exit code is 1 when it
took over 10 s or 1 GB, or named the wrong rank.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ipyprof.ranks.collectives import CollectiveKind
from ipyprof.ranks.straggler import compare
from ipyprof.ranks.summary import RankSummary

MS = 1_000_000
UNIX_NS = 1_790_000_000 * 10**9
MOST_S, MOST_BYTES = 10.0, 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the simulated job does; times in ns.

    Attributes:
        ranks: in the world; per_host: ranks on one host.
        steps: recorded steps; buckets: all-reduces in one backward pass, which nothing waits for until its end.
        chained: each all-reduce is waited for before the work goes on, as with tensor parallelism.
        late: rank → (part, ns): the rank has so much more of ``loader``, ``compute``, ``host`` or ``copies`` in every
            step, before its first all-reduce; with ``chained``, spread over all of them.
        clock_offset: host number → ns that its clock is ahead.
        missing: ranks that left no summary.
        jitter: standard deviation of each rank's own work before a collective.
    """

    ranks: int = 4
    per_host: int = 8
    steps: int = 3
    buckets: int = 4
    chained: bool = False
    work: int = 40 * MS
    latency: int = 300_000
    late: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    clock_offset: Mapping[int, int] = field(default_factory=dict)
    missing: frozenset[int] = frozenset()
    jitter: int = 0
    seed: int = 0


def simulate(job: Job) -> tuple[RankSummary, ...]:
    """The summaries of the ranks that are not missing."""
    chance = random.Random(job.seed)
    present = [rank for rank in range(job.ranks) if rank not in job.missing]
    rows: dict[int, list[tuple[int, ...]]] = {rank: [] for rank in range(job.ranks)}
    free, done = dict.fromkeys(range(job.ranks), 0), 0
    for step in range(job.steps):
        begin = dict(free)
        for bucket in range(job.buckets):
            ready = {}
            for rank in range(job.ranks):
                share = (bucket + 1) / job.buckets
                extra = job.late.get(rank, ("", 0))[1]
                noise = round(chance.gauss(0, job.jitter)) if job.jitter else 0
                if job.chained:
                    ready[rank] = free[rank] + (job.work + extra) // job.buckets + noise
                else:
                    ready[rank] = begin[rank] + extra + round(job.work * share) + noise
            start = {rank: max(ready[rank], done) for rank in ready}
            done = max(start.values()) + job.latency
            joined = job.chained or bucket == job.buckets - 1
            for rank in range(job.ranks):
                rows[rank].append((0, step, ready[rank], start[rank], done, int(joined), 0))
                if joined:
                    free[rank] = done
    step_ns = done / job.steps
    return tuple(_summary(job, rank, rows[rank], step_ns) for rank in present)


def _summary(job: Job, rank: int, rows: Sequence[tuple[int, ...]], step_ns: float) -> RankSummary:
    part, extra = job.late.get(rank, ("", 0))
    own = {"compute": job.work / MS - 2.0, "copies": 0.0, "loader": 2.0, "runtime": 0.0, "host": 0.0}
    if part:
        own[part] += extra / MS
    forward, none = {"compute": own["compute"], "host": own["host"]}, {"compute": 0.0, "host": 0.0}
    members = tuple(range(job.ranks))
    kind = CollectiveKind(name="allreduce", group="0", members=members, size=job.ranks, message_bytes=50_000_000)
    host = rank // job.per_host
    return RankSummary(
        rank=rank,
        host=f"node{host}",
        gpu="NVIDIA H200",
        step_ms=step_ns / MS,
        breakdown={**own, "communication": step_ns / MS - sum(own.values()), "other": 0.0},
        world_size=job.ranks,
        # Every rank's trace has its own time zero.
        base_ns=UNIX_NS + job.clock_offset.get(host, 0) - rank * MS,
        has_gpu=True,
        steps=tuple(range(job.steps)),
        unprofiled_ms=step_ns / MS,
        busy_ms={key: own[key] for key in ("compute", "copies", "loader")},
        phases_ms={"forward": forward, "backward": none, "optimizer": none},
        kernels=1000.0 + (50.0 if part == "compute" else 0.0),
        kinds=(kind,),
        rows=tuple((kind, step, *(at + rank * MS for at in times[:3]), *times[3:]) for kind, step, *times in rows),  # type: ignore[misc]
    )


def large_job(ranks: int) -> Job:
    """A job over many hosts: one late loader, one rank that is half as late, clocks seconds apart, ranks missing."""
    chance = random.Random(1)
    return Job(
        ranks=ranks,
        buckets=60,
        late={ranks * 5 // 8: ("loader", 31 * MS), ranks // 3: ("compute", 15 * MS)},
        clock_offset={host: round(chance.uniform(-5e9, 5e9)) for host in range(ranks // 8)},
        missing=frozenset((ranks // 2, ranks // 2 + 1, ranks - 1)),
        jitter=50_000,
    )


def main() -> int:
    """0 when the planted rank was named within the limits, else 1."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    job = large_job(ranks)
    texts = [msgspec.json.encode(one) for one in simulate(job)]
    begin = time.perf_counter()
    found = compare([msgspec.json.decode(text, type=RankSummary) for text in texts])
    took = time.perf_counter() - begin
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sizes = f"{sum(map(len, texts)) / len(texts) / 1000:.1f} kB each"
    print(f"{len(texts)} summaries, {sizes}: {took:.2f} s, {most / 1e6:.0f} MB at most, with the generator")
    print(found.ranks.state, found.ranks.straggler, found.clocks and found.clocks.residual_ns)
    right = found.ranks.straggler is not None and found.ranks.straggler.rank == ranks * 5 // 8
    return 0 if right and took < MOST_S and most < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
