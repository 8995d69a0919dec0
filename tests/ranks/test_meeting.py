"""Where ranks meet: messages through a store, waits that end, and what is kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from ipyprof.errors import OptionError
from ipyprof.options import Options
from ipyprof.ranks import job as ranks
from ipyprof.ranks.files import judge
from ipyprof.ranks.job import Meeting, World, chosen, facts_of_process, packed, termination_deferred, unpacked
from ipyprof.ranks.summary import call_the_roll
from ipyprof.trace.live import DeviceState, LiveRecord
from tests.simulated_ranks import MS, Job, simulate


@pytest.fixture
def store() -> Any:
    """A store within this process."""
    return dist.HashStore()


def test_messages_arrive_whole(store: Any) -> None:
    """A message of over half a MB goes in parts."""
    first, second = (Meeting(World(rank=rank, size=2), store) for rank in (0, 1))
    large = os.urandom(1_300_000)
    second.send("summary/1", large)
    second.send("empty", b"")

    assert first.gather(["summary/1", "empty"], 1.0) == {"summary/1": large, "empty": b""}


def test_runs_are_kept_apart(store: Any) -> None:
    """The second run of a rank does not read the first run's messages."""
    Meeting(World(rank=1, size=2), store).send("summary/1", b"old")
    first = Meeting(World(rank=0, size=2), store)
    assert first.receive("summary/1", 0.1) == b"old"

    again = Meeting(World(rank=0, size=2), store)

    assert again.receive("summary/1", 0.1) is None


def test_a_wait_ends(store: Any) -> None:
    # given three ranks of which one never comes
    first = Meeting(World(rank=0, size=3), store)
    Meeting(World(rank=1, size=3), store).send("summary/1", b"here")
    # when rank 0 waits for a fifth of a second
    begin = time.monotonic()
    found = first.gather(["summary/1", "summary/2"], 0.2)
    # then it has what has come, and goes on
    assert found == {"summary/1": b"here"}
    assert time.monotonic() - begin < 2.0


def test_a_store_that_goes_away_ends_the_wait() -> None:
    class Gone:
        """A store whose holder has died."""

        def add(self, _name: str, _amount: int) -> int:
            return 1

        def check(self, _names: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    assert Meeting(World(rank=1, size=2), Gone()).receive("decision", 60.0) is None


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


def test_traces_are_kept_of_few_ranks_and_why() -> None:
    """First, last, one of each host, the late one, and a typical one."""
    roll = call_the_roll(simulate(Job(ranks=24, late={13: ("loader", 31 * MS)})))

    assert chosen(roll, judge(roll)) == {
        0: "typical, first, first on node0",
        8: "first on node1",
        13: "late",
        16: "first on node2",
        23: "last",
    }


def test_traces_of_balanced_ranks_on_one_host() -> None:
    roll = call_the_roll([replace(one, facts=replace(one.facts, host="node0")) for one in simulate(Job(ranks=8))])

    assert chosen(roll, judge(roll)) == {0: "first", 7: "last"}


def test_messages_are_plain_values() -> None:
    """Nothing is unpickled: what comes from the store is data."""
    assert unpacked(packed({"1": "late"})) == {"1": "late"}
    for wrong in (b"no zlib", packed({})[:-3]):
        with pytest.raises(ValueError, match="message"):
            unpacked(wrong)


def test_what_the_driver_says_is_in_the_facts() -> None:
    state = DeviceState(
        sm_clock_mhz=1200,
        max_sm_clock_mhz=1980,
        slowed_by=("software power cap",),
        pcie_generation=4,
        pcie_width=8,
        max_pcie_generation=5,
        max_pcie_width=16,
    )
    facts = facts_of_process(LiveRecord(device_state=state, device_names={"0": "NVIDIA H200"}))

    assert (facts.gpu, facts.clock_mhz, facts.clock_limit_mhz) == ("NVIDIA H200", 1200, 1980)
    assert (facts.throttle, facts.pcie) == (("software power cap",), "gen 4 x8 of gen 5 x16")
    assert facts.host


def test_the_option_is_auto_or_nothing() -> None:
    """All meet at the end of the block."""
    assert Options(ranks="auto").at_end
    with pytest.raises(OptionError, match="ranks is auto or left out"):
        Options(ranks="all")
