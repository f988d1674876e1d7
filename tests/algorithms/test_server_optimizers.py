"""Server optimizers against a plain NumPy transcription of Reddi et al., Algorithm 2, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import test_reference as common

import pfedbred
from pfedbred.engine import selection

federation, task = common.federation, common.task
STEPS = {"server_alpha": 0.3, "beta_1": 0.6, "beta_2": 0.7, "tau": 0.05}
ROUNDS = 4


def models_by_round(federation, task, name, settings) -> list[np.ndarray]:
    plan = pfedbred.Plan(selection.fixed(common.FIXED), batch_size=common.BATCH)
    backend = pfedbred.ResidentBackend(pfedbred.make(name, task, settings), task, federation, plan)
    states, found = backend.init([common.SEED]), []
    for _ in range(ROUNDS + 1):
        found.append(common.as_vector(backend.global_model(states)))
        states = backend.advance(states, 1)
    return found


def local_average(federation, w: np.ndarray, t: int, alpha: float, steps: int) -> np.ndarray:
    """FedAvg's average in round t, from w."""
    batches, uploads = common.sequences(federation, common.SEED), []
    for i in common.FIXED:
        v = w
        for r in range(steps):
            v = v - alpha * common.reference.gradient(v, batches[i][t * steps + r])
        uploads.append(v)
    return np.average(uploads, axis=0, weights=[common.SIZES[i] for i in common.FIXED])


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("fedadam", ("server_alpha", "beta_1", "beta_2", "tau")),
        pytest.param("fedyogi", ("server_alpha", "beta_1", "beta_2", "tau"), marks=pytest.mark.full),
        pytest.param("fedadagrad", ("server_alpha", "beta_1", "tau"), marks=pytest.mark.full),
        pytest.param("fedavgm", ("server_alpha", "beta_1"), marks=pytest.mark.full),
    ],
)
def test_each_is_its_transcription(federation, task, name, used):
    settings = {"alpha": 0.11, "R": 3, **{each: STEPS[each] for each in used}}
    found = models_by_round(federation, task, name, settings)
    eta, b1, b2, tau = STEPS.values()
    x, m, v = found[0], np.zeros_like(found[0]), np.full_like(found[0], tau**2)
    for t in range(ROUNDS):
        delta = local_average(federation, x, t, 0.11, 3) - x
        if name == "fedavgm":
            m = b1 * m + delta
            x = x + eta * m
        else:
            m = b1 * m + (1 - b1) * delta
            v = {
                "fedadagrad": v + delta**2,
                "fedyogi": v - (1 - b2) * delta**2 * np.sign(v - delta**2),
                "fedadam": b2 * v + (1 - b2) * delta**2,
            }[name]
            x = x + eta * m / (np.sqrt(v) + tau)
        np.testing.assert_allclose(found[t + 1], x, **common.TOLERANCE)


def test_momentum_without_memory_is_the_algorithm_itself(federation, task):
    settings = {"beta_1": 0.0, "server_alpha": 1.0}
    plain = models_by_round(federation, task, "scaffold", {})
    wrapped = models_by_round(federation, task, "scaffold+server(momentum)", settings)
    np.testing.assert_allclose(plain, wrapped, **common.TOLERANCE)


def test_values_in_parentheses_are_defaults_of_a_suffix():
    experiment = pfedbred.Experiment.from_mapping({"algorithm": "mg-meta+server(yogi, 0.5)+am(1.5)"})
    assert experiment.settings["server_optimizer"] == "yogi"
    assert experiment.settings["server_alpha"] == 0.5
    assert experiment.settings["am_beta"] == 1.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedavg+server(adams)", "server_optimizer must be one of adam, adagrad, momentum, yogi, not 'adams'"),
        ("fedavg+ft(0.1, 2)", r"\+ft takes ft_alpha"),
        ("fedavg+serve", "unknown suffix '\\+serve'"),
    ],
)
def test_wrong_suffixes_are_one_line(name, message):
    with pytest.raises(pfedbred.SettingError, match=message):
        pfedbred.Experiment.from_mapping({"algorithm": name})


def test_a_server_that_does_not_average_has_nothing_to_optimize(task):
    with pytest.raises(pfedbred.SettingError, match="needs a server that averages uploads"):
        pfedbred.make("fedamp+server", task)
