"""What more nodes would do is a prediction: it needs rungs, and says what it assumes."""

from __future__ import annotations

import random

import pytest

from scaling.collectives.line_rate import Fit
from scaling.ladder.step_breakdown import Step
from scaling.loss.predict import (
    CollectiveCall,
    communication_model,
    efficiency_interval,
    forecast_efficiency,
    step_seconds,
)
from scaling.loss.significance import (
    expected_maximum,
    fit_rise,
    fit_shape,
    is_rising,
    outlier_excess,
    student_t,
)

FITS = {
    "all_gather": Fit(latency_us=50, bandwidth=10, residual=0.02, points=9),
    "reduce_scatter": Fit(latency_us=50, bandwidth=10, residual=0.02, points=9),
}
# A fully sharded step of 10 blocks, 400 MB: weights are gathered twice, gradients reduced once.
CALLS = [CollectiveCall("all_gather", 4e7, 20), CollectiveCall("reduce_scatter", 4e7, 10)]
SECONDS = communication_model(CALLS, FITS, measured=8)


def table(mean: float, seed: int, noise: float = 0.01, steps: int = 24) -> list[list[Step]]:
    """One rank's steps; all that a prediction looks at is their seconds."""
    chance = random.Random(seed)
    return [[Step(chance.gauss(mean, noise * mean), {}) for _ in range(steps)]]


def rungs(share: float = 1.0, noise: float = 0.002, seed: int = 0) -> dict[int, list[list[Step]]]:
    """Rungs whose communication is `share` of what is predicted."""
    return {
        count: table(1 + share * (SECONDS(count) if count > 1 else 0), seed + count, noise)
        for count in (1, 2, 4, 8)
    }


def test_a_sharded_steps_calls_take_their_bytes_and_latencies() -> None:
    # 1.2 GB x 7/8 at 10 GB/s, and 30 latencies.
    assert SECONDS(8) == pytest.approx(1.2e9 * 7 / 8 / 10e9 + 30 * 50e-6)
    assert SECONDS(15) == pytest.approx(1.2e9 * 14 / 15 / 10e9 + 30 * 100e-6)
    assert communication_model([CollectiveCall("all_gather", 1e9, 1)], FITS, 2)(1) == 0
    with pytest.raises(ValueError, match="2 ranks or more"):
        communication_model(CALLS, FITS, measured=1)


def test_a_prediction_meets_what_the_same_model_would_give() -> None:
    found = forecast_efficiency(rungs(share=0.5), SECONDS)
    assert found.share == pytest.approx(0.5, abs=0.05)
    assert [p.nodes for p in found.predictions] == [16, 64, 256, 1024]
    for one in found.predictions:
        truth = 1 / (1 + 0.5 * SECONDS(one.nodes))
        assert one.low <= truth <= one.high
        assert one.low <= one.efficiency <= one.high
    widths = [one.high - one.low for one in found.predictions]
    assert widths == sorted(widths)


def test_a_model_that_misses_the_rungs_has_a_wide_band() -> None:
    good, bad = rungs(), rungs()
    bad[4] = table(1.5, 1, 0.002)
    narrow, wide = forecast_efficiency(good, SECONDS), forecast_efficiency(bad, SECONDS)
    assert wide.misfit > 5 * narrow.misfit
    assert (wide.predictions[0].high - wide.predictions[0].low) > 5 * (
        narrow.predictions[0].high - narrow.predictions[0].low
    )


def test_it_is_called_a_prediction_and_says_what_it_assumes() -> None:
    found = forecast_efficiency(rungs(), SECONDS)
    assert str(found).startswith("predicted, not measured: ")
    assert "only 1, 2, 4, 8 nodes were measured" in found.assumptions[0]
    assert len(found.assumptions) > 5
    assert forecast_efficiency(rungs(), SECONDS) == found


def test_communication_and_waiting_grow_with_the_nodes_and_nothing_else() -> None:
    """What else the largest rung lost stays what it is in seconds, and is said."""
    late, spoken = rungs(share=0.5), {count: 0.5 * SECONDS(count) for count in (2, 4, 8)}
    lost = 1.5
    late[8] = table(1 + 0.5 * SECONDS(8) + lost, 8, 0.002)
    found = forecast_efficiency(late, SECONDS, communication_loss=spoken)
    assert found.share == pytest.approx(0.5, abs=0.05)
    assert found.misfit < 0.05
    for one in found.predictions:
        truth = 1 / (1 + lost + 0.5 * SECONDS(one.nodes))
        assert one.efficiency == pytest.approx(truth, rel=0.05)
    assert any("1.5 s of a step" in words for words in found.assumptions)
    healthy = forecast_efficiency(rungs(share=0.5), SECONDS, communication_loss=spoken)
    assert not any("of a step were lost to" in words for words in healthy.assumptions)


@pytest.mark.parametrize("counts", [(), (1,), (1, 2), (2, 4, 8)])
def test_too_few_rungs_are_refused(counts: tuple[int, ...]) -> None:
    some = {count: steps for count, steps in rungs().items() if count in counts}
    with pytest.raises(ValueError, match="needs 1 node and two larger node counts"):
        forecast_efficiency(some, SECONDS)


def run(*how: float) -> list[float]:
    """The seconds of a run's steps."""
    return step_seconds(table(*how))


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(40):
        low, high = efficiency_interval([run(1.0, 2 * seed, 0.05)], [run(1.25, 2 * seed + 1, 0.05)])
        held += low <= 0.8 <= high
    assert held >= 34  # 95 % of 40 are 38; a bootstrap of 24 steps is somewhat narrow


def test_repeats_that_differ_widen_the_interval() -> None:
    base = [run(1.0, 1)]
    alike = efficiency_interval(base, [run(1.25, at) for at in (2, 3, 4)])
    apart = efficiency_interval(base, [run(mean, 5) for mean in (1.15, 1.25, 1.35)])
    assert apart[1] - apart[0] > 3 * (alike[1] - alike[0])
    assert alike == efficiency_interval(base, [run(1.25, at) for at in (2, 3, 4)])


def test_student_is_near_its_tables() -> None:
    for tail, freedom, known in ((0.001, 7, 4.785), (0.001, 23, 3.485), (1e-4, 14, 4.985)):
        assert student_t(tail, freedom) == pytest.approx(known, rel=0.03)


def test_the_largest_of_some_normal_values() -> None:
    assert expected_maximum(1) == 0
    assert expected_maximum(8) == pytest.approx(1.4236, rel=0.01)
    assert expected_maximum(1024) == pytest.approx(3.25, rel=0.02)


def test_a_rise_is_seen_as_ramp_and_as_jump_and_noise_is_not() -> None:
    chance = random.Random(0)
    noise = [chance.gauss(1, 0.02) for _ in range(24)]
    ramp = [x + 0.01 * k for k, x in enumerate(noise)]
    jump = [x + 0.1 * (k >= 15) for k, x in enumerate(noise)]
    assert [is_rising(noise), is_rising(ramp), is_rising(jump)] == [False, True, True]
    assert not is_rising(ramp[:5])
    assert sum(fit_rise(ramp)) / 24 == pytest.approx(0.115, abs=0.02)
    assert sum(fit_rise(jump)) / 24 == pytest.approx(0.0375, abs=0.01)
    assert sum(map(is_rising, ([chance.gauss(1, 0.1) for _ in range(12)] for _ in range(500)))) <= 3


def test_a_shape_is_followed_under_delays_or_not_at_all() -> None:
    shape = [0.0] * 6 + [0.2] * 6
    series = [1 + 0.9 * x + 0.5 * (k % 3 == 0) for k, x in enumerate(shape)]
    assert fit_shape(shape, series, 1.0) == pytest.approx([0.9 * x for x in shape])
    assert fit_shape(shape, [1.0] * 12, 1.0) == []
    assert fit_shape([0.0] * 12, series, 1.0) == []


def test_outliers_are_told_from_the_body() -> None:
    body = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]
    assert outlier_excess(body) == [0.0] * 6
    assert outlier_excess([*body, 1.5])[-1] == pytest.approx(0.5)
