"""Numbers become words in one way."""

from __future__ import annotations

import pytest

from ipyprof import formatting


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (257.0, "257 ms"),
        (31.6, "31.6 ms"),
        (3.8, "3.80 ms"),
        (0.17, "0.17 ms"),
        (0.035, "35 µs"),
        (0.0004, "0.40 µs"),
        (99.96, "100 ms"),
        (9.996, "10.0 ms"),
        (1234.5, "1,234 ms"),
        (12_340.0, "12.3 s"),
        (0.0, "0.00 ms"),
        (-2.5, "−2.50 ms"),
        (None, "not measured"),
    ],
)
def test_time_has_three_figures_and_a_unit(ms: float | None, text: str) -> None:
    assert formatting.time_text(ms) == text


@pytest.mark.parametrize(
    ("ms", "total", "text"),
    [
        (225.4, 257.0, "225.4"),
        (8.8, 257.0, "8.8"),
        (8.8, 31.6, "8.80"),
        (0.0, 31.6, "·"),
        (0.001, 31.6, "< 0.01"),
        (1234.56, 2000.0, "1,234.6"),
        (None, 31.6, "not measured"),
    ],
)
def test_one_precision_per_column(ms: float | None, total: float, text: str) -> None:
    assert formatting.time_cell(ms, total) == text


@pytest.mark.parametrize(
    ("ms", "total", "text"),
    [
        (42.34, 56.97, "42.3"),
        (0.04, 56.97, "< 0.1"),
        (225.4, 257.0, "225.4"),
        (2.204, 5.3, "2.20"),
    ],
)
def test_a_part_of_the_step_has_the_decimals_of_a_sentence(ms: float, total: float, text: str) -> None:
    assert formatting.step_cell(ms, total) == text
    if total < 100 and ms > 1:
        assert formatting.time_text(ms) == f"{text} ms"


@pytest.mark.parametrize(
    ("share", "whole", "short", "cell"),
    [
        (0.877, "88 %", "88 %", "87.7"),
        (0.059, "6 %", "5.9 %", "5.9"),
        (0.0063, "1 %", "0.6 %", "0.6"),
        (0.001, "< 1 %", "0.1 %", "0.1"),
        (0.0, "0 %", "0.0 %", "·"),
        (1.0, "100 %", "100 %", "100.0"),
        (None, "not measured", "not measured", "not measured"),
    ],
)
def test_percent_in_its_three_forms(share: float | None, whole: str, short: str, cell: str) -> None:
    assert formatting.percent_whole(share) == whole
    assert formatting.percent_short(share) == short
    assert formatting.percent_cell(share) == cell


@pytest.mark.parametrize(
    ("factor", "text"), [(1.04, "1.04×"), (1.52, "1.5×"), (8.13, "8.1×"), (12.2, "12×"), (None, "not measured")]
)
def test_speed_up(factor: float | None, text: str) -> None:
    assert formatting.speedup_text(factor) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (4_503_599_627_370_496, "4,504 TB"),
        (9_999_500_000_000, "10.0 TB"),
        (9_999_400_000_000, "9,999 GB"),
        (150_122_000_000, "150.1 GB"),
        (9_999_500_000, "10.0 GB"),
        (9_999_400_000, "9,999 MB"),
        (3_215_000_000, "3,215 MB"),
        (72_400_000, "72.4 MB"),
        (512_000, "0.5 MB"),
        (8_192, "8.2 kB"),
        (512, "512 bytes"),
        (-2_000_000, "−2.0 MB"),
        (None, "not measured"),
    ],
)
def test_size_in_units_of_a_thousand(size: float | None, text: str) -> None:
    assert formatting.size_text(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (249, "249 img/s"),
        (2_025, "2,025 img/s"),
        (795_340, "795k img/s"),
        (1_200_000, "1.20M img/s"),
        (3.456, "3.46 img/s"),
    ],
)
def test_throughput(value: float, text: str) -> None:
    assert formatting.rate_text(value, "img/s") == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "·"), (60, "60"), (2.5, "2.5"), (1024, "1,024"), (None, "not measured")]
)
def test_count_per_step(count: float | None, text: str) -> None:
    assert formatting.count_cell(count) == text


@pytest.mark.parametrize(
    ("ms", "step", "text"),
    [(0.0, 50.0, "0"), (50.0, 50.0, "50 ms"), (2.05, 0.05, "2.05 ms"), (1000.0, 500.0, "1,000 ms")],
)
def test_tick_has_just_enough_decimals(ms: float, step: float, text: str) -> None:
    assert formatting.tick_text(ms, step) == text


def test_overhead_in_words() -> None:
    assert formatting.overhead_text(1.47) == "47 % longer"
    assert formatting.overhead_text(0.98) == "2 % shorter"


def test_shortened_text_fits_wide_characters_too() -> None:
    # given text whose characters take two columns, when it is shortened to 9, then it takes at most 9
    short = formatting.shorten("前向传播前向传播", 9)
    assert short == "前向传播…"
    assert formatting.columns(short) == 9


def test_control_characters_and_lone_surrogates_are_replaced() -> None:
    assert formatting.printable("a\x00b\ud800c\td\n") == "a�b�c\td\n"
