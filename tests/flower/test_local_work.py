"""Local optimizers, schedules and epochs give a real federation's clients the simulation's models."""

import json

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import Loopback, assert_same_models, lines, nodes_of, run, simulate
from test_deployed_backend import assert_same_scores

EPOCHS = {"epochs": 2, "alpha": 0.05}
COSINE = {"schedule": "cosine", "start": 0.2, "end": 0.01, "warmup": 1}
KEPT = {"local_optimizer": "sgd(momentum=0.9)", "keep_optimizer": True}
STEPS = {"R": 3, "alpha": 0.05}
CASES = {
    "epochs": ("fedavg", EPOCHS, {}),
    "dropped": ("ditto", {**EPOCHS, "epochs_personal": 1}, {"last_batch": "drop"}),
    "schedule": ("fedavg", {"R": 3, "alpha": COSINE}, {}),
    "fresh": ("fedavg", STEPS, {"local_optimizer": "sgd(momentum=0.9)"}),
    "kept": ("fedavg", STEPS, KEPT),
    "all": (
        "mg-meta",
        {"epochs": 1, "K": 2, "eta": {"schedule": "linear", "start": 0.1}},
        {"local_optimizer": "adam(clip=1, weight_decay=0.001)", "keep_optimizer": True},
    ),
}


def as_text(settings):
    """As the run config has them; JSON is YAML too."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


@pytest.mark.parametrize(
    "case", ["all", *(pytest.param(each, marks=pytest.mark.full) for each in CASES if each != "all")]
)
@pytest.mark.few_cases
def test_same_models_and_scores_as_the_simulation(prepared, tmp_path, case):
    """On clients of 7 and 20 samples in minibatches of four: passes of different length, the last one smaller."""
    made, path = prepared
    algorithm, settings, options = CASES[case]
    grid = Loopback(nodes_of(path, 3, tmp_path))
    run(grid, tmp_path / "run", algorithm=algorithm, clients=3, aggregated=2, settings=as_text(settings), **options)
    simulated = simulate(made, algorithm, settings=settings, **options)
    assert_same_models(tmp_path, tmp_path / "run", simulated)
    assert_same_scores(lines(tmp_path / "run"), simulated)
