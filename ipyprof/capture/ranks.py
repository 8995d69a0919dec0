"""Where the ranks of a job meet: small messages through the job's own key-value store, never a collective.

``torch.distributed`` and its launcher are the engine. The store is there before any process group and stays when a rank
dies, every wait has an end, and nothing is sent over the user's NCCL or Gloo groups: whatever a rank does here, the
job's collectives are as they were.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

WAIT_S = 60.0
"""A rank that has not come this long after rank 0 is missing."""
WAIT_AFTER_ERROR_S = 5.0
"""The same after an exception, which must not be held up."""
ANSWER_S = 15.0
"""How much longer than rank 0 the others wait for what it decides."""
CONNECT_S = 5.0

_POLL_S = 0.02
_PREFIX = "ipyprof"
_PART_BYTES = 1 << 19  # a store takes values of some MB; summaries of many collectives come in parts


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among the ranks of its job."""

    rank: int
    size: int


def world() -> World | None:
    """The job that this process is a rank of, or ``None`` for a single process.

    The process group says so, else the environment as ``torchrun`` sets it.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        found = World(rank=distributed.get_rank(), size=distributed.get_world_size())
    else:
        rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if not (rank.isdigit() and size.isdigit() and int(rank) < int(size)):
            return None
        found = World(rank=int(rank), size=int(size))
    return found if found.size > 1 else None


def job_store() -> Any | None:
    """The store that all ranks of the job reach, or ``None``. Guarded: the process group's own is a private name."""
    distributed = torch.distributed
    if not distributed.is_available():
        return None
    if distributed.is_initialized():
        get = getattr(distributed.distributed_c10d, "_get_default_store", None)
        try:
            if get is not None:
                return get()
        except Exception:  # no default group any more
            pass
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    # Elsewhere rank 0 opens that port when the process group is made, and nobody listens before.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not address or not port.isdigit():
        return None
    try:
        # The launcher's own store; this connects and never listens.
        return distributed.TCPStore(address, int(port), is_master=False, timeout=timedelta(seconds=CONNECT_S))
    except Exception:  # nobody listens there
        return None


class Meeting:
    """The messages of one run, in a part of the store of their own.

    Args:
        here: this rank.
        store: of the job.

    Raises:
        Exception: the store does not answer.
    """

    def __init__(self, here: World, store: Any) -> None:
        self.here = here
        self._store = store
        # The n-th run of each rank belongs together.
        self._number = store.add(f"{_PREFIX}/runs/{here.rank}", 1)

    def send(self, name: str, message: bytes) -> None:
        """Leave a message under a name.

        Raises:
            Exception: the store does not answer.
        """
        parts = [message[at : at + _PART_BYTES] for at in range(0, len(message), _PART_BYTES)] or [b""]
        for number, part in enumerate(parts):
            self._store.set(self._key(name, number), part)
        # Last, so that a message is whole when its length is there.
        self._store.set(self._key(name), str(len(parts)))

    def receive(self, name: str, wait_s: float, *, ended: Callable[[], bool] = bool) -> bytes | None:
        """The message of that name, or ``None`` when it has not come after ``wait_s`` or the store is gone."""
        return self.gather((name,), wait_s, ended=ended).get(name)

    def gather(
        self,
        names: Iterable[str],
        wait_s: float,
        *,
        waiting: Callable[[int], None] | None = None,
        ended: Callable[[], bool] = bool,
    ) -> dict[str, bytes]:
        """The messages of these names that have come within ``wait_s``.

        Args:
            waiting: is told once a second how many have not come.
            ended: whether there is nothing to wait for any more.
        """
        missing, found = list(names), {}
        end = time.monotonic() + wait_s
        said = time.monotonic()
        try:
            while missing:
                here = [name for name in missing if self._store.check([self._key(name)])]
                found.update({name: self._read(name) for name in here})
                missing = [name for name in missing if name not in found]
                now = time.monotonic()
                if not missing or now >= end or ended():
                    break
                if waiting is not None and now - said > 1.0:
                    said = now
                    waiting(len(missing))
                time.sleep(_POLL_S)
        except Exception:  # the store went with the process that held it
            return found
        return found

    def _read(self, name: str) -> bytes:
        count = int(self._store.get(self._key(name)))
        return b"".join(self._store.get(self._key(name, number)) for number in range(count))

    def _key(self, name: str, part: int | None = None) -> str:
        return f"{_PREFIX}/{self._number}/{name}" + ("" if part is None else f"/{part}")


@contextmanager
def termination_deferred() -> Iterator[Callable[[], bool]]:
    """A function that says whether this process was asked to end (SIGTERM) in the block; it ends behind the block.

    The launcher ends all ranks within a tenth of a second when one has died, and waits for them for 30 s: enough to say
    what is known. No code of the user's runs in the block. Outside of the main thread, and where there is a handler
    that Python does not know, nothing is changed.
    """
    asked: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGTERM, before)
        if asked:
            signal.raise_signal(signal.SIGTERM)


def host_name() -> str | None:
    """Name of this machine, or ``None``."""
    return socket.gethostname() or None


def bus_id() -> str | None:
    """PCI bus id of torch's current device, such as ``0000:18:00``, or ``None``."""
    if not torch.cuda.is_initialized():
        return None
    known = torch.cuda.get_device_properties(torch.cuda.current_device())
    parts = [getattr(known, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    domain, bus, device = (part if isinstance(part, int) else -1 for part in parts)
    return None if min(domain, bus, device) < 0 else f"{domain:04x}:{bus:02x}:{device:02x}"
