"""Batch norm and dropout on a federation: the same models as in the simulation."""

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

import numpy as np
from flwr.app import Array
from support import normalised
from support.flower_grid import Loopback, assert_same_models, nodes_of, run, simulate, to_nan

from pfedbred import models
from pfedbred.runs import trained_model


def network(shape, classes):
    return normalised.linen_network(shape, classes)


@pytest.mark.parametrize(
    ("algorithm", "mode"),
    [
        pytest.param("fedavg", "average", marks=pytest.mark.full),
        pytest.param("ditto", "local", marks=pytest.mark.full),
        pytest.param("scaffold", "local", marks=pytest.mark.slow),
        pytest.param("fedbn", "local", marks=pytest.mark.slow),
    ],
)
@pytest.mark.few_cases
def test_the_same_models_as_in_the_simulation(prepared, tmp_path, monkeypatch, algorithm, mode):
    monkeypatch.setitem(models.MODELS, "normalised", network)
    made, path = prepared
    options = {"model": "normalised", "batch_norm": mode}
    run(
        Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "run", algorithm=algorithm, clients=3, aggregated=2, **options
    )
    assert_same_models(tmp_path, tmp_path / "run", simulate(made, algorithm, **options))


@pytest.mark.full
def test_statistics_that_are_not_finite_do_not_reach_the_average(prepared, tmp_path, monkeypatch):
    monkeypatch.setitem(models.MODELS, "normalised", network)

    def tamper(node, message, reply):
        if node == 101 and "upload" in reply.content:
            record = reply.content["upload"]
            (name,) = [each for each in record if each.endswith("norm.mean")]
            record[name] = Array(to_nan(record[name].numpy()))
        return reply

    grid = Loopback(nodes_of(prepared[1], 3, tmp_path), tamper)
    summary = run(grid, tmp_path / "run", algorithm="fedavg", clients=3, aggregated=3, model="normalised")
    assert summary["rejected"] == [{"clinic-1": 3}]
    kept = trained_model.load_model(tmp_path / "run/global.safetensors").params.statistics
    assert np.isfinite(kept["norm"]["mean"]).all()
