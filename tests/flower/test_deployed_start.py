"""On a federation: half precision, and a start from given params, as in the simulation."""

import jax
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import Loopback, assert_same_models, nodes_of, personal, run, simulate

import pfedbred
from pfedbred.errors import SettingError
from pfedbred.flower.run_config import parse

pytestmark = pytest.mark.full


@pytest.mark.broad
def test_clients_follow_the_servers_precision_and_start(prepared, tmp_path):
    made, path = prepared
    before = simulate(made, "fedavg", rounds=1, out=tmp_path / "before")
    options = {"start_from": str(pfedbred.export(tmp_path / "before")), "precision": "bfloat16"}
    grid = Loopback(nodes_of(path, 3, tmp_path))
    summary = run(grid, tmp_path / "run", algorithm="fedavg", clients=3, aggregated=2, **options)
    simulated = simulate(made, "fedavg", **options)
    assert_same_models(tmp_path, tmp_path / "run", simulated)
    assert personal(tmp_path, 0).about["precision"] == summary["experiment"]["precision"] == "bfloat16"
    assert summary["experiment"]["start_from"] == simulated.experiment.plain()["start_from"]
    first = simulated.backend.global_model(simulated.backend.init([0]))
    for one, other in zip(*map(jax.tree.leaves, (first, before.global_model())), strict=True):
        assert np.array_equal(one, other)


def test_a_federation_trains_the_whole_network():
    """Clients do not have the params that would be frozen."""
    with pytest.raises(SettingError, match="unknown key 'train-only'"):
        parse({"out": "run", "train-only": "output"})
