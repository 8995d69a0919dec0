"""The table of causes: one file each, with its page of explanation beside it, and one row here."""

from __future__ import annotations

from ipyprof.diagnosis.cause import Cause
from ipyprof.diagnosis.causes.allocator import Allocator
from ipyprof.diagnosis.causes.communication import Communication
from ipyprof.diagnosis.causes.compute_bound import ComputeBound
from ipyprof.diagnosis.causes.cpu_bound import CpuBound
from ipyprof.diagnosis.causes.data_loading import DataLoading
from ipyprof.diagnosis.causes.host_sync import HostSync
from ipyprof.diagnosis.causes.inconclusive import Inconclusive
from ipyprof.diagnosis.causes.launch_bound import LaunchBound
from ipyprof.diagnosis.causes.memory_bound import MemoryBound
from ipyprof.diagnosis.causes.misaligned_shapes import MisalignedShapes
from ipyprof.diagnosis.causes.straggler import Straggler
from ipyprof.diagnosis.causes.tensor_cores import TensorCores
from ipyprof.diagnosis.causes.transfer import Transfer
from ipyprof.diagnosis.causes.unlike_steps import UnlikeSteps
from ipyprof.diagnosis.causes.unstable_shapes import UnstableShapes

CAUSES: tuple[Cause, ...] = (
    DataLoading(),
    HostSync(),
    Allocator(),
    Transfer(),
    Communication(),
    UnstableShapes(),
    UnlikeSteps(),
    CpuBound(),
    LaunchBound(),
    TensorCores(),
    MisalignedShapes(),
    MemoryBound(),
    Straggler(),
)
VERDICTS: tuple[Cause, ...] = (ComputeBound(), Inconclusive())
"""What a verdict may say beside the causes."""


def cause_of(id: str) -> Cause:
    """The cause or verdict with this identifier; one that is made of the identifier where there is none."""
    return next((cause for cause in (*CAUSES, *VERDICTS) if cause.id == id), None) or _Unlisted(id)


class _Unlisted(Cause):
    """A report from another version names it."""

    def __init__(self, id: str) -> None:
        self.id = self.name = self.checked = id
        self.subject = (id, " holds this step back")
