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
class _Row:
    """TFLOP/s and GB/s. ``half`` and ``brain``: fp16 and bf16 rate without Tensor Cores, in units of the fp32 rate."""

    pattern: str
    name: str
    source: str
    fp64: float
    fp32: float
    tf32: float | None
    fp16: float | None
    bf16: float | None
    fp8: float | None
    bandwidth: float
    link: float
    half: float
    brain: float
    tensor_cores: bool = True


_VOLTA = "NVIDIA V100 / V100S data sheet"
_TURING = "NVIDIA Turing architecture white paper"
_AMPERE = "NVIDIA A100 data sheet"
_GA102 = "NVIDIA Ampere GA102 white paper"
_ADA = "NVIDIA Ada architecture white paper"
_HOPPER = "NVIDIA H100 data sheet"
_BLACKWELL = "NVIDIA HGX B200 / B300 data sheet"
_RTX50 = "NVIDIA RTX Blackwell architecture white paper"
_PASCAL = "NVIDIA Pascal data sheet"
_AMD = "AMD Instinct data sheet"

# First match wins, so the longer name of a family stands first.
# fmt: off
_ROWS: tuple[_Row, ...] = (
    #     name in the trace                  name                 source                   fp64   fp32  tf32   fp16   bf16    fp8      GB/s   link
    _Row(r"GB300\b",                         "GB300",             "NVIDIA GB300 NVL72 data sheet", 1.3, 80, 1250, 2500, 2500, 5000, 8000, C2C, 2, 2),
    _Row(r"GB200\b",                         "GB200",             "NVIDIA GB200 NVL72 data sheet", 40, 80, 1250, 2500, 2500, 5000, 8000, C2C, 2, 2),
    _Row(r"B300\b",                          "B300",              _BLACKWELL,               1.2,    75,  1125,  2250,  2250,  4500,  8000, PCIE5, 2, 2),
    _Row(r"B200\b",                          "B200",              _BLACKWELL,                37,    75,  1125,  2250,  2250,  4500,  7700, PCIE5, 2, 2),
    _Row(r"GH200 144G",                      "GH200 144GB",       "NVIDIA GH200 data sheet", 67,    67, 494.7, 989.4, 989.4, 1978.9, 4900, C2C, 2, 2),
    _Row(r"GH200\b",                         "GH200 96GB",        "NVIDIA GH200 data sheet", 67,    67, 494.7, 989.4, 989.4, 1978.9, 4000, C2C, 2, 2),
    _Row(r"H200 NVL",                        "H200 NVL",          "NVIDIA H200 data sheet",  60,    60, 417.5, 835.5, 835.5, 1670.5, 4800, PCIE5, 2, 2),
    _Row(r"H200\b",                          "H200",              "NVIDIA H200 data sheet",  67,    67, 494.7, 989.4, 989.4, 1978.9, 4800, PCIE5, 2, 2),
    _Row(r"H100 PCIe",                       "H100 PCIe",         _HOPPER,                   51,    51,   378,   756,   756,  1513,  2000, PCIE5, 2, 2),
    _Row(r"H100 NVL",                        "H100 NVL",          _HOPPER,                   60,    60, 417.5, 835.5, 835.5, 1670.5, 3938, PCIE5, 2, 2),
    _Row(r"H100 80GB HBM3|H100 SXM",         "H100 SXM",          _HOPPER,                   67,    67, 494.7, 989.4, 989.4, 1978.9, 3350, PCIE5, 2, 2),
    _Row(r"H800 PCIe",                       "H800 PCIe",         "NVIDIA H800 data sheet", 0.8,    51,   378,   756,   756,  1513,  2000, PCIE5, 2, 2),
    _Row(r"H800\b",                          "H800",              "NVIDIA H800 data sheet",   1,    67, 494.7, 989.4, 989.4, 1978.9, 3350, PCIE5, 2, 2),
    _Row(r"H20\b",                           "H20",               "NVIDIA H20 data sheet",    1,    44,    74,   148,   148,   296,  4000, PCIE5, 2, 2),
    _Row(r"A100[- ]SXM\d?[- ]80GB",          "A100 SXM 80GB",     _AMPERE,                 19.5,  19.5,   156,   312,   312,  None,  2039, PCIE4, 4, 2),
    _Row(r"A100 80GB PCIe",                  "A100 PCIe 80GB",    _AMPERE,                 19.5,  19.5,   156,   312,   312,  None,  1935, PCIE4, 4, 2),
    _Row(r"A100[- ](SXM\d?|PCIE)[- ]40GB",   "A100 40GB",         _AMPERE,                 19.5,  19.5,   156,   312,   312,  None,  1555, PCIE4, 4, 2),
    _Row(r"A800[- ]SXM\d?[- ]80GB|A800 80GB", "A800 80GB",        "NVIDIA A800 data sheet", 9.7,  19.5,   156,   312,   312,  None,  1935, PCIE4, 4, 2),
    _Row(r"A30\b",                           "A30",               "NVIDIA A30 data sheet", 10.3,  10.3,    82,   165,   165,  None,   933, PCIE4, 4, 2),
    _Row(r"A40\b",                           "A40",               "NVIDIA A40 data sheet", 0.58,  37.4,  74.8, 149.7, 149.7,  None,   696, PCIE4, 1, 1),
    _Row(r"A10G\b",                          "A10G",              "NVIDIA A10G data sheet", 0.49, 31.5,    35,    70,    70,  None,   600, PCIE4, 1, 1),
    _Row(r"A10\b",                           "A10",               "NVIDIA A10 data sheet", 0.49,  31.2,  62.5,   125,   125,  None,   600, PCIE4, 1, 1),
    _Row(r"A2\b",                            "A2",                "NVIDIA A2 data sheet",  0.07,   4.5,     9,    18,    18,  None,   200, PCIE4 / 2, 1, 1),
    _Row(r"L40S\b",                          "L40S",              "NVIDIA L40S data sheet", 1.4,  91.6,   183, 362.1, 362.1,   733,   864, PCIE4, 1, 1),
    _Row(r"L40\b",                           "L40",               "NVIDIA L40 data sheet", 1.4,   90.5,  90.5,   181,   181,   362,   864, PCIE4, 1, 1),
    _Row(r"L4\b",                            "L4",                "NVIDIA L4 data sheet",  0.47,  30.3,    60,   121,   121, 242.5,   300, PCIE4, 1, 1),
    _Row(r"V100S",                           "V100S",             _VOLTA,                   8.2,  16.4,  None,   130,  None,  None,  1134, PCIE3, 2, 1),
    _Row(r"V100[- ](PCIE|FHHL)",             "V100 PCIe",         _VOLTA,                     7,    14,  None,   112,  None,  None,   900, PCIE3, 2, 1),
    _Row(r"V100\b",                          "V100 SXM2",         _VOLTA,                   7.8,  15.7,  None,   125,  None,  None,   900, PCIE3, 2, 1),
    _Row(r"TITAN V\b",                       "TITAN V",           "NVIDIA TITAN V product page", 7.45, 14.9, None, 119, None, None,  653, PCIE3, 2, 1),
    _Row(r"T4\b",                            "T4",                "NVIDIA T4 data sheet",  0.25,   8.1,  None,    65,  None,  None,   320, PCIE3, 2, 1),
    _Row(r"RTX PRO 6000 Blackwell Server",   "RTX PRO 6000 Blackwell Server", "NVIDIA RTX PRO 6000 data sheet", 1.9, 120, 234, 468, 468, 937, 1597, PCIE5, 1, 1),
    _Row(r"RTX PRO 6000 Blackwell Work",     "RTX PRO 6000 Blackwell", "NVIDIA RTX PRO 6000 data sheet", 1.9, 125, 252, 503.8, 503.8, 1007.6, 1792, PCIE5, 1, 1),
    _Row(r"RTX 6000 Ada",                    "RTX 6000 Ada",      "NVIDIA RTX 6000 Ada data sheet", 1.4, 91.1, 182.1, 364.2, 364.2, 728.5, 960, PCIE4, 1, 1),
    _Row(r"RTX A6000",                       "RTX A6000",         _GA102,                   0.6,  38.7,  77.4, 154.8, 154.8,  None,   768, PCIE4, 1, 1),
    _Row(r"RTX A5000",                       "RTX A5000",         "NVIDIA RTX A5000 data sheet", 0.43, 27.8, 55.6, 111.1, 111.1, None, 768, PCIE4, 1, 1),
    _Row(r"RTX A4000",                       "RTX A4000",         "NVIDIA RTX A4000 data sheet", 0.3, 19.2, 38.3, 76.7, 76.7, None,  448, PCIE4, 1, 1),
    _Row(r"Quadro RTX [68]000|TITAN RTX",    "TITAN RTX",         _TURING,                 0.51,  16.3,  None, 130.5,  None,  None,   672, PCIE3, 2, 1),
    _Row(r"RTX 5090 D",                      "RTX 5090 D",        _RTX50,                   1.6, 104.8, 104.8, 209.5, 209.5,   419,  1792, PCIE5, 1, 1),
    _Row(r"RTX 5090\b",                      "RTX 5090",          _RTX50,                   1.6, 104.8, 104.8, 209.5, 209.5,   419,  1792, PCIE5, 1, 1),
    _Row(r"RTX 5080\b",                      "RTX 5080",          _RTX50,                   0.9,  56.3,  56.3, 112.6, 112.6, 225.1,   960, PCIE5, 1, 1),
    _Row(r"RTX 5070 Ti",                     "RTX 5070 Ti",       _RTX50,                   0.7,  43.9,  43.9,  87.9,  87.9, 175.8,   896, PCIE5, 1, 1),
    _Row(r"RTX 5070\b",                      "RTX 5070",          _RTX50,                   0.5,  30.9,  30.9,  61.7,  61.7, 123.5,   672, PCIE5, 1, 1),
    _Row(r"RTX 4090\b",                      "RTX 4090",          _ADA,                     1.3,  82.6,  82.6, 165.2, 165.2, 330.3,  1008, PCIE4, 1, 1),
    _Row(r"RTX 4080 SUPER",                  "RTX 4080 SUPER",    _ADA,                     0.8,  52.2,  52.2, 104.4, 104.4, 208.9,   736, PCIE4, 1, 1),
    _Row(r"RTX 4080\b",                      "RTX 4080",          _ADA,                     0.8,  48.7,  48.7,  97.5,  97.5, 194.9,   717, PCIE4, 1, 1),
    _Row(r"RTX 4070 Ti SUPER",               "RTX 4070 Ti SUPER", _ADA,                     0.7,  44.1,  44.1,  88.2,  88.2, 176.4,   672, PCIE4, 1, 1),
    _Row(r"RTX 4070 Ti",                     "RTX 4070 Ti",       _ADA,                     0.6,  40.1,  40.1,  80.2,  80.2, 160.4,   504, PCIE4, 1, 1),
    _Row(r"RTX 4070 SUPER",                  "RTX 4070 SUPER",    _ADA,                     0.6,  35.5,  35.5,    71,    71,   142,   504, PCIE4, 1, 1),
    _Row(r"RTX 4070\b",                      "RTX 4070",          _ADA,                     0.5,  29.1,  29.1,  58.3,  58.3, 116.6,   504, PCIE4, 1, 1),
    _Row(r"RTX 4060 Ti",                     "RTX 4060 Ti",       _ADA,                     0.3,  22.1,  22.1,  44.1,  44.1,  88.3,   288, PCIE4 / 2, 1, 1),
    _Row(r"RTX 4060\b",                      "RTX 4060",          _ADA,                     0.2,  15.1,  15.1,  30.2,  30.2,  60.5,   272, PCIE4 / 2, 1, 1),
    _Row(r"RTX 3090 Ti",                     "RTX 3090 Ti",       _GA102,                   0.6,    40,    40,    80,    80,  None,  1008, PCIE4, 1, 1),
    _Row(r"RTX 3090\b",                      "RTX 3090",          _GA102,                   0.6,  35.6,  35.6,    71,    71,  None,   936, PCIE4, 1, 1),
    _Row(r"RTX 3080 Ti",                     "RTX 3080 Ti",       _GA102,                   0.5,  34.1,  34.1,  68.2,  68.2,  None,   912, PCIE4, 1, 1),
    _Row(r"RTX 3080\b",                      "RTX 3080",          _GA102,                   0.5,  29.8,  29.8,  59.5,  59.5,  None,   760, PCIE4, 1, 1),
    _Row(r"RTX 3070 Ti",                     "RTX 3070 Ti",       _GA102,                   0.3,  21.7,  21.7,  43.5,  43.5,  None,   608, PCIE4, 1, 1),
    _Row(r"RTX 3070\b",                      "RTX 3070",          _GA102,                   0.3,  20.3,  20.3,  40.6,  40.6,  None,   448, PCIE4, 1, 1),
    _Row(r"RTX 3060 Ti",                     "RTX 3060 Ti",       _GA102,                   0.3,  16.2,  16.2,  32.4,  32.4,  None,   448, PCIE4, 1, 1),
    _Row(r"RTX 3060\b",                      "RTX 3060",          _GA102,                   0.2,  12.7,  12.7,  25.5,  25.5,  None,   360, PCIE4, 1, 1),
    _Row(r"RTX 2080 Ti",                     "RTX 2080 Ti",       _TURING,                 0.42,  13.4,  None,  53.8,  None,  None,   616, PCIE3, 2, 1),
    _Row(r"RTX 2080 SUPER",                  "RTX 2080 SUPER",    _TURING,                 0.35,  11.2,  None,  44.6,  None,  None,   496, PCIE3, 2, 1),
    _Row(r"RTX 2080\b",                      "RTX 2080",          _TURING,                 0.31,  10.1,  None,  40.3,  None,  None,   448, PCIE3, 2, 1),
    _Row(r"RTX 2070\b(?! SUPER)",            "RTX 2070",          _TURING,                 0.23,   7.5,  None,  29.9,  None,  None,   448, PCIE3, 2, 1),
    _Row(r"GTX 1660 Ti",                     "GTX 1660 Ti",       _TURING,                 0.17,   5.4,  None,  10.9,  None,  None,   288, PCIE3, 2, 1, False),
    _Row(r"GTX 1660 SUPER",                  "GTX 1660 SUPER",    _TURING,                 0.16,   5.0,  None,  10.0,  None,  None,   336, PCIE3, 2, 1, False),
    _Row(r"GTX 1660\b",                      "GTX 1660",          _TURING,                 0.16,   5.0,  None,  10.0,  None,  None,   192, PCIE3, 2, 1, False),
    _Row(r"GTX 1080 Ti",                     "GTX 1080 Ti",       _PASCAL,                 0.35,  11.3,  None,  None,  None,  None,   484, PCIE3, 1, 1, False),
    _Row(r"P100-PCIE",                       "P100 PCIe",         _PASCAL,                  4.7,   9.3,  None,  18.7,  None,  None,   732, PCIE3, 2, 1, False),
    _Row(r"P100\b",                          "P100 SXM2",         _PASCAL,                  5.3,  10.6,  None,  21.2,  None,  None,   732, PCIE3, 2, 1, False),
    _Row(r"GP100\b",                         "Quadro GP100",      _PASCAL,                  5.2,  10.3,  None,  20.7,  None,  None,   717, PCIE3, 2, 1, False),
    _Row(r"P40\b",                           "P40",               _PASCAL,                 0.37,    12,  None,  None,  None,  None,   346, PCIE3, 1, 1, False),
    _Row(r"MI325X",                          "MI325X",            _AMD,                   163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 6000, PCIE5, 1, 1, False),
    _Row(r"MI300X",                          "MI300X",            _AMD,                   163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 5300, PCIE5, 1, 1, False),
    _Row(r"MI210",                           "MI210",             _AMD,                    45.3,  45.3,  None,   181,   181,  None,  1638, PCIE4, 1, 1, False),
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
_OTHER_CHIP = re.compile(r"\bMIG\b|Laptop|Max-Q|\bMobile\b|vGPU|\bGRID\b", re.IGNORECASE)


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
    row = next((row for row in _ROWS if re.search(rf"(?<![A-Za-z0-9])(?:{row.pattern})", device_name)), None)
    return None if row is None else _ceilings(row)


def _ceilings(row: _Row) -> Ceilings:
    given = {key: getattr(row, key) for key in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")}
    peak = {key: value * TERA for key, value in given.items() if value is not None}
    plain = {"fp32": row.fp32, "tf32": row.fp32, "fp16": row.fp32 * row.half, "bf16": row.fp32 * row.brain}
    measured = _MEASURED.get(row.name, {})
    bandwidth, link = row.bandwidth * GIGA, row.link * GIGA
    return Ceilings(
        name=row.name,
        peak_flops=peak,
        plain_flops={key: value * TERA for key, value in plain.items()},
        reachable_flops={key: measured.get(key, REACHABLE_SHARE * value) for key, value in peak.items()},
        peak_bandwidth=bandwidth,
        reachable_bandwidth=measured.get("bandwidth", REACHABLE_SHARE * bandwidth),
        host_link=measured.get("host_link", REACHABLE_SHARE * link),
        has_tensor_cores=row.tensor_cores,
        maker=row.source.split()[0],
        measured=frozenset(measured),
        source=row.source,
    )
