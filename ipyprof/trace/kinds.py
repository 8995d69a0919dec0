"""What an event, a call or a kernel name means: the only place that knows names."""

from __future__ import annotations

import enum
import re


class Kind(enum.IntEnum):
    """What an event is. Device work is ``KERNEL`` to ``COMMUNICATION``."""

    OPERATOR = 0
    ANNOTATION = 1
    STEP = 2
    LINE = 3
    LOADER = 4
    CALL = 5
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    COMMUNICATION = 9
    GPU_ANNOTATION = 10
    PYTHON = 11
    CUDA_SYNC = 12
    OTHER = 13


DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.COMMUNICATION)


class Role(enum.IntEnum):
    """What a CUDA or HIP API call does to host and device."""

    OTHER = 0
    LAUNCH = 1
    GRAPH_LAUNCH = 2
    COPY = 3
    MEMSET = 4
    SYNC_DEVICE = 5
    SYNC_STREAM = 6
    SYNC_EVENT = 7
    ALLOC = 8
    FREE = 9
    HOST_ALLOC = 10
    EVENT_RECORD = 11
    STREAM_WAIT = 12


LINE_PREFIX = "## line "
STEP_PREFIX = "ProfilerStep#"
