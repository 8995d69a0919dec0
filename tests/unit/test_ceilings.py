"""The device table: what is found by which name, and what must not be."""

from __future__ import annotations

import pytest

from ipyprof.analysis.ceilings import _TABLE, Ceilings, ceilings_of


def known(name: str) -> Ceilings:
    found = ceilings_of(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("device", "name", "dtype", "tera", "giga"),
    [
        ("NVIDIA H200", "H200", "bf16", 989.4, 4800),
        ("NVIDIA H200 NVL", "H200 NVL", "bf16", 835.5, 4800),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", "bf16", 989.4, 3350),
        ("NVIDIA H100 PCIe", "H100 PCIe", "bf16", 756, 2000),
        ("NVIDIA H100 NVL", "H100 NVL", "bf16", 835.5, 3938),
        ("NVIDIA H20", "H20", "bf16", 148, 4000),
        ("NVIDIA B200", "B200", "bf16", 2250, 7700),
        ("NVIDIA GB200", "GB200", "bf16", 2500, 8000),
        ("NVIDIA B300 SXM6 AC", "B300", "bf16", 2250, 8000),
        ("NVIDIA GH200 480GB", "GH200 96GB", "bf16", 989.4, 4000),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB", "tf32", 156, 2039),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB", "bf16", 312, 1935),
        ("A100-SXM4-40GB", "A100 40GB", "bf16", 312, 1555),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB", "bf16", 312, 1555),
        ("NVIDIA A100-PG509-200", "A100 40GB", "bf16", 312, 1555),
        ("NVIDIA A10", "A10", "fp16", 125, 600),
        ("NVIDIA A10G", "A10G", "fp16", 70, 600),
        ("NVIDIA A30", "A30", "fp16", 165, 933),
        ("NVIDIA L4", "L4", "fp16", 121, 300),
        ("NVIDIA L40S", "L40S", "fp16", 362.1, 864),
        ("NVIDIA L40", "L40", "fp16", 181, 864),
        ("Tesla V100-SXM2-32GB", "V100 SXM2", "fp16", 125, 900),
        ("Tesla V100-PCIE-16GB", "V100 PCIe", "fp16", 112, 900),
        ("Tesla V100S-PCIE-32GB", "V100S", "fp16", 130, 1134),
        ("Tesla T4", "T4", "fp16", 65, 320),
        ("NVIDIA RTX A6000", "RTX A6000", "bf16", 154.8, 768),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", "bf16", 364.2, 960),
        ("NVIDIA GeForce RTX 3090", "RTX 3090", "bf16", 71, 936),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti", "bf16", 80, 1008),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", "fp8", 330.3, 1008),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER", "bf16", 88.2, 672),
        ("NVIDIA GeForce RTX 5090", "RTX 5090", "bf16", 209.5, 1792),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti", "fp16", 53.8, 616),
        ("AMD Instinct MI300X VF", "MI300X", "bf16", 1307.4, 5300),
    ],
)
def test_device_is_found_by_its_name(device: str, name: str, dtype: str, tera: float, giga: float) -> None:
    found = known(device)

    assert (found.name, found.peak_flops[dtype] / 1e12, found.peak_bandwidth / 1e9) == (name, tera, giga)


@pytest.mark.parametrize(
    "device",
    [
        "",
        "NVIDIA Graphics Device",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 2070 with Max-Q Design",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A40-48Q",
        "NVIDIA H2000",
        "NVIDIA A1000",
        "Apple M3",
    ],
)
def test_other_devices_are_not_known(device: str) -> None:
    assert ceilings_of(device) is None


def test_what_was_measured_is_reachable() -> None:
    found = known("NVIDIA H200")

    assert found.reachable_flops["bf16"] == 779e12
    assert found.reachable_flops["fp32"] == 51e12
    assert (found.reachable_bandwidth, found.host_link) == (4.25e12, 55e9)
    assert found.measured == {"bf16", "fp16", "tf32", "fp32", "bandwidth", "host_link"}


def test_what_was_not_measured_is_four_fifths_of_the_peak() -> None:
    found = known("NVIDIA GeForce RTX 4090")

    assert found.measured == frozenset()
    assert found.reachable_flops["bf16"] == pytest.approx(0.8 * 165.2e12)
    assert found.reachable_bandwidth == pytest.approx(0.8 * 1008e9)
    assert found.host_link == pytest.approx(0.8 * 31.5e9)


@pytest.mark.parametrize(
    ("device", "cores"),
    [
        ("Tesla V100-SXM2-16GB", True),
        ("Tesla T4", True),
        ("NVIDIA GeForce GTX 1660 Ti", False),  # of Turing, and without them
        ("NVIDIA GeForce GTX 1080 Ti", False),
        ("Tesla P100-PCIE-16GB", False),
        ("AMD Instinct MI300X", False),
    ],
)
def test_tensor_cores(device: str, cores: bool) -> None:
    assert known(device).has_tensor_cores is cores


@pytest.mark.parametrize("device", ["Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA GeForce RTX 2080 Ti"])
def test_dtypes_without_units_have_no_peak(device: str) -> None:
    assert not {"tf32", "bf16", "fp8"} & set(known(device).peak_flops)


def test_rate_without_tensor_cores() -> None:
    ampere, consumer = known("NVIDIA A100-SXM4-80GB").plain_flops, known("NVIDIA GeForce RTX 3090").plain_flops

    assert (ampere["fp16"], ampere["bf16"]) == (78e12, 39e12)
    assert consumer["fp16"] == consumer["fp32"] == 35.6e12


def test_every_row_is_found_by_its_own_name_and_says_its_source() -> None:
    rows = [row for _, rows in _TABLE for row in rows]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        if not row.pattern:
            found = known(f"NVIDIA {row.name}")
            assert (found.name, found.source.endswith(("sheet", "paper"))) == (row.name, True)


def test_tensor_cores_are_never_slower_than_the_units_beside_them() -> None:
    for family, rows in _TABLE:
        for row in rows:
            if family.tensor_cores and row.fp16 is not None:
                assert row.fp16 >= row.fp32
