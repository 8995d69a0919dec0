"""Where ranks meet: messages through a store, waits that end, and what is kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from ipyprof.errors import OptionError
from ipyprof.options import Options
from ipyprof.ranks import job as ranks
from ipyprof.ranks.job import Meeting, World, kept_ranks, termination_deferred, with_machine
from ipyprof.ranks.judge import judge
from ipyprof.ranks.summary import RankSummary
from ipyprof.trace.live import DeviceState, LiveRecord
from tests.simulated_ranks import MS, Job, simulate


@pytest.fixture
def store() -> Any:
    """A store within this process."""
    return dist.HashStore()


def test_summaries_arrive_and_runs_are_kept_apart(store: Any) -> None:
    """The second run of a rank does not read the first run's messages."""
    (sent,) = simulate(Job(ranks=2, buckets=500))[1:]
    Meeting(1, store).send("summary/1", sent)
    first, again = (Meeting(0, store) for _ in range(2))

    assert first.gather(["summary/1"], RankSummary, 0.1) == {"summary/1": sent}
    assert again.gather(["summary/1"], RankSummary, 0.1) == {}


def test_a_wait_ends(store: Any) -> None:
    # given three ranks of which one never comes
    first = Meeting(0, store)
    Meeting(1, store).send("decision", {1: "late"})
    # when rank 0 waits for a fifth of a second
    begin = time.monotonic()
    found = first.gather(["decision", "summary/2"], dict[int, str], 0.2)
    # then it has what has come, and goes on
    assert found == {"decision": {1: "late"}}
    assert time.monotonic() - begin < 2.0


def test_what_is_no_message_is_not_taken(store: Any) -> None:
    """Nothing is unpickled: what comes from the store is data of the expected type, or nothing."""
    first = Meeting(0, store)
    first.send("odd", ["no summary"])
    store.set("ipyprof/1/broken", b"no zlib")

    assert first.gather(["odd"], RankSummary, 0.1) == {}
    assert first.gather(["broken"], RankSummary, 0.1) == {}


def test_a_store_that_goes_away_ends_the_wait() -> None:
    class Gone:
        """A store whose holder has died."""

        def add(self, _name: str, _amount: int) -> int:
            return 1

        def check(self, _names: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    assert Meeting(1, Gone()).gather(["decision"], dict[int, str], 60.0) == {}


def test_sigterm_waits_until_the_report_is_there() -> None:
    # given a handler of the user's
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        # when SIGTERM comes while ranks meet
        with termination_deferred() as ended:
            assert not ended()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert ended()
            assert heard == []
        # then the user's handler hears it afterwards
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def look() -> None:
        with termination_deferred() as ended:
            seen.append((signal.getsignal(signal.SIGTERM) is before, ended()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert seen == [(True, False)]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, World(rank=3, size=8)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "x", "WORLD_SIZE": "8"}, None),
        ({"RANK": "9", "WORLD_SIZE": "8"}, None),
        ({}, None),
    ],
)
def test_the_environment_tells_the_rank(
    environment: dict[str, str], expected: World | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert ranks.world() == expected


def test_only_the_launchers_store_is_asked_before_there_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere nobody listens yet, and waiting for it would hold the block up."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")

    begin = time.monotonic()

    assert ranks.job_store() is None
    assert time.monotonic() - begin < 1.0


@pytest.mark.parametrize(
    ("job", "kept"),
    [
        (Job(ranks=24, late={13: ("loader", 31 * MS)}), {0: "first", 13: "late", 23: "last"}),
        (Job(ranks=8, late={7: ("loader", 31 * MS)}), {0: "first", 7: "late, last"}),
        (Job(ranks=8), {0: "first", 7: "last"}),
    ],
)
def test_traces_are_kept_of_few_ranks(job: Job, kept: dict[int, str]) -> None:
    assert kept_ranks(judge(simulate(job))) == kept


def test_what_the_driver_says_goes_along() -> None:
    state = DeviceState(
        sm_clock_mhz=1200,
        slowed_by=("software power cap",),
        pcie_generation=4,
        pcie_width=8,
        max_pcie_generation=5,
        max_pcie_width=16,
    )
    live = LiveRecord(device_state=state, device_names={"0": "NVIDIA H200"})

    found = with_machine(RankSummary(rank=0), live)

    assert (found.gpu, found.clock_mhz) == ("NVIDIA H200", 1200)
    assert (found.throttle, found.pcie) == (("software power cap",), "gen 4 x8 of gen 5 x16")
    assert found.host


def test_the_option_is_auto_or_nothing() -> None:
    """All meet at the end of the block."""
    assert Options(ranks="auto").at_end
    with pytest.raises(OptionError, match="ranks is auto or left out"):
        Options(ranks="all")
