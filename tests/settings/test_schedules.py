"""Schedules: their values in closed form, and runs in which a setting changes from round to round."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from support.custom import choosy

import pfedbred
from pfedbred.settings import schedules
from pfedbred.settings.values import NonNegative, Positive


def values(rounds: int, **given) -> list[float]:
    return schedules.table("alpha", given, rounds, Positive).tolist()


def test_named_schedules_have_their_closed_forms():
    cosine = [0.01 + 0.09 * (1 + math.cos(math.pi * t / 8)) / 2 for t in range(8)]
    assert values(8, schedule="cosine", start=0.1, end=0.01) == pytest.approx(cosine)
    assert values(4, schedule="linear", start=0.4, end=0.0) == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert values(3, schedule="exponential", start=0.2, rate=0.5) == pytest.approx([0.2, 0.1, 0.05])
    assert values(5, schedule="steps", start=1.0, at=[2, 4], factor=0.1) == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_a_warm_up_rises_to_where_the_schedule_begins():
    assert values(5, schedule="constant", start=0.8, warmup=3) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert values(4, schedule="linear", start=0.4, warmup=2) == pytest.approx([0.4 / 3, 0.8 / 3, 0.4, 0.2])


def test_a_function_of_the_round_is_a_schedule():
    assert schedules.table("eta", lambda t: 0.5 / (t + 1), 3, NonNegative).tolist() == pytest.approx([0.5, 0.25, 1 / 6])


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("alpha", {"schedule": "cosin", "start": 1}, "unknown schedule 'cosin' of alpha.*did you mean 'cosine'"),
        ("alpha", {"schedule": "cosine"}, "the schedule cosine of alpha needs start"),
        ("alpha", {"schedule": "cosine", "start": -1}, "alpha's start must be a number > 0, not -1"),
        ("alpha", {"schedule": "cosine", "start": 1, "stop": 0}, "the schedule cosine of alpha has no setting 'stop'"),
        (
            "alpha",
            {"schedule": "steps", "start": 1, "at": 5},
            "alpha.s at must be a list of rounds",
        ),
        (
            "alpha",
            {"schedule:cosine": None, "start:0.1": None},
            "YAML needs a space after each colon: {schedule: cosine, start: 0.1}, not alpha={schedule:cosine, ",
        ),
        ("alpha", {"start": 1}, "a schedule is given as {schedule: cosine, start: 0.1}"),
        ("R", {"schedule": "linear", "start": 1}, "R cannot have a schedule: it decides how the program is built"),
        ("tol", {"schedule": "linear", "start": 1}, "tol cannot have a schedule: it decides how the program is built"),
    ],
)
def test_wrong_schedules_are_one_line(setting, value, message):
    with pytest.raises(pfedbred.SettingError, match=message):
        pfedbred.Experiment.from_mapping({"algorithm": "pfedbred", "settings": {setting: value}})


def test_a_setting_that_the_program_needs_to_know_cannot_have_a_schedule():
    decaying = {"schedule": "exponential", "start": 0.1, "rate": 0.9}
    for more in ({}, {"participation": "sample", "store": "memory"}):
        with pytest.raises(pfedbred.SettingError, match="alpha cannot have a schedule: it changes the compiled"):
            pfedbred.run(algorithm=choosy, clients=5, rounds=2, settings={"alpha": decaying}, **more)
    with pytest.raises(pfedbred.SettingError, match="fedamp's alpha_k must be given if sigma has a schedule"):
        pfedbred.run(algorithm="fedamp", clients=5, rounds=2, settings={"sigma": decaying})


@pytest.mark.full
def test_a_round_with_a_schedule_epochs_and_momentum_is_compiled_once():
    """FedAMP's server step decays, as in its paper."""
    decaying = {"schedule": "exponential", "start": 0.1, "rate": 0.5}
    settings = {"alpha_k": decaying, "alpha": {**decaying, "warmup": 1}, "epochs": 1}
    run = pfedbred.run(algorithm="fedamp", clients=5, rounds=4, settings=settings, local_optimizer="sgd(momentum=0.9)")
    state, compiled = run.backend.advance(run.state, 1), []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **kwargs: compiled.append(event) if "compile" in event else None
    )
    try:
        state = run.backend.advance(state, 1)
        scores = run.backend.evaluate(state)
        assert not compiled
    finally:
        jax.monitoring.clear_event_listeners()
    assert np.isfinite(scores.personal.train.loss).all()


def test_a_value_that_the_setting_does_not_allow_names_its_round():
    with pytest.raises(pfedbred.SettingError, match="alpha in round 3 must be a number > 0"):
        pfedbred.run(algorithm="fedavg", clients=5, rounds=4, settings={"alpha": lambda t: 1.0 - t / 2})


def params(run: pfedbred.Run) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((run.global_model(), run.personal_model(2)))]


@pytest.mark.parametrize("sampled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_each_round_has_the_value_of_its_own(sampled):
    """Half the step size in the second round; the same rounds with a single value, from a checkpoint, are the proof."""
    options = {"clients": 5, "rounds": 2, "algorithm": "fedprox", "batch_size": 7, "seed": 3}
    if sampled:
        options |= {"participation": "sample", "aggregated": 3, "store": "memory"}
    halved = {"schedule": "steps", "start": 0.2, "at": [1], "factor": 0.5}
    scheduled = pfedbred.run(**options, settings={"alpha": halved, "R": 3})
    first = pfedbred.run(**options | {"rounds": 1}, settings={"alpha": 0.2, "R": 3})
    second = pfedbred.run(**options, settings={"alpha": 0.1, "R": 3})
    continued = second.backend.advance(first.state, 1)
    expected = second.backend.global_model(continued), second.backend.personal_model(continued, 2)
    for ours, other in zip(params(scheduled), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-6, atol=1e-7)
    for ours, other in zip(params(scheduled), params(second), strict=True):
        assert not np.allclose(ours, other)


def test_a_schedule_is_recorded_as_it_was_given(tmp_path):
    halved = {"schedule": "steps", "start": 0.2, "at": [1], "factor": 0.5}
    pfedbred.run(algorithm="fedavg", clients=5, rounds=2, settings={"alpha": halved}, out=tmp_path / "run")
    assert pfedbred.RunRecord.read(tmp_path / "run").summary["experiment"]["settings"]["alpha"] == halved
