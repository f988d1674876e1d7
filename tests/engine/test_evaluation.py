"""Evaluation: G on the union of the clients' samples and P on each client's own, against NumPy and scikit-learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from support.backends import federation, task_for, trained

import pfedbred
from pfedbred.engine import ResidentBackend, evaluation, metrics, selection
from pfedbred.engine import scores as scoring

DATA = federation((40, 3, 17, 90), seed=2).with_validation(0.3, seed=0)


def logits(params, x):
    return x @ np.asarray(params["output"]["weight"]).T + np.asarray(params["output"]["bias"])


def scores(params, x, y):
    outputs = logits(params, x)
    log_probability = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
    return outputs.argmax(1) == y, -log_probability[np.arange(len(y)), y]


@pytest.mark.parametrize(
    ("executor", "seeds"),
    [
        ("vmap", (0, 1)),
        pytest.param("in-turn", (0,), marks=pytest.mark.full),
        pytest.param("loop", (0, 1), marks=pytest.mark.full),
    ],
)
@pytest.mark.broad
def test_evaluation_against_numpy(executor, seeds):
    engine, state = trained("mg", DATA, executor=executor, rounds=2, seeds=seeds)
    found = engine.evaluate(state)
    for seed in range(len(seeds)):
        for split, samples in DATA.parts.items():
            for model in ("global", "personal"):
                got = getattr(found.of(model), split)
                each = []
                for i in range(DATA.clients):
                    if model == "global":
                        used = engine.global_model(state, seed)
                    else:
                        used = engine.personal_model(state, i, seed)
                    each.append(scores(used, *samples.client(i)))
                accuracies = np.array([correct.mean() for correct, _ in each])
                np.testing.assert_allclose(got.client_accuracy[seed], accuracies)
                np.testing.assert_allclose(got.client_loss[seed], [loss.mean() for _, loss in each], rtol=1e-6)
                np.testing.assert_allclose(got.accuracy[seed], np.concatenate([correct for correct, _ in each]).mean())
                np.testing.assert_allclose(got.loss[seed], np.concatenate([loss for _, loss in each]).mean(), rtol=1e-6)
                np.testing.assert_allclose(got.worst_decile[seed], accuracies.min())
                np.testing.assert_allclose(got.client_std[seed], accuracies.std())


# Other metrics ----------------------------------------------------------------------------------------------


def by_sklearn(outputs, y):
    """Brier score as a sum over the classes."""
    likely = np.exp(outputs - outputs.max(1, keepdims=True))
    likely /= likely.sum(1, keepdims=True)
    onehot = np.eye(outputs.shape[1])[y]
    return {
        "f1": sklearn.metrics.f1_score(y, outputs.argmax(1), average="macro"),
        "brier": likely.shape[1] * sklearn.metrics.mean_squared_error(onehot, likely),
        "balanced": sklearn.metrics.recall_score(y, outputs.argmax(1), average="macro", labels=np.unique(y)),
    }


def recall_sums(predictions):
    """Hits and samples by class."""
    outputs, labels, _, mask = predictions
    actual = (labels[:, None] == jnp.arange(outputs.shape[-1])) & mask[:, None]
    hits = actual & (jnp.argmax(outputs, -1) == labels)[:, None]
    return jnp.sum(hits, 0), jnp.sum(actual, 0)


def recall_value(sums):
    hits, actual = sums
    with np.errstate(invalid="ignore"):
        return np.nanmean(np.where(actual > 0, hits / np.maximum(actual, 1), np.nan), -1)


BALANCED = metrics.Metric("balanced", recall_sums, recall_value, True, "classification", True, "balanced accuracy")


@pytest.mark.broad
@pytest.mark.parametrize("streamed", [False, pytest.param(True, marks=pytest.mark.full)])
def test_chosen_metrics_are_those_of_the_predictions_on_the_test_split(streamed):
    """Named ones and a custom one; the training split has accuracy and loss only."""
    chosen = metrics.resolve(["f1", "brier", BALANCED])
    engine, state = trained(
        "mg", DATA, metrics=chosen, participation="sample", streamed=streamed, executor="vmap", rounds=2
    )
    found = engine.evaluate(state)
    union_x, union_y = DATA.test.x, DATA.test.y
    in_global, in_personal = found.global_.test, found.personal.test
    outputs = logits(engine.global_model(state), union_x)
    for name, value in by_sklearn(outputs, union_y).items():
        assert in_global.values[name] == pytest.approx([value], rel=1e-6), name
    own = []
    for i in range(DATA.clients):
        x, y = DATA.test.client(i)
        own.append(logits(engine.personal_model(state, i), x))
        for name, value in by_sklearn(own[-1], y).items():
            assert in_personal.clients[name][0, i] == pytest.approx(value, rel=1e-6), (name, i)
        for name, value in by_sklearn(logits(engine.global_model(state), x), y).items():
            assert in_global.clients[name][0, i] == pytest.approx(value, rel=1e-6), (name, i)
    for name, value in by_sklearn(np.concatenate(own), union_y).items():
        assert in_personal.values[name] == pytest.approx([value], rel=1e-6), name
    for scored in (found.global_, found.personal):
        assert list(scored.test.clients) == ["accuracy", "loss", "f1", "brier", "balanced"]
        assert list(scored.train.clients) == ["accuracy", "loss"]


# Memory -----------------------------------------------------------------------------------------------------


@functools.cache
def fifty_features(samples):
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(samples, 50)), rng.integers(0, 3, samples)) for _ in range(2)]
    return pfedbred.from_clients(pairs, pairs)


def evaluation_needs(samples, seeds=(0,)):
    """Bytes of memory, and the scores."""
    data = fifty_features(samples)
    task = task_for(data)
    plan = pfedbred.Plan(selection.uniform(1), executor="vmap")
    engine = ResidentBackend(pfedbred.make("local", task), task, data, plan)
    compiled = []
    with pytest.MonkeyPatch.context() as patch:
        compile_ = jax.stages.Lowered.compile
        patch.setattr(jax.stages.Lowered, "compile", lambda *given: compiled.append(compile_(*given)) or compiled[-1])
        found = engine.evaluate(engine.init(seeds))
    return max(each.memory_analysis().temp_size_in_bytes for each in compiled), found


@pytest.mark.full
def test_evaluation_takes_no_more_memory_for_more_runs():
    """At most eight at a time, with the same counts as each alone."""
    alone, _ = evaluation_needs(600)
    few, _ = evaluation_needs(600, range(8))
    assert few > 2 * alone
    many, found = evaluation_needs(600, range(44))
    assert many < 2 * few  # the last four are a program of their own
    _, last = evaluation_needs(600, [43])
    np.testing.assert_array_equal(found.global_.test.client_accuracy[43:], last.global_.test.client_accuracy)


@pytest.mark.full
def test_evaluation_takes_no_more_memory_for_more_samples(monkeypatch):
    """Some blocks of samples at a time, with the same counts as all at once."""
    few, _ = evaluation_needs(600)
    everything, expected = evaluation_needs(10_000)
    assert everything > 5 * few
    monkeypatch.setattr(evaluation, "_LARGEST", 500_000)  # four blocks of 256 samples with 50 numbers each
    bounded, found = evaluation_needs(10_000)
    assert bounded < everything / 5
    np.testing.assert_array_equal(found.global_.test.client_accuracy, expected.global_.test.client_accuracy)
    np.testing.assert_allclose(found.personal.train.client_loss, expected.personal.train.client_loss, rtol=1e-12)


# Unusual counts ---------------------------------------------------------------------------------------------


def test_scores_from_counts():
    """25 clients of 20 samples with different accuracies, and one without samples: a tenth of 25 is 3 clients."""
    correct = np.array([[[*range(24, -1, -1), 0], [5] * 25 + [0]]]) * 0.8  # of G, and of a P that treats all alike
    samples = np.array([[[20] * 25 + [0]] * 2])
    chosen = metrics.resolve("")
    means = {"accuracy": correct, "loss": 2 * correct}
    sums = {name: metrics.base.MeanStatistics(each, samples) for name, each in means.items()}
    found, alike = scoring._scores(sums, chosen)
    accuracies = 0.8 * np.arange(25) / 20
    assert found.worst_decile[0] == pytest.approx(accuracies[:3].mean())
    assert found.client_std[0] == pytest.approx(accuracies.std())
    assert found.accuracy[0] == pytest.approx(accuracies.mean())
    assert found.loss[0] == pytest.approx(2 * accuracies.mean())
    assert np.isnan(found.client_accuracy[0, 25])
    assert alike.worst_decile[0] == pytest.approx(0.2)
    assert alike.client_std[0] == pytest.approx(0)


def test_a_model_of_nan_gets_nothing_right():
    engine, state = trained("fedavg", rounds=0)
    broken = state._replace(server=jax.tree.map(lambda leaf: leaf + jnp.nan, state.server))
    found = engine.evaluate(broken)
    assert found.global_.test.accuracy[0] == 0
    assert np.isnan(found.global_.test.loss[0])


@pytest.mark.broad
def test_a_client_without_test_samples_does_not_count_in_the_scores():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(6, 4)), rng.integers(0, 2, 6)) for _ in range(3)]
    nothing = (np.zeros((0, 4)), np.zeros(0, int))
    engine, state = trained("local", pfedbred.from_clients(pairs, [pairs[0], nothing, pairs[2]]))
    test = engine.evaluate(state).personal.test
    assert np.isnan(test.client_accuracy[0, 1])
    assert test.accuracy[0] == pytest.approx(np.mean(test.client_accuracy[0, [0, 2]]))
    assert np.isfinite(test.client_std[0])


@pytest.mark.broad
def test_regression_metrics_of_a_regression_task():
    """A task of that kind is evaluated without accuracy; G on the union, P of each client on its own samples."""
    kind = pfedbred.TASKS["regression"]
    data = federation()
    model = pfedbred.Model(
        lambda key: {"w": jax.random.normal(key, data.shape)}, lambda params, x: x.reshape(len(x), -1) @ params["w"]
    )
    task = pfedbred.Task(model, lambda outputs, labels: (outputs - labels) ** 2, kind)
    plan = pfedbred.Plan(selection.uniform(2), batch_size=3, metrics=metrics.resolve("mae,r2", kind))
    engine = pfedbred.ResidentBackend(pfedbred.make("fedavg", task, {"R": 2, "alpha": 0.01}), task, data, plan)
    state = engine.advance(engine.init([0]), 2)
    found = engine.evaluate(state).global_
    errors = data.test.x @ np.asarray(engine.global_model(state)["w"]) - data.test.y
    assert set(found.train.clients) == {"rmse", "loss"}
    assert found.test.values["rmse"][0] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert found.test.values["mae"][0] == pytest.approx(np.mean(np.abs(errors)))
    assert found.test.values["r2"][0] == pytest.approx(1 - np.mean(errors**2) / np.var(data.test.y))
    assert found.test.clients["rmse"].shape == (1, data.clients)
    assert found.test.worst_decile[0] == found.test.clients["rmse"][0].max()  # of four clients, the worst one


def test_a_run_that_diverges_beside_another_warns_of_nothing(recwarn):
    """Its clients' errors are infinite: the deviation is unknown, and numpy says nothing on the terminal."""
    found = scoring._spread(np.array([[[1.0, 3.0]], [[np.inf, np.inf]]]), higher_is_better=False)
    np.testing.assert_array_equal(found["client_std"], [[1.0], [np.nan]])
    np.testing.assert_array_equal(found["worst_decile"], [[3.0], [np.inf]])
    assert not recwarn.list
