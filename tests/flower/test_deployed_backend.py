"""The deployed backend gives the simulation's models and scores."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import ALL, Loopback, assert_same_models, coordinator, lines, nodes_of, personal, run, simulate
from test_wire import uploads_of

import pfedbred
from pfedbred import aggregation
from pfedbred.errors import SettingError
from pfedbred.runs import saved_models

FULL = ("mime", "scaffold", "mg-meta+am", "per-fedavg+ft", "learned-prior")
METHODS = [name for name in dict.fromkeys([*FULL, *pfedbred.ALGORITHMS]) if name not in ("mg-meta", "fedbn")]
RICH = {"metrics": "accuracy,f1,ece,auroc", "diagnostics": True}


@pytest.fixture(scope="module")
def ended(prepared, tmp_path_factory):
    """A run of mg-meta with more metrics and diagnostics: its folder, its grid and its summary."""
    folder = tmp_path_factory.mktemp("ended")
    grid = Loopback(nodes_of(prepared[1], 3, folder))
    options = {"algorithm": "mg-meta", "clients": 3, "aggregated": 2, **RICH}
    return folder, grid, run(grid, folder / "run", draw=True, track="tensorboard", **options)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=pytest.mark.full if name in FULL else pytest.mark.slow) for name in METHODS]
)
@pytest.mark.few_cases(2)
def test_same_models_and_scores_as_the_simulation(prepared, tmp_path, algorithm):
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))
    run(grid, tmp_path / "run", algorithm=algorithm, clients=3, aggregated=2)
    simulated = simulate(made, algorithm)
    assert_same_models(tmp_path, tmp_path / "run", simulated)
    assert_same_scores(lines(tmp_path / "run"), simulated)
    # Two clients in three rounds; the third sends none.
    assert uploads_of(grid.wire, made, algorithm) == 2 * 3 * (2 if algorithm == "mime" else 1)


def assert_same_scores(found, simulated):
    assert [line["round"] for line in found] == [point.round for point in simulated.points]
    for line, point in zip(found, simulated.points, strict=True):
        for model in ("global", "personal"):
            scores = point.scores.of(model)
            assert set(line[model]["test"]) == {
                *scores.test.values,
                *(f"client_{name}" for name in scores.test.clients),
            }
            for name, values in scores.test.values.items():
                np.testing.assert_allclose(line[model]["test"][name], values, rtol=1e-4, err_msg=name)
            np.testing.assert_allclose(line[model]["train"]["loss"], scores.train.loss, rtol=1e-4)
        for name, values in point.diagnostics.items():
            np.testing.assert_allclose(line["diagnostics"][name], values, rtol=1e-4, err_msg=name)


@pytest.mark.full
def test_every_metric_and_diagnostic_arrives(prepared, ended):
    folder, grid, summary = ended
    made, _ = prepared
    simulated = simulate(made, "mg-meta", **{**RICH, "metrics": RICH["metrics"].split(",")})
    assert_same_models(folder, folder / "run", simulated)
    found = lines(folder / "run")
    assert_same_scores(found, simulated)
    assert {"f1", "ece", "auroc", "client_auroc"} <= set(found[0]["personal"]["test"])
    assert "update_norm" in found[0]["diagnostics"]
    assert set(summary["personal"]["metrics"]) == {"accuracy", "loss", "f1", "ece", "auroc"}
    assert uploads_of(grid.wire, made, "mg-meta") == 2 * 3


def test_neither_theta_nor_a_sample_crosses_the_wire(prepared, ended):
    folder, grid, _ = ended
    made, _ = prepared
    own = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(personal(folder, i).params)]) for i in range(3)]
    numbers = set(np.concatenate([*own, made.train.x.ravel()]).tolist()) - {0.0}
    for _, _, reply in grid.wire:
        for record in reply.content.array_records.values():
            for array in record.values():
                assert not numbers & set(array.numpy().ravel().tolist())


def test_the_run_folder_is_complete(prepared, ended):
    folder, _, summary = ended
    out = folder / "run"
    names = {each.name.split("-")[0] for each in out.iterdir()}
    expected = {"config.yaml", "curves.png", "global.safetensors", "metrics.jsonl", "summary.json"}
    assert names == {"checkpoint", "tracking", *expected}
    assert json.loads((out / "summary.json").read_text()) == summary
    assert summary["data"]["train_samples"] == len(prepared[0].train.y)
    assert summary["federation"]["clients"] == ["clinic-0", "clinic-1", "clinic-2"]
    assert summary["seconds"]["round"] >= summary["federation"]["client_seconds"]
    assert (summary["rejected"], summary["skipped_rounds"]) == ([{}], [0])


def test_a_tracker_on_the_server_records_the_run(ended):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = ended[0] / "run" / "tracking" / "tensorboard"
    found = reader.EventAccumulator(str(folder), {"histograms": 0}).Reload()
    rounds = [line["round"] for line in lines(ended[0] / "run")]
    assert [each.step for each in found.Scalars("personal/test/accuracy")] == rounds
    assert [each.step for each in found.Histograms("personal/test/clients/accuracy")] == rounds


def test_personal_models_stay_with_their_clients(ended):
    folder, _, _ = ended
    with pytest.raises(SettingError, match=r"personal models are with their clients, and G is .*global\.safetensors"):
        saved_models.export(folder / "run", client=1)
    assert personal(folder, 1).about["client_name"] == "clinic-1"


@pytest.mark.parametrize(
    "algorithm", [pytest.param("scaffold", marks=pytest.mark.full), pytest.param("fedamp", marks=pytest.mark.slow)]
)
def test_a_sampled_cohort(prepared, tmp_path, algorithm):
    made, path = prepared
    options = {"participation": "sample", "aggregated": 2, "rounds": 4}
    run(Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "run", algorithm=algorithm, clients=3, **options)
    assert_same_models(tmp_path, tmp_path / "run", simulate(made, algorithm, store="device", **options))


@pytest.mark.full
def test_robust_rules_and_uniform_weights(prepared, tmp_path):
    made, path = prepared
    options = {"aggregate": "trimmed", "outliers": 0.3, "weights": "uniform", "aggregated": 3}
    run(Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "run", algorithm="fedavg", clients=3, **options)
    assert_same_models(tmp_path, tmp_path / "run", simulate(made, "fedavg", **options))


@pytest.mark.full
def test_a_rule_draws_the_simulations_random_numbers(prepared, tmp_path, monkeypatch):
    """The same key in the same round: a rule that adds noise gives the same G."""

    def noisy():
        def rule(gathered):
            mean = aggregation.weighted_mean(gathered)
            return jax.tree.map(lambda leaf: leaf + jax.random.normal(gathered.key, leaf.shape, jnp.float32), mean)

        return rule

    monkeypatch.setitem(aggregation.RULES, "noisy", noisy)
    made, path = prepared
    run(Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "run", algorithm="fedavg", aggregate="noisy", **ALL)
    assert_same_models(tmp_path, tmp_path / "run", simulate(made, "fedavg", aggregate="noisy", aggregated=3))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (
            {"algorithm": "os:getcwd"},
            "algorithm must be given by name on a federation, not as an import path: 'os:getcwd'",
        ),
        ({"aggregate": "os:getcwd"}, "aggregate must be given by name"),
        ({"settings": "prior=os:getcwd"}, "settings must be given by name"),
        ({"settings": "sigma=sigma.npy prior=gaussian"}, "sigma cannot be a file on a federation"),
    ],
)
def test_a_federation_takes_names_only(prepared, tmp_path, changed, complaint):
    with pytest.raises(SettingError, match=complaint):
        coordinator(Loopback(nodes_of(prepared[1], 3, tmp_path)), tmp_path / "run", **changed)


def test_a_metric_object_cannot_be_sent(tmp_path):
    from pfedbred.engine.metrics import METRICS
    from pfedbred.flower.run_config import parse
    from pfedbred.flower.server import Coordinator

    options, fields = parse({"out": str(tmp_path / "run")})
    custom = METRICS["f1"]._replace(name="own_f1")
    with pytest.raises(SettingError, match="metrics must be given by name on a federation, not as a Metric"):
        Coordinator(Loopback({}), options, {**fields, "metrics": ["accuracy", custom]})
