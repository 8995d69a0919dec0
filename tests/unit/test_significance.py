"""When two sets of step times differ: exact answers on built samples, and false alarms on correlated noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ipyprof.report.significance import FASTER, SAME, SLOWER, UNKNOWN, block_length, compare_samples, rank_test


def array(*values: float) -> np.ndarray:
    return np.asarray(values, np.float64)


def walk(dice: np.random.Generator, count: int, correlation: float) -> np.ndarray:
    """A first-order autoregressive series around 1,000 with deviation 50."""
    noise = dice.standard_normal(count)
    for at in range(1, count):
        noise[at] = correlation * noise[at - 1] + math.sqrt(1 - correlation**2) * noise[at]
    return 1_000 + 50 * noise


@pytest.mark.parametrize(
    ("before", "after", "p"),
    [
        (array(1, 2, 3), array(4, 5, 6), 2 / 20),
        (array(1, 2, 3, 4), array(5, 6, 7, 8), 2 / 70),
        (array(1, 3), array(2, 4), 4 / 6),
        (array(1, 1, 1), array(1, 1, 1), 1.0),
        (array(1, 1, 2), array(2, 3, 3), 4 / 20),
    ],
)
def test_rank_test_is_exact(before: np.ndarray, after: np.ndarray, p: float) -> None:
    # given two small sides, ties among them, when all ways to deal the values are counted, then p is exact
    assert rank_test(before, after) == pytest.approx(p)
    assert rank_test(after, before) == pytest.approx(p)


def test_three_against_three_far_apart_is_real() -> None:
    # given three steps each whose ranges lie far apart
    found = compare_samples((254.0, 257.0, 261.0), (31.2, 31.6, 32.1))
    # when they are compared, then the answer is faster, with the ratio of the medians and its interval
    assert found.answer == FASTER
    assert found.ratio == pytest.approx(257.0 / 31.6)
    assert found.low is not None and found.high is not None
    assert 254.0 / 32.1 <= found.low <= 257.0 / 31.6 <= found.high <= 261.0 / 31.2
    assert found.p == pytest.approx(0.1)
    assert found.counts == (3, 3)
    assert "ranges do not overlap" in found.text


def test_the_other_way_round_is_slower() -> None:
    found = compare_samples((31.2, 31.6, 32.1), (254.0, 257.0, 261.0))
    assert found.answer == SLOWER
    assert "slower" in found.text


def test_ranges_that_nearly_touch_are_not_enough_for_three() -> None:
    # given three against three, apart by less than they are wide, when compared, then it cannot be told
    found = compare_samples((10.0, 11.0, 12.0), (8.0, 8.9, 9.9))
    assert found.answer == UNKNOWN
    assert found.text == "the ranges do not overlap, but they are too wide for so few samples (3 against 3)"


@pytest.mark.parametrize(("before", "after"), [((), ()), ((5.0,), (1.0, 1.0, 1.0)), ((5.0, 5.0, 5.0), (1.0, 1.0))])
def test_too_few_samples_cannot_tell(before: tuple[float, ...], after: tuple[float, ...]) -> None:
    # given fewer than three on a side, when compared, then the answer is that it cannot be told
    found = compare_samples(before, after)
    assert found.answer == UNKNOWN
    assert found.p is None and found.low is None
    assert "at least 3 of each are needed" in found.text


def test_the_same_samples_are_no_change() -> None:
    found = compare_samples((3.79, 3.80, 3.82), (3.79, 3.80, 3.82))
    assert found.answer == SAME
    assert found.ratio == 1.0


def test_a_sure_difference_of_one_percent_is_no_change() -> None:
    # given twenty steps each, surely 1 % apart
    before = tuple(100 + 0.01 * (at % 5) for at in range(20))
    # when compared, then it is less than two runs of one loop differ
    found = compare_samples(before, tuple(0.99 * one for one in before))
    assert found.answer == SAME
    assert "but by less than the 3 % that two runs of one loop differ" in found.text


def test_noise_around_one_value_is_no_change() -> None:
    # given two series from one source, when compared, then the answer is no change, and the reason is within-run noise
    dice = np.random.default_rng(5)
    found = compare_samples(100 + dice.standard_normal(15), 100 + dice.standard_normal(15))
    assert found.answer == SAME
    assert "steps differ as much within one run" in found.text


def test_wide_noise_cannot_tell() -> None:
    # given steps that vary by a factor of three on both sides, when compared, then nothing is claimed
    found = compare_samples((10.0, 30.0, 12.0, 28.0, 11.0), (9.0, 33.0, 10.0, 25.0, 14.0))
    assert found.answer == UNKNOWN


def test_independent_samples_stay_single_and_slow_waves_become_blocks() -> None:
    # given alternating samples and a slow wave
    alternating = array(*(100.0 + at % 2 for at in range(20)))
    wave = array(*(100.0 + math.sin(at / 3) for at in range(20)))
    # when the block length is asked for, then only the wave is put together, with three blocks left
    assert block_length(alternating, alternating) == 1
    assert block_length(wave, wave) == 6


def test_long_series_are_put_into_thirty_blocks_at_most() -> None:
    # given 600 independent samples, when compared, then it takes 30 blocks of 20
    dice = np.random.default_rng(1)
    found = compare_samples(100 + dice.standard_normal(600), 90 + dice.standard_normal(600))
    assert found.block == 20
    assert found.answer == FASTER


def test_a_gap_counts_where_the_host_changed_its_speed_on_the_way() -> None:
    # given 23 steps that go from 13 to 8 ms on the way, so that three blocks of neighbours are left, and 23 of 5 ms
    before = (13.8, 13.1, 13.0, 13.3, 13.2, 13.2, 13.2, 12.9, 12.7, 12.2, 12.2, 12.3, 12.3, 13.0, 12.0, 9.6)
    before += (9.5, 8.0, 8.0, 8.0, 8.2, 8.0, 7.7)
    after = (4.7,) * 8 + (4.9,) + (5.0,) * 11 + (5.1, 5.2, 5.2)
    # when compared, then a gap of 2.5 ms between all of them counts
    found = compare_samples(before, after)
    assert (found.block, found.answer) == (7, FASTER)
    assert "ranges do not overlap" in found.text
    # and not in few steps, nor where the gap is small against what they wander
    assert compare_samples(before[::2], tuple(one + 2.3 for one in after[::2])).answer == UNKNOWN
    assert compare_samples(before, tuple(one + 2.3 for one in after)).answer == UNKNOWN


def two_speeds(dice: np.random.Generator, count: int, stay: int) -> np.ndarray:
    """Steps of a host with two speeds, 1.6 apart, that stays ``stay`` steps at one in the mean."""
    slow = np.logical_xor.accumulate(dice.random(count) < np.r_[0.5, np.full(count - 1, 1 / stay)])
    return 1_000 * np.where(slow, 1.6, 1.0) * (1 + 0.02 * dice.standard_normal(count))


@pytest.mark.parametrize(("stay", "most"), [(2, 8), (5, 12), (10, 18)])
def test_a_host_with_two_speeds_raises_few_alarms(stay: int, most: int) -> None:
    # given 200 pairs of 23 steps from one host that changes its speed within a run
    dice = np.random.default_rng(11)
    pairs = [(two_speeds(dice, 23, stay), two_speeds(dice, 23, stay)) for _ in range(200)]
    # when each is compared, then few are called a change (measured: the module's table)
    assert sum(compare_samples(before, after).answer in (FASTER, SLOWER) for before, after in pairs) <= most


def test_the_answer_is_the_same_each_time() -> None:
    # given the seed, when compared twice, then every number is the same
    before, after = (10.0, 10.4, 10.1, 10.2, 9.9), (8.0, 8.3, 8.1, 8.0, 8.2)
    assert compare_samples(before, after) == compare_samples(before, after)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("count", [3, 5, 10, 20])
def test_false_alarms_are_rare(count: int, correlation: float) -> None:
    # given 200 pairs of series from one source, correlated from step to step
    dice = np.random.default_rng(11)
    pairs = [(walk(dice, count, correlation), walk(dice, count, correlation)) for _ in range(200)]
    # when each is compared, then at most 8 % are called a change (measured: the module's table)
    alarms = sum(compare_samples(before, after).answer in (FASTER, SLOWER) for before, after in pairs)
    assert alarms <= 16
