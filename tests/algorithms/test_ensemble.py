"""Ensembles of a run's seeds: their predictions, figures, calibration and files against mixtures by NumPy."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from scipy.special import expit, softmax

import pfedbred
from pfedbred.algorithms.ensemble import Members, with_ensembles
from pfedbred.engine.calibration import conformal_scores, conformal_threshold
from pfedbred.report import page
from pfedbred.tasks import TASKS, per_sample

RNG = np.random.default_rng(0)
OPTIONS = {"algorithm": "pfedme", "settings": {"R": 2, "K": 1}, "aggregated": 2, "batch_size": 4, "seeds": 3}
OPTIONS |= {"validation": 0.4, "rounds": 4, "coverage": 0.9, "posterior": "ensemble"}
SIZES = (55, 40, 12, 70)


@pytest.mark.parametrize(
    ("kind", "outputs", "probabilities"),
    [
        ("classification", 3, lambda z: softmax(z, axis=-1)),
        ("binary", 1, expit),
        ("multi-label", 3, expit),
        ("regression", 1, lambda z: z),
    ],
)
def test_predictions_are_those_of_the_mixture(kind, outputs, probabilities):
    model = pfedbred.models.mclr((4,), outputs, dtype=jnp.float64)
    task = pfedbred.Task(model, per_sample(TASKS[kind]), TASKS[kind])
    made = with_ensembles(pfedbred.make("fedavg", task), task)
    members = [jax.tree.map(lambda leaf: 3 * leaf, model.init(jax.random.key(seed))) for seed in range(5)]
    x = jnp.asarray(RNG.normal(size=(7, 4)))
    expected = np.mean([probabilities(np.asarray(model.apply(each, x))) for each in members], axis=0)
    together = Members(jax.tree.map(lambda *leaves: jnp.stack(leaves), *members))
    np.testing.assert_allclose(probabilities(np.asarray(made.predict(together, x))), expected, rtol=1e-9)
    np.testing.assert_array_equal(made.predict(members[0], x), model.apply(members[0], x))  # G is none


def data(task):
    federation = small_federation(SIZES)
    if task == "classification":
        return federation
    numbers = federation.each_part(lambda split: split._replace(y=split.x.sum(1).astype(np.float32)))
    return pfedbred.Federation("numbers", numbers.train, numbers.test, 1, task="regression")


@pytest.fixture(scope="module", params=["classification", "regression"])
def run(request, tmp_path_factory):
    return pfedbred.run(**OPTIONS, federation=data(request.param), out=tmp_path_factory.mktemp("ensemble") / "run")


def mixture(run, part, client):
    """A client's predictions: probabilities or numbers by seed, of the models of the chosen rounds; and its labels."""
    x, y = run.backend.federation.parts[part].client(client)
    made = run.backend
    scores = [made.task.scores(made.algorithm.predict(run.personal_model(client, seed), x)) for seed in range(3)]
    every = np.asarray(scores, np.float64)
    return (softmax(every, axis=-1) if every.ndim == 3 else every), y


@pytest.mark.few_cases
@pytest.mark.broad
def test_figures_and_calibration_are_those_of_the_mixture(run):
    for client in range(len(SIZES)):
        every, y = mixture(run, "test", client)
        mean = every.mean(axis=0)
        found = {name: values[0, client] for name, values in run.ensemble.test.clients.items()}
        validation, labels = mixture(run, "validation", client)
        threshold = run.calibration.fitted["personal"][0].threshold[client]
        assert run.calibration.values("personal", "coverage").shape == (1, len(SIZES))
        if mean.ndim == 2:
            assert found["accuracy"] == pytest.approx(np.mean(mean.argmax(1) == y))
            assert found["loss"] == pytest.approx(-np.mean(np.log(mean[np.arange(len(y)), y])), rel=1e-4)
            own = conformal_scores(np.log(validation.mean(axis=0)), labels)
        else:
            assert found["rmse"] == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)), rel=1e-4)
            own = np.abs(validation.mean(axis=0) - labels)
        if run.calibration.own[client]:
            assert threshold == pytest.approx(conformal_threshold(own, 0.9), rel=1e-4)


@pytest.mark.broad
def test_an_exported_ensemble_predicts_as_it_was_measured(run, tmp_path):
    x, _ = run.backend.federation.test.client(3)
    every, _ = mixture(run, "test", 3)
    model = pfedbred.load_model(pfedbred.export(run.folder, client=3, out=tmp_path / "three.safetensors"))
    assert (model.about["members"], model.about["posterior"]) == ([0, 1, 2], "ensemble")
    if every.ndim == 3:
        np.testing.assert_allclose(model.probabilities(x, calibrated=False), every.mean(axis=0), rtol=1e-4, atol=1e-6)
        assert run.predict(x, 3) == model.predict(x) == every.mean(axis=0).argmax(1).tolist()
    else:
        np.testing.assert_allclose(model.predict(x), every.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(model.deviations(x), every.std(axis=0), rtol=1e-3, atol=1e-5)
        assert model.intervals(x).shape == (len(x), 2)
    plain = pfedbred.load_model(pfedbred.export(run.folder, seed=2, out=tmp_path / "global.safetensors"))
    np.testing.assert_allclose(
        plain.logits(x), run.backend.algorithm.predict(run.global_model(2), jnp.asarray(x)), rtol=1e-5
    )
    with pytest.raises(pfedbred.SettingError, match="ensembles of all seeds: leave the seed out"):
        pfedbred.export(run.folder, client=3, seed=1)


@pytest.mark.broad
def test_the_record_and_the_page_have_the_ensemble(run):
    found = json.loads((run.folder / "summary.json").read_text())
    first = next(iter(found["metric_info"]))
    values = run.ensemble.test.values
    assert found["ensemble"]["metrics"][first]["value"] == pytest.approx(values[first][0])
    assert len(found["ensemble"]["metrics"][first]["clients"]) == len(SIZES)
    assert found["ensemble"]["worst_tenth"] == pytest.approx(values["worst_decile"][0])
    (shown,) = page.gather([run.folder])["runs"]
    scale = 100 if found["metric_info"][first]["percent"] else 1
    assert shown["ensemble"]["values"][first] == pytest.approx(scale * values[first][0], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": 1}, "an ensemble needs 2 seeds or more, not 1"),
        ({"store": "memory", "participation": "sample", "scored_clients": 2}, "an ensemble needs the outputs of all"),
    ],
)
def test_what_cannot_be_an_ensemble_is_said(options, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.run(**{**OPTIONS, "coverage": None, **options}, federation=data("classification"))


def test_a_sweep_has_no_ensembles():
    given = {name: value for name, value in OPTIONS.items() if name != "coverage"}
    with pytest.raises(pfedbred.SettingError, match="a sweep keeps no models for an ensemble"):
        pfedbred.sweep(pfedbred.Experiment(**given), {"lam": [1.0, 2.0]}, federation=data("classification"))


@pytest.mark.full
@pytest.mark.broad
def test_streamed_clients_have_the_same_ensembles_and_no_validation_takes_the_last_round():
    given = {**OPTIONS, "validation": None, "coverage": None, "participation": "sample"}
    one, other = (
        pfedbred.run(**given, federation=data("classification"), store=store) for store in ("device", "memory")
    )
    np.testing.assert_allclose(one.ensemble.test.clients["loss"], other.ensemble.test.clients["loss"], rtol=1e-5)
