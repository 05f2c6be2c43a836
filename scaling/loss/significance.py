"""Estimates the noise of series, and finds values and changes beyond it.

Every test here compares with the run's own noise. The only constant is how often a healthy run may
be accused by chance.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

# One healthy run in a thousand may be accused by one detector. An acceptance run has about ten
# detectors and four rungs, so at worst about 4 % of healthy clusters get one false accusation.
FALSE_ALARM_RATE = 1e-3

MAD_SCALE = 1.4826  # MAD x this estimates the standard deviation of normal noise

# A value beyond this many standard deviations is not noise: one normal value in 3.5 million.
OUTLIER_SIGMAS = 5.0

# From some hundreds of rounds on, percentiles are stable to a tenth of the interval.
BOOTSTRAP_ROUNDS = 400

Series = Mapping[str, Sequence[float]]  # by node, then by step
Runs = Sequence[Sequence[float]]  # by run or machine, then by step


def mad_deviation(values: Sequence[float]) -> float:
    """Estimate the standard deviation of `values` from their MAD, which ignores outliers."""
    median = statistics.median(values)
    return MAD_SCALE * statistics.median(abs(value - median) for value in values)


def variance(values: Sequence[float]) -> float:
    """Compute the sample variance of two or more values; statistics.variance is far slower."""
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


@lru_cache
def student_t(tail: float, freedom: int) -> float:
    """Compute Student's t that is exceeded with chance `tail`, by the Cornish-Fisher series.

    Within 10 % from 6 degrees of freedom on (Abramowitz and Stegun 26.7.5).
    """
    z = statistics.NormalDist().inv_cdf(1 - tail)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def standard_error(series: Sequence[float]) -> float:
    """Estimate the standard error of the mean of a series of steps.

    It is larger if neighbours are correlated, by the factor of a first-order autoregressive
    series. Correlation is limited to 0.8, the most that a window of tens of steps can show.
    """
    count = len(series)
    if count < 2:
        return math.inf
    mean, deviation = statistics.fmean(series), math.sqrt(variance(series))
    if deviation == 0:
        return 0.0
    centred = [value - mean for value in series]
    correlation = sum(a * b for a, b in pairwise(centred)) / sum(a * a for a in centred)
    correlation = min(max(correlation, 0.0), 0.8)
    return deviation / math.sqrt(count) * math.sqrt((1 + correlation) / (1 - correlation))


def is_significant(series: Sequence[float], tests: int = 1) -> bool:
    """Test whether the mean of a series is above 0 beyond its noise, as one of `tests` tests."""
    if len(series) < 3:
        return False
    limit = student_t(FALSE_ALARM_RATE / tests, len(series) - 1) * standard_error(series)
    return statistics.fmean(series) > limit


def median_error(series: Sequence[float]) -> float:
    """Estimate the standard error of the median of a series; outliers do not count.

    For normal noise, a median scatters sqrt(pi / 2) times as much as a mean.
    """
    return math.sqrt(math.pi / 2) * mad_deviation(series) / math.sqrt(len(series))


def is_rising(series: Sequence[float], tests: int = 1, peers: Runs = ()) -> bool:
    """Test whether a series rises beyond its noise: second half against first half, or slope.

    A jump is best seen in the halves, a ramp in the slope. These count as two tests. Peers are
    series of equal machines over the same steps. Their noise makes the test sharper in a short
    window.
    """
    if len(series) < 6:
        return False
    tail, freedom = FALSE_ALARM_RATE / (2 * tests), len(series) - 2
    all_series = [series, *(peer for peer in peers if peer is not series)]
    for rise_and_variance in (_half_rise, _slope_and_variance):
        (rise, *_), variances = zip(*map(rise_and_variance, all_series), strict=True)
        pooled = math.sqrt(statistics.fmean(variances))
        exceeds = rise > student_t(tail, freedom * len(all_series)) * pooled
        # A machine noisier than its peers must also exceed its own noise, at a chance of one in 50.
        own_limit = student_t(0.02, freedom) * math.sqrt(variances[0])
        if exceeds and (len(all_series) == 1 or rise > own_limit):
            return True
    return False


def fit_shape(shape: Sequence[float], series: Sequence[float], expected: float) -> list[float]:
    """Scale `shape` to fit the rise of `series`; empty if the factor is under half of `expected`.

    The rise is from the first half to the second. In each half, only the lower half of the
    values of `series` counts, because delays only add time. Also empty if `shape` does not
    rise.
    """
    half = len(series) // 2
    shape_rise = statistics.fmean(shape[-half:]) - statistics.fmean(shape[:half])
    if shape_rise <= 0:
        return []
    factor = (lower_half_mean(series[-half:]) - lower_half_mean(series[:half])) / shape_rise
    return [factor * value for value in shape] if factor >= expected / 2 > 0 else []


def lower_half_mean(values: Sequence[float]) -> float:
    """Compute the mean of the lower half of the values, which delays affect least."""
    return statistics.fmean(sorted(values)[: (len(values) + 1) // 2])


def _half_rise(series: Sequence[float]) -> tuple[float, float]:
    """Return (second half's mean above the first half's, variance of that)."""
    half = len(series) // 2
    first, second = series[:half], series[-half:]
    rise = statistics.fmean(second) - statistics.fmean(first)
    return rise, (variance(first) + variance(second)) / half


def _slope_and_variance(series: Sequence[float]) -> tuple[float, float]:
    """Fit (slope per step, variance of that)."""
    (slope, residuals), count = _fit_line(series), len(series)
    return slope, sum(x * x for x in residuals) / (count - 2) / _squared_distances(count)


def _squared_distances(count: int) -> float:
    """Sum the squared distances of 0, 1 ... count - 1 from their middle."""
    return count * (count * count - 1) / 12


def _fit_line(series: Sequence[float]) -> tuple[float, list[float]]:
    """Fit a least-squares line; return (slope per step, residual of each value)."""
    mean, middle = statistics.fmean(series), (len(series) - 1) / 2
    slope = sum((k - middle) * x for k, x in enumerate(series)) / _squared_distances(len(series))
    return slope, [x - mean - slope * (k - middle) for k, x in enumerate(series)]


def fit_rise(series: Sequence[float]) -> list[float]:
    """Fit how far each step is above the start of a rising series: a ramp or one jump.

    The better fit counts. Seconds in, seconds out; never below 0. Meant for series for which
    `is_rising` is true.
    """
    count = len(series)
    mean, (slope, _) = statistics.fmean(series), _fit_line(series)
    shapes = [[slope * k for k in range(count)]]
    for index in range(max(2, count // 4), count - max(2, count // 4) + 1):
        jump = statistics.fmean(series[index:]) - statistics.fmean(series[:index])
        shapes.append([0.0] * index + [jump] * (count - index))

    def misfit(shape: list[float]) -> float:
        start = mean - statistics.fmean(shape)
        return sum((x - start - y) ** 2 for x, y in zip(series, shape, strict=True))

    return [max(value, 0.0) for value in min(shapes, key=misfit)]


def excess_over_peers(series: Series, name: str) -> list[float]:
    """Return how far one node's series is above the median of the others', step by step."""
    peers = [values for peer, values in series.items() if peer != name]
    return [
        value - statistics.median(row)
        for value, row in zip(series[name], zip(*peers, strict=True), strict=False)
    ]


def outlier_excess(series: Sequence[float], deviation: float | None = None) -> list[float]:
    """Return how far each value is above the median if it is an outlier, else 0.

    `deviation` is the noise without outliers. By default it is that of the lower half. Delays
    in up to half of the steps do not affect it.
    """
    median = statistics.median(series)
    if deviation is None:
        deviation = MAD_SCALE * statistics.median(median - x for x in series if x <= median)
    limit = OUTLIER_SIGMAS * deviation
    return [value - median if value - median > limit else 0.0 for value in series]


def dominant_node(count: Mapping[str, int]) -> str | None:
    """Name the node with nearly all of the events in `count`; None if that may be chance."""
    name = max(count, key=count.__getitem__)
    # Three quarters on one of two or more nodes may be chance if there are few events.
    chance = 0.5 ** count[name]
    return name if count[name] >= 0.75 * sum(count.values()) and chance < 0.01 else None


def expected_maximum(count: int) -> float:
    """Return the mean of the largest of `count` standard normal values (Blom 1958); 0 for one."""
    return 0.0 if count < 2 else statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def block_resample(count: int, draw: random.Random) -> list[int]:
    """Draw `count` indices of one circular block bootstrap.

    Blocks keep the correlation of neighbouring steps. They have count ^ (1/3) steps (Hall,
    Horowitz and Jing 1995).
    """
    length = max(1, round(count ** (1 / 3)))
    starts = [draw.randrange(count) for _ in range(math.ceil(count / length))]
    return [(start + offset) % count for start in starts for offset in range(length)][:count]


def bootstrap_interval(
    series: Sequence[Runs], statistic: Callable[[list[float]], float], confidence: float
) -> tuple[float, float]:
    """Find the interval that contains the middle `confidence` of a statistic of several means.

    `series[i]` are the repeats of quantity i, each a series of steps. Repeats and steps are
    resampled with a fixed seed. `statistic` takes the mean of each quantity.
    """
    draw = random.Random(0)
    results = []
    for _ in range(BOOTSTRAP_ROUNDS):
        means = []
        for repeats in series:
            chosen = [draw.choice(repeats) for _ in repeats] if len(repeats) > 1 else repeats
            picked = [[steps[i] for i in block_resample(len(steps), draw)] for steps in chosen]
            means.append(statistics.fmean(statistics.fmean(steps) for steps in picked))
        results.append(statistic(means))
    results.sort()
    cut = (1 - confidence) / 2 * (len(results) - 1)
    return results[math.floor(cut)], results[math.ceil(len(results) - 1 - cut)]
