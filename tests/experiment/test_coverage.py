"""Coverage, from the option to the record: what is calibrated, by which samples, and what is kept of it."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.engine import calibration
from pfedbred.errors import SettingError
from pfedbred.flower import run_config
from pfedbred.runs import saved_models
from pfedbred.runs.record import RunRecord

OPTIONS = {"algorithm": "pfedme", "settings": {"R": 2, "K": 1}, "aggregated": 2, "batch_size": 4, "seeds": 2}
OPTIONS |= {"validation": 0.4, "rounds": 4, "coverage": 0.9}
SIZES = (55, 40, 12, 70)  # of which 0.4 are 22, 16, 5 and 28: two clients have 19 validation samples, two have not
MODELS = ("global", "personal")


def data(task="classification"):
    federation = small_federation(SIZES)
    if task != "regression":
        return federation
    numbers = federation.each_part(lambda split: split._replace(y=split.x.sum(1).astype(np.float32)))
    return pfedbred.Federation("numbers", numbers.train, numbers.test, 1, task="regression")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return pfedbred.run(**OPTIONS, federation=data(), out=tmp_path_factory.mktemp("coverage") / "run")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers") / "run"
    return pfedbred.run(**OPTIONS, federation=data("regression"), out=folder)


def outputs(run, model, part, client, seed):
    """One client's outputs, the plain way: the chosen model on all of its samples."""
    federation = run.backend.federation
    x, y = federation.parts[part].client(client)
    params = run.global_model(seed) if model == "global" else run.personal_model(client, seed)
    return np.asarray(run.backend.task.scores(run.backend.algorithm.predict(params, x))), y


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["run", "numbers"])
@pytest.mark.few_cases
def test_each_client_is_calibrated_by_its_own_samples_or_by_all(kind, model, request):
    """By hand, client by client: of the chosen round, by validation samples, measured on test samples."""
    run = request.getfixturevalue(kind)
    assert run.calibration.own.tolist() == [True, False, False, True]
    for seed in range(2):
        validation = [outputs(run, model, "validation", client, seed) for client in range(4)]
        pooled = tuple(np.concatenate(each) for each in zip(*validation, strict=True))
        found = run.calibration.fitted[model][seed]
        for client in range(4):
            own = validation[client] if client in (0, 3) else pooled
            threshold = calibration.conformal_threshold(calibration.conformal_scores(*own), 0.9)
            assert found.threshold[client] == pytest.approx(threshold, rel=1e-5)
            scores = calibration.conformal_scores(*outputs(run, model, "test", client, seed))
            covered = scores <= threshold + 1e-9
            if kind == "run":
                logits, labels = outputs(run, model, "test", client, seed)
                covered |= logits.argmax(1) == labels
                own_temperature = calibration.fitted_temperature(*own)
                inside = calibration.COLDEST < own_temperature < calibration.HOTTEST
                wanted = own_temperature if inside else calibration.fitted_temperature(*pooled)
                assert found.temperature[client] == pytest.approx(wanted, rel=1e-4)
            assert run.calibration.values(model, "coverage")[seed, client] == pytest.approx(covered.mean())
        assert found.threshold[-1] == pytest.approx(
            calibration.conformal_threshold(calibration.conformal_scores(*pooled), 0.9), rel=1e-5
        )


@pytest.mark.full
def test_before_calibration_the_figures_are_the_metrics(run):
    """The likelihood and its like of the plain softmax are what an evaluation of the chosen round has."""
    again = pfedbred.run(**{**OPTIONS, "coverage": None}, metrics="nll,brier,ece", federation=data())
    for model in MODELS:
        for seed in range(2):
            point = again.points[run.chosen.rounds[model][seed] - 1].scores.of(model).test
            for name in ("nll", "brier", "ece"):
                np.testing.assert_allclose(
                    run.calibration.values(model, f"{name}_before")[seed], point.clients[name][seed], rtol=1e-5
                )


def test_the_summary_has_means_the_worst_tenth_and_each_client(run):
    found = RunRecord.read(run.folder).summary["calibration"]
    assert (found["version"], found["coverage"], found["own_samples"]) == (1, 0.9, 19)
    for model in MODELS:
        for name, figure in found[model]["figures"].items():
            values = run.calibration.values(model, name)
            worst = values.min(1) if name == "coverage" else values.max(1)  # the tenth of four clients is one
            assert figure["mean"]["mean"] == pytest.approx(values.mean())
            assert figure["worst_tenth"]["mean"] == pytest.approx(worst.mean())
            np.testing.assert_allclose(figure["clients"], values.mean(0), rtol=1e-5)
        for when in ("before", "after"):
            diagram = found[model]["reliability"][when]
            assert sum(diagram["samples"]) == 2 * len(run.backend.federation.test.y)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_without_test_samples_models_are_calibrated_all_the_same(task, request):
    """Nothing is measured then."""
    federation = data(task)
    empty = federation.test._replace(
        x=federation.test.x[:0], y=federation.test.y[:0], offsets=0 * federation.test.offsets
    )
    run = pfedbred.run(**OPTIONS, federation=dataclasses.replace(federation, test=empty))
    like = request.getfixturevalue("numbers" if task == "regression" else "run").calibration
    for model in MODELS:
        for one, other in zip(run.calibration.fitted[model], like.fitted[model], strict=True):
            np.testing.assert_array_equal(one.threshold, other.threshold)
        assert np.isnan(run.calibration.values(model, "coverage")).all()
    run.record()


def test_a_run_without_it_has_none_and_trains_the_same(run):
    plain = pfedbred.run(**{**OPTIONS, "coverage": None}, federation=data())
    assert plain.calibration is None
    assert "calibration" not in plain.record().summary
    np.testing.assert_array_equal(plain.accuracy("personal"), run.accuracy("personal"))


@pytest.mark.full
def test_streamed_clients_have_the_same_calibration():
    options = {**OPTIONS, "participation": "sample"}
    resident = pfedbred.run(**options, federation=data()).calibration
    streamed = pfedbred.run(**options, federation=data(), store="memory").calibration
    for model in MODELS:
        for one, other in zip(resident.fitted[model], streamed.fitted[model], strict=True):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), one, other)
        for name in ("coverage", "nll", "size"):
            np.testing.assert_allclose(resident.values(model, name), streamed.values(model, name), rtol=1e-4)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.few_cases
@pytest.mark.full
def test_every_executor_gives_the_same_outputs(run, executor):
    other = pfedbred.run(**OPTIONS, federation=data(), executor=executor)
    np.testing.assert_allclose(
        other.calibration.values("personal", "nll"), run.calibration.values("personal", "nll"), rtol=1e-4
    )


class Stop(pfedbred.Callback):
    def stop_reason(self, progress):
        return "interrupted" if progress.round == 2 else None


@pytest.mark.full
def test_a_resumed_run_has_the_calibration_of_the_uninterrupted_one(run, tmp_path):
    """Models are kept for it even if they are not written."""
    options = {**OPTIONS, "federation": data(), "out": tmp_path / "run", "keep_models": False, "checkpoint_every": 1}
    assert pfedbred.run(**options, callbacks=[Stop()]).calibration is None
    assert not (tmp_path / "run" / "summary.json").exists()
    again = pfedbred.run(**options, resume=True)
    assert not (tmp_path / "run" / "models.safetensors").exists()
    assert again.record().summary["calibration"] == run.record().summary["calibration"]


@pytest.mark.full
def test_a_run_that_diverged_has_none():
    diverged = pfedbred.run(**{**OPTIONS, "settings": {"alpha": 1e30, "R": 2}}, federation=data())
    assert diverged.diverged is not None
    assert diverged.calibration is None


# Exported models --------------------------------------------------------------------------------------------------


def test_an_exported_model_gives_the_sets_that_were_measured(run):
    for client in range(4):
        model = pfedbred.load_model(saved_models.export(run.folder, client=client, seed=1))
        x, y = run.backend.federation.test.client(client)
        fitted = run.calibration.fitted["personal"][1]
        about = model.about["calibration"]
        assert (about["coverage"], about["own"]) == (0.9, client in (0, 3))
        assert (about["temperature"], about["threshold"]) == (fitted.temperature[client], fitted.threshold[client])
        likely, sets = model.probabilities(x), model.sets(x)
        np.testing.assert_allclose(likely.sum(1), 1)
        nll = -np.log(likely[np.arange(len(y)), y]).mean()
        assert nll == pytest.approx(run.calibration.values("personal", "nll")[1, client], rel=1e-4)
        held = np.mean([label in own for own, label in zip(sets, y.tolist(), strict=True)])
        assert held == pytest.approx(run.calibration.values("personal", "coverage")[1, client])
        assert np.mean([len(own) for own in sets]) == pytest.approx(
            run.calibration.values("personal", "size")[1, client]
        )
        assert all(own[0] == best for own, best in zip(sets, model.predict(x), strict=True))  # the most likely first


def test_an_exported_global_model_has_the_calibration_of_all_clients(run):
    about = pfedbred.load_model(saved_models.export(run.folder)).about["calibration"]
    fitted = run.calibration.fitted["global"][0]
    assert about == {
        "coverage": 0.9,
        "own": False,
        "temperature": fitted.temperature[-1],
        "threshold": fitted.threshold[-1],
    }


def test_an_exported_model_of_numbers_gives_the_intervals_that_were_measured(numbers):
    model = pfedbred.load_model(saved_models.export(numbers.folder, client=3))
    x, y = numbers.backend.federation.test.client(3)
    low, high = model.intervals(x).T
    assert np.mean((low <= y) & (y <= high)) == numbers.calibration.values("personal", "coverage")[0, 3]
    np.testing.assert_allclose(high - low, numbers.calibration.values("personal", "width")[0, 3], rtol=1e-6)
    np.testing.assert_allclose((low + high) / 2, model.predict(x), rtol=1e-5, atol=1e-5)
    assert model.about["calibration"]["temperature"] is None
    with pytest.raises(SettingError, match="sets are for classes, and the task of this model is regression"):
        model.sets(x)


@pytest.mark.full
def test_one_logit_is_calibrated_like_two(tmp_path):
    """A binary model has one output; its probabilities and sets are of both labels."""
    federation = small_federation((40, 60), classes=2)
    run = pfedbred.run(**OPTIONS, federation=federation, task="binary", out=tmp_path / "run")
    model = pfedbred.load_model(saved_models.export(run.folder, client=1))
    x, y = run.backend.federation.test.client(1)
    logits, temperature = model.logits(x)[:, 0], model.about["calibration"]["temperature"]
    np.testing.assert_allclose(model.probabilities(x)[:, 1], 1 / (1 + np.exp(-logits / temperature)), rtol=1e-5)
    held = np.mean([label in own for own, label in zip(model.sets(x), y.tolist(), strict=True)])
    assert held == run.calibration.values("personal", "coverage")[0, 1]


@pytest.mark.full
def test_a_model_without_calibration_says_so(tmp_path):
    plain = pfedbred.run(**{**OPTIONS, "coverage": None}, federation=data(), out=tmp_path / "run")
    model = pfedbred.load_model(saved_models.export(plain.folder, client=0))
    for ask in (model.probabilities, model.sets):
        with pytest.raises(SettingError, match=r"not calibrated: run with validation=0.2 and coverage=0.9"):
            ask(plain.backend.federation.test.client(0)[0])


# Mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": None}, r"needs validation samples: keep some for validation \(validation 0\.2\)"),
        (
            {"coverage": 0.99},
            "coverage 0.99 needs at least 99 validation samples across all clients, but there are",
        ),
        ({"coverage": 1.0}, "coverage must be a number above 0 and below 1, not 1.0"),
        ({"coverage": "most"}, "coverage must be a number above 0 and below 1, not 'most'"),
        ({"participation": "sample", "store": "memory", "scored_clients": 3}, "evaluate all 4"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_in_one_line(options, message):
    with pytest.raises(SettingError, match=message) as refused:
        pfedbred.run(**{**OPTIONS, **options}, federation=data())
    assert "\n" not in str(refused.value)


def test_sets_of_labels_sweeps_and_real_federations_have_no_coverage():
    y = (np.arange(60)[:, None] % np.array([2, 3]) == 0).astype(np.int32)
    several = pfedbred.from_arrays(np.ones((60, 3)) * np.arange(60)[:, None], y, np.arange(60) % 2, task="multi-label")
    with pytest.raises(SettingError, match="coverage is for classes and numbers, and the task is multi-label"):
        pfedbred.run(federation=several, rounds=1, validation=0.2, coverage=0.9)
    with pytest.raises(SettingError, match="a sweep keeps no models to calibrate"):
        pfedbred.sweep(pfedbred.Experiment(**OPTIONS, dataset=data()), {"lam": [1.0, 2.0]})
    with pytest.raises(SettingError, match="coverage is not available on a real federation"):
        run_config.parse({"out": "run", "coverage": 0.9})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.update(coverage="most"), "'coverage' must be a number from 0 to 1"),
        (lambda found: found["personal"]["figures"].pop("nll_before"), "has no 'nll_before'"),
        (lambda found: found["own"].pop(), "its calibration is not of one kind, or not of all clients"),
        (lambda found: found["personal"].update(reliability=None), "not of one kind"),
        (lambda found: found["global"]["reliability"]["after"]["samples"].pop(), "not of one kind"),
    ],
)
def test_a_damaged_summary_is_refused(run, tmp_path, change, message):
    summary = json.loads((run.folder / "summary.json").read_text())
    change(summary["calibration"])
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "metrics.jsonl").write_bytes((run.folder / "metrics.jsonl").read_bytes())
    with pytest.raises(SettingError, match=message):
        RunRecord.read(tmp_path)
