"""What a device can do at most: data-sheet peaks, and what a large product or copy reaches.

Peaks are dense (never the doubled figures "with sparsity") and count accumulation in float32, as torch does it: half
of the fp16 headline figure on GeForce cards. Laptop chips, MIG slices and unknown names have no entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

REACHABLE_SHARE = 0.8  # of the peak, where nothing was measured
TERA, GIGA = 1e12, 1e9

# One direction of the link to the host, bytes per second: PCIe x16 by generation, and NVLink-C2C of the superchips.
PCIE3, PCIE4, PCIE5, C2C = 15.75, 31.5, 63.0, 450.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """One device's ceilings in FLOP/s and bytes/s.

    Attributes:
        name: the table's name of the device.
        peak_flops: dtype → dense peak of a product in it, with Tensor Cores where it has them. Keys: ``fp64``, ``fp32``
            (without Tensor Cores), ``tf32``, ``fp16``, ``bf16``, ``fp8``; a dtype without units of its own is left out.
        plain_flops: dtype → peak without Tensor Cores.
        reachable_flops: dtype → what a large product reaches.
        peak_bandwidth, reachable_bandwidth: device memory, reads and writes together.
        host_link: one direction between host and device.
        has_tensor_cores: it has NVIDIA's Tensor Cores; other makers' matrix units are not judged.
        maker: ``NVIDIA`` or ``AMD``.
        measured: keys (dtypes, ``bandwidth``, ``host_link``) whose reachable figure was measured; the others are
            ``REACHABLE_SHARE`` of the peak.
        source: where the peaks are from.
    """

    name: str
    peak_flops: Mapping[str, float]
    plain_flops: Mapping[str, float]
    reachable_flops: Mapping[str, float]
    peak_bandwidth: float
    reachable_bandwidth: float
    host_link: float
    has_tensor_cores: bool
    maker: str
    measured: frozenset[str]
    source: str


@dataclass(frozen=True, slots=True)
class _Family:
    source: str
    link: float
    half: float
    brain: float
    tensor_cores: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """TFLOP/s and GB/s; ``pattern`` is what the trace calls it, by default its name."""

    name: str
    fp64: float
    fp32: float
    tf32: float | None
    fp16: float | None
    bf16: float | None
    fp8: float | None
    bandwidth: float
    pattern: str = ""
    link: float | None = None


# What the rows of one kind share: source (empty = the device's own data sheet), link to the host, rates of fp16 and
# bf16 without Tensor Cores in units of the fp32 rate, Tensor Cores. The first match wins: longer names stand first.
# fmt: off
_TABLE: tuple[tuple[_Family, tuple[_Row, ...]], ...] = (
    # name                         fp64    fp32    tf32    fp16    bf16     fp8    GB/s  name in the trace
    (_Family("", C2C, 2, 2, True), (
        _Row("GB300",                1.3,     80,   1250,   2500,   2500,   5000,   8000),
        _Row("GB200",                 40,     80,   1250,   2500,   2500,   5000,   8000),
        _Row("GH200 144GB",           67,     67,  494.7,  989.4,  989.4, 1978.9,   4900, r"GH200 144G"),
        _Row("GH200 96GB",            67,     67,  494.7,  989.4,  989.4, 1978.9,   4000, r"GH200\b"),
    )),
    (_Family("", PCIE5, 2, 2, True), (
        _Row("B300",                 1.2,     75,   1125,   2250,   2250,   4500,   8000),
        _Row("B200",                  37,     75,   1125,   2250,   2250,   4500,   7700),
        _Row("H200 NVL",              60,     60,  417.5,  835.5,  835.5, 1670.5,   4800),
        _Row("H200",                  67,     67,  494.7,  989.4,  989.4, 1978.9,   4800),
        _Row("H100 PCIe",             51,     51,    378,    756,    756,   1513,   2000),
        _Row("H100 NVL",              60,     60,  417.5,  835.5,  835.5, 1670.5,   3938),
        _Row("H100 SXM",              67,     67,  494.7,  989.4,  989.4, 1978.9,   3350, r"H100 80GB HBM3|H100 SXM"),
        _Row("H800 PCIe",            0.8,     51,    378,    756,    756,   1513,   2000),
        _Row("H800",                   1,     67,  494.7,  989.4,  989.4, 1978.9,   3350),
        _Row("H20",                    1,     44,     74,    148,    148,    296,   4000),
    )),
    (_Family("", PCIE4, 4, 2, True), (
        _Row("A100 SXM 80GB",       19.5,   19.5,    156,    312,    312,   None,   2039, r"A100[- ]SXM\d?[- ]80GB"),
        _Row("A100 PCIe 80GB",      19.5,   19.5,    156,    312,    312,   None,   1935, r"A100 80GB PCIe"),
        _Row("A100 40GB", 19.5, 19.5, 156, 312, 312, None, 1555, r"A100[- ](SXM\d?[- ]40|PCIE-40|PG509)"),
        _Row("A800 80GB", 9.7, 19.5, 156, 312, 312, None, 1935, r"A800[- ]SXM\d?[- ]80GB|A800 80GB"),
        _Row("A30",                 10.3,   10.3,     82,    165,    165,   None,    933),
    )),
    (_Family("", PCIE4, 1, 1, True), (
        _Row("A40",                 0.58,   37.4,   74.8,  149.7,  149.7,   None,    696),
        _Row("A10G",                0.49,   31.5,     35,     70,     70,   None,    600),
        _Row("A10",                 0.49,   31.2,   62.5,    125,    125,   None,    600),
        _Row("A2",                  0.07,    4.5,      9,     18,     18,   None,    200, link=PCIE4 / 2),
        _Row("L40S",                 1.4,   91.6,    183,  362.1,  362.1,    733,    864),
        _Row("L40",                  1.4,   90.5,   90.5,    181,    181,    362,    864),
        _Row("L4",                  0.47,   30.3,     60,    121,    121,  242.5,    300),
        _Row("RTX 6000 Ada",         1.4,   91.1,  182.1,  364.2,  364.2,  728.5,    960),
        _Row("RTX A5000",           0.43,   27.8,   55.6,  111.1,  111.1,   None,    768),
        _Row("RTX A4000",            0.3,   19.2,   38.3,   76.7,   76.7,   None,    448),
    )),
    (_Family("", PCIE3, 2, 1, True), (
        _Row("V100S",                8.2,   16.4,   None,    130,   None,   None,   1134),
        _Row("V100 PCIe",              7,     14,   None,    112,   None,   None,    900, r"V100[- ](PCIE|FHHL)"),
        _Row("V100 SXM2",            7.8,   15.7,   None,    125,   None,   None,    900, r"V100\b"),
        _Row("TITAN V",             7.45,   14.9,   None,    119,   None,   None,    653),
        _Row("T4",                  0.25,    8.1,   None,     65,   None,   None,    320),
    )),
    (_Family("", PCIE5, 1, 1, True), (
        _Row("RTX PRO 6000 Blackwell Server",   1.9,    120,    234,    468,    468,    937,   1597),
        _Row("RTX PRO 6000 Blackwell", 1.9, 125, 252, 503.8, 503.8, 1007.6, 1792, r"RTX PRO 6000 Blackwell Work"),
    )),
    (_Family("NVIDIA Ampere GA102 white paper", PCIE4, 1, 1, True), (
        _Row("RTX A6000",            0.6,   38.7,   77.4,  154.8,  154.8,   None,    768),
        _Row("RTX 3090 Ti",          0.6,     40,     40,     80,     80,   None,   1008),
        _Row("RTX 3090",             0.6,   35.6,   35.6,     71,     71,   None,    936),
        _Row("RTX 3080 Ti",          0.5,   34.1,   34.1,   68.2,   68.2,   None,    912),
        _Row("RTX 3080",             0.5,   29.8,   29.8,   59.5,   59.5,   None,    760),
        _Row("RTX 3070 Ti",          0.3,   21.7,   21.7,   43.5,   43.5,   None,    608),
        _Row("RTX 3070",             0.3,   20.3,   20.3,   40.6,   40.6,   None,    448),
        _Row("RTX 3060 Ti",          0.3,   16.2,   16.2,   32.4,   32.4,   None,    448),
        _Row("RTX 3060",             0.2,   12.7,   12.7,   25.5,   25.5,   None,    360),
    )),
    (_Family("NVIDIA Turing architecture white paper", PCIE3, 2, 1, True), (
        _Row("TITAN RTX", 0.51, 16.3, None, 130.5, None, None, 672, r"Quadro RTX [68]000|TITAN RTX"),
        _Row("RTX 2080 Ti",         0.42,   13.4,   None,   53.8,   None,   None,    616),
        _Row("RTX 2080 SUPER",      0.35,   11.2,   None,   44.6,   None,   None,    496),
        _Row("RTX 2080",            0.31,   10.1,   None,   40.3,   None,   None,    448),
        _Row("RTX 2070",            0.23,    7.5,   None,   29.9,   None,   None,    448, r"RTX 2070\b(?! SUPER)"),
    )),
    (_Family("NVIDIA RTX Blackwell architecture white paper", PCIE5, 1, 1, True), (
        _Row("RTX 5090 D",           1.6,  104.8,  104.8,  209.5,  209.5,    419,   1792),
        _Row("RTX 5090",             1.6,  104.8,  104.8,  209.5,  209.5,    419,   1792),
        _Row("RTX 5080",             0.9,   56.3,   56.3,  112.6,  112.6,  225.1,    960),
        _Row("RTX 5070 Ti",          0.7,   43.9,   43.9,   87.9,   87.9,  175.8,    896),
        _Row("RTX 5070",             0.5,   30.9,   30.9,   61.7,   61.7,  123.5,    672),
    )),
    (_Family("NVIDIA Ada architecture white paper", PCIE4, 1, 1, True), (
        _Row("RTX 4090",             1.3,   82.6,   82.6,  165.2,  165.2,  330.3,   1008),
        _Row("RTX 4080 SUPER",       0.8,   52.2,   52.2,  104.4,  104.4,  208.9,    736),
        _Row("RTX 4080",             0.8,   48.7,   48.7,   97.5,   97.5,  194.9,    717),
        _Row("RTX 4070 Ti SUPER",    0.7,   44.1,   44.1,   88.2,   88.2,  176.4,    672),
        _Row("RTX 4070 Ti",          0.6,   40.1,   40.1,   80.2,   80.2,  160.4,    504),
        _Row("RTX 4070 SUPER",       0.6,   35.5,   35.5,     71,     71,    142,    504),
        _Row("RTX 4070",             0.5,   29.1,   29.1,   58.3,   58.3,  116.6,    504),
        _Row("RTX 4060 Ti",          0.3,   22.1,   22.1,   44.1,   44.1,   88.3,    288, link=PCIE4 / 2),
        _Row("RTX 4060",             0.2,   15.1,   15.1,   30.2,   30.2,   60.5,    272, link=PCIE4 / 2),
    )),
    (_Family("NVIDIA Turing architecture white paper", PCIE3, 2, 1, False), (
        _Row("GTX 1660 Ti",         0.17,    5.4,   None,   10.9,   None,   None,    288),
        _Row("GTX 1660 SUPER",      0.16,      5,   None,     10,   None,   None,    336),
        _Row("GTX 1660",            0.16,      5,   None,     10,   None,   None,    192),
    )),
    (_Family("NVIDIA Pascal data sheet", PCIE3, 1, 1, False), (
        _Row("GTX 1080 Ti",         0.35,   11.3,   None,   None,   None,   None,    484),
        _Row("P40",                 0.37,     12,   None,   None,   None,   None,    346),
    )),
    (_Family("NVIDIA Pascal data sheet", PCIE3, 2, 1, False), (
        _Row("P100 PCIe",            4.7,    9.3,   None,   18.7,   None,   None,    732, r"P100-PCIE"),
        _Row("P100 SXM2",            5.3,   10.6,   None,   21.2,   None,   None,    732, r"P100\b"),
        _Row("Quadro GP100",         5.2,   10.3,   None,   20.7,   None,   None,    717, r"GP100\b"),
    )),
    (_Family("AMD Instinct data sheet", PCIE5, 1, 1, False), (
        _Row("MI325X",             163.4,  163.4,  653.7, 1307.4, 1307.4, 2614.9,   6000),
        _Row("MI300X",             163.4,  163.4,  653.7, 1307.4, 1307.4, 2614.9,   5300),
    )),
    (_Family("AMD Instinct data sheet", PCIE4, 1, 1, False), (
        _Row("MI210",               45.3,   45.3,   None,    181,    181,   None,   1638),
    )),
)
# fmt: on

# Measured: an 8192³ product, a device copy (read + write), pinned host to device (FLOP/s and bytes/s).
_MEASURED: dict[str, dict[str, float]] = {
    "H200": {
        "bf16": 779 * TERA,
        "fp16": 751 * TERA,
        "tf32": 397 * TERA,
        "fp32": 51 * TERA,
        "bandwidth": 4.25 * TERA,
        "host_link": 55 * GIGA,
    },
}

# Other chips and slices under a known name.
_OTHER_CHIP = re.compile(r"\bMIG\b|Laptop|Max-Q|\bMobile\b|vGPU|\bGRID\b|-\d+[QCB]\b", re.IGNORECASE)


def ceilings_of(device_name: str) -> Ceilings | None:
    """The ceilings of the device that the trace or torch calls ``device_name``; ``None`` = not in the table.

    Example:
        >>> ceilings_of("NVIDIA H200").peak_flops["bf16"]
        989400000000000.0
        >>> ceilings_of("NVIDIA GeForce RTX 3080 Laptop GPU") is None
        True
    """
    if _OTHER_CHIP.search(device_name):
        return None
    for family, rows in _TABLE:
        for row in rows:
            pattern = row.pattern or rf"{re.escape(row.name)}\b"
            if re.search(rf"(?<![A-Za-z0-9])(?:{pattern})", device_name):
                return _ceilings(family, row)
    return None


def _ceilings(family: _Family, row: _Row) -> Ceilings:
    given = {key: getattr(row, key) for key in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")}
    peak = {key: value * TERA for key, value in given.items() if value is not None}
    plain = {"fp32": row.fp32, "tf32": row.fp32, "fp16": row.fp32 * family.half, "bf16": row.fp32 * family.brain}
    measured = _MEASURED.get(row.name, {})
    bandwidth, link = row.bandwidth * GIGA, (row.link or family.link) * GIGA
    source = family.source or f"NVIDIA {row.name} data sheet"
    return Ceilings(
        name=row.name,
        peak_flops=peak,
        plain_flops={key: value * TERA for key, value in plain.items()},
        reachable_flops={key: measured.get(key, REACHABLE_SHARE * value) for key, value in peak.items()},
        peak_bandwidth=bandwidth,
        reachable_bandwidth=measured.get("bandwidth", REACHABLE_SHARE * bandwidth),
        host_link=measured.get("host_link", REACHABLE_SHARE * link),
        has_tensor_cores=family.tensor_cores,
        maker=source.split()[0],
        measured=frozenset(measured),
        source=source,
    )
