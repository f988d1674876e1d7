"""Kinds of tasks: losses, mixtures and optima against NumPy, SciPy and scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax
from sklearn.linear_model import LogisticRegression

import pfedbred
from pfedbred import SettingError, tasks
from pfedbred.data.minibatches import Batch
from pfedbred.tasks import TASKS, Target

RNG = np.random.default_rng(0)
LOGITS, CLASSES = RNG.normal(size=(7, 3)) * 4, RNG.integers(0, 3, 7)
SETS, NUMBERS = RNG.integers(0, 2, (7, 3)), RNG.normal(size=7)


def _nll(p, y):
    return -(y * np.log(p) + (1 - y) * np.log(1 - p))


LOSSES = {
    "classification": (LOGITS, CLASSES, -log_softmax(LOGITS, -1)[np.arange(7), CLASSES]),
    "binary": (LOGITS[:, 0], SETS[:, 0], _nll(expit(LOGITS[:, 0]), SETS[:, 0])),
    "multi-label": (LOGITS, SETS, _nll(expit(LOGITS), SETS).sum(1)),
    "regression": (LOGITS[:, 0], NUMBERS, 0.5 * (LOGITS[:, 0] - NUMBERS) ** 2),
}


def test_every_task_has_a_reference_here():
    assert LOSSES.keys() == TASKS.keys()
    assert all(kind.name == name for name, kind in TASKS.items())


@pytest.mark.parametrize("name", TASKS)
def test_losses(name):
    outputs, targets, expected = LOSSES[name]
    np.testing.assert_allclose(TASKS[name].losses(jnp.asarray(outputs), jnp.asarray(targets)), expected, rtol=1e-10)


@pytest.mark.parametrize(("name", "shape"), [("binary", (3,)), ("multi-label", (3, 1))])
def test_losses_of_large_logits_are_finite_and_so_are_their_gradients(name, shape):
    far, y = jnp.asarray([-1e4, 1e4, 1e4]).reshape(shape), jnp.asarray([1, 0, 1]).reshape(shape)
    total = lambda z: jnp.sum(TASKS[name].losses(z, y))  # noqa: E731
    assert total(far) == 2e4
    assert jnp.isfinite(jax.grad(total)(far)).all()


def test_numbers_have_named_losses():
    outputs, targets, half = LOSSES["regression"]
    errors = np.abs(outputs - targets)
    expected = {"squared": half, "absolute": errors, "huber": np.where(errors < 1, half, errors - 0.5)}
    for name, values in expected.items():
        np.testing.assert_allclose(tasks.get_loss(name, TASKS["regression"])(outputs, targets), values, rtol=1e-10)
    assert expected.keys() == tasks.LOSSES.keys()


def test_mixtures_mix_probabilities_and_means():
    """FedEM predicts with them."""
    weights = np.array([0.2, 0.5, 0.3])
    outputs = RNG.normal(size=(3, 4, 2)) * 3
    logits = TASKS["classification"].mix(np.log(weights), jnp.asarray(outputs))
    np.testing.assert_allclose(softmax(logits, -1), np.tensordot(weights, softmax(outputs, -1), 1), rtol=1e-10)
    for name in ("binary", "multi-label"):
        odds = TASKS[name].mix(jnp.log(weights), jnp.asarray(outputs))
        np.testing.assert_allclose(expit(odds), np.tensordot(weights, expit(outputs), 1), rtol=1e-10)
    far = TASKS["classification"].mix(jnp.log(jnp.asarray([0.5, 0.5])), jnp.asarray([[[1e4, 0.0]], [[0.0, 1e4]]]))
    np.testing.assert_allclose(softmax(far, -1), [[0.5, 0.5]])
    means = TASKS["regression"].mix(jnp.log(weights), jnp.asarray(outputs))
    np.testing.assert_allclose(means, np.tensordot(weights, outputs, 1), rtol=1e-10)


def test_binary_scores_are_logits_of_both_labels():
    scores = TASKS["binary"].scores(jnp.asarray(LOGITS[:, 0]))
    np.testing.assert_allclose(softmax(scores, -1)[:, 1], expit(LOGITS[:, 0]), rtol=1e-10)


def test_predictions_are_shown_by_name():
    scores = np.array([[-1.0, 2.0, 3.0], [0.5, -0.5, 0.1], [-1.0, -1.0, -2.0]])
    names = ("a", "b", "c")
    assert TASKS["classification"].show(scores, names) == ["c", "a", "a"]
    assert TASKS["multi-label"].show(scores, names) == [("b", "c"), ("a", "c"), ()]
    assert TASKS["multi-label"].show(scores, None)[0] == (1, 2)
    assert TASKS["regression"].show(scores[:, 0], None) == [-1.0, 0.5, -1.0]


def test_several_labels_are_as_many_binary_tasks():
    """Each label's gradient is that of a binary task alone."""
    model = pfedbred.models.mclr((4,), 3, dtype=jnp.float64)
    params, x = model.init(jax.random.key(0)), jnp.asarray(RNG.normal(size=(7, 4)))
    kind = TASKS["multi-label"]
    whole = jax.grad(pfedbred.Task(model, kind.losses, kind).loss)(params, Batch(x, jnp.asarray(SETS)))["output"]
    binary = TASKS["binary"]
    alone = pfedbred.Task(pfedbred.models.mclr((4,), 1, dtype=jnp.float64), tasks.per_sample(binary), binary)
    for label in range(3):
        own = jax.tree.map(lambda leaf, label=label: leaf[label : label + 1], params)
        found = jax.grad(alone.loss)(own, Batch(x, jnp.asarray(SETS[:, label])))["output"]
        np.testing.assert_allclose(found["weight"][0], whole["weight"][label], rtol=1e-10)
        np.testing.assert_allclose(found["bias"][0], whole["bias"][label], rtol=1e-10)


# Where they lead ----------------------------------------------------------------------------------------------------


def alone(x, y, task, **options):
    """A federation of one client that trains on all of its samples at every step, and predicts them."""
    federation = pfedbred.from_clients([(x, y)], [(x, y)], task=task)
    settings = {"alpha": 0.5, "R": 400}
    model = lambda shape, outputs: pfedbred.models.mclr(shape, outputs, dtype=jnp.float64)  # noqa: E731
    options = {
        "batch_size": len(y),
        "rounds": 10,
        "settings": settings,
        "model": model,
        "algorithm": "fedavg",
        **options,
    }
    return pfedbred.run(federation=federation, **options)


@pytest.mark.broad
def test_a_linear_model_learns_least_squares_in_the_units_of_the_labels():
    x = RNG.normal(size=(20, 3))
    y = 1000 + 50 * (x @ [1.0, -2.0, 0.5] + RNG.normal(size=20))
    run = alone(x, y, "regression")
    design = np.column_stack([x, np.ones(20)])
    errors = design @ np.linalg.lstsq(design, y, rcond=None)[0] - y
    found = run.points[-1].scores.global_.test.values
    assert found["rmse"][0] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-5)
    assert found["mae"][0] == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)
    assert found["r2"][0] == pytest.approx(1 - np.mean(errors**2) / np.var(y), rel=1e-4)
    assert found["loss"][0] == pytest.approx(0.5 * np.mean(errors**2) / np.var(y), rel=1e-4)  # of standardised labels
    assert run.backend.task.target == pytest.approx(Target(np.mean(y), np.std(y)), rel=1e-6)


@pytest.mark.broad
@pytest.mark.parametrize("weights", ["balanced", [1.0, 3.0]])
def test_class_weights_lead_where_scikit_learn_goes(weights):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    y = (x @ [1.0, -1.0] + rng.normal(size=60) > 0.9).astype(int)
    run = alone(x, y, "binary", class_weights=weights, rounds=20)
    given = weights if weights == "balanced" else dict(enumerate(weights))
    exact = LogisticRegression(C=np.inf, class_weight=given, tol=1e-10, max_iter=1000).fit(x, y)
    found = run.global_model()["output"]
    np.testing.assert_allclose(found["weight"], exact.coef_, rtol=1e-3)
    np.testing.assert_allclose(found["bias"], exact.intercept_, rtol=1e-3, atol=1e-3)


def test_weights_multiply_the_losses_of_their_labels():
    kind = TASKS["classification"]
    plain = tasks.per_sample(kind)(jnp.asarray(LOGITS), jnp.asarray(CLASSES))
    weighted = tasks.per_sample(kind, weights=np.array([1.0, 2.0, 5.0]))(jnp.asarray(LOGITS), jnp.asarray(CLASSES))
    np.testing.assert_allclose(weighted, np.array([1.0, 2.0, 5.0])[CLASSES] * plain)


def test_equal_numbers_can_be_learned():
    losses = tasks.per_sample(TASKS["regression"], target=Target(3.0, 0.0))
    np.testing.assert_array_equal(losses(jnp.zeros((2, 1)), jnp.full(2, 3.0)), 0)


# Mistakes -----------------------------------------------------------------------------------------------------------


def scalar_loss(outputs, targets):
    return jnp.mean((outputs - targets) ** 2)


def numbers():
    x = RNG.normal(size=(12, 2))
    return pfedbred.from_arrays(x, x[:, 0] * 3, np.arange(12) % 2, task="regression", test_fraction=0.25)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "regresion"}, "unknown task 'regresion'; did you mean 'regression'"),
        ({"task": 3}, "task must be a name, a TaskKind or a function, not 3"),
        ({"task": "binary"}, "the task binary is for two labels, and digits has 10"),
        ({"task": "multi-label"}, "the task multi-label is for sets of labels, but the labels of digits are classes"),
        ({"loss": "huber"}, "the loss huber is for numbers, and the task is classification"),
        ({"loss": "hubert"}, "unknown loss 'hubert'; did you mean 'huber'"),
        ({"loss": scalar_loss, "task": "regression"}, r"one number for each sample, \(2,\) for two of them, not \(\)"),
        ({"loss": lambda outputs: outputs}, "the loss cannot be computed from outputs and targets"),
        ({"class_weights": "1,2"}, "class_weights has 2 numbers, and digits has 10 labels"),
        ({"class_weights": "much"}, "class_weights must be balanced, or numbers >= 0 such as 1,5, not 'much'"),
        (
            {"class_weights": "balanced", "task": "regression"},
            "class_weights is for classes, and the task is regression",
        ),
        ({"metrics": "f1", "task": "regression"}, "f1 is for classification, and this task is regression"),
    ],
)
def test_mistakes_are_one_line(options, words):
    with pytest.raises(SettingError, match=words) as raised:
        pfedbred.run(rounds=1, **options)
    assert "\n" not in str(raised.value)


def test_a_model_must_have_the_outputs_of_the_task():
    model = pfedbred.models.mclr((2,), 3)
    with pytest.raises(SettingError, match=r"the task regression needs a model with 1 outputs, and this one gives"):
        pfedbred.run(federation=numbers(), model=model, rounds=1)


OWN = """
import jax.numpy as jnp

def own(f, y):
    errors = jnp.abs(f - y)
    return jnp.where(errors < 1, errors**2 / 2, errors - 0.5)
"""


@pytest.mark.full
def test_a_loss_of_ones_own_is_recorded_by_its_import_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_losses.py").write_text(OWN)
    options = {"rounds": 2, "algorithm": "pfedme", "settings": {"R": 2, "K": 2}, "federation": numbers()}
    named = pfedbred.run(loss="huber", **options)
    given = pfedbred.run(loss="own_losses:own", **options)
    assert given.experiment.plain()["loss"] == "own_losses:own"
    np.testing.assert_allclose(given.curve("rmse", "personal"), named.curve("rmse", "personal"), rtol=1e-5)
    local = pfedbred.run(loss=lambda f, y: abs(f - y), **options)
    assert "not importable" in local.experiment.plain()["loss"]
    assert np.any(local.curve("loss", "personal") != named.curve("loss", "personal"))


def test_a_task_of_ones_own_is_an_object():
    kind = TASKS["regression"]._replace(name="median", losses=tasks.LOSSES["absolute"], metrics=("mae", "loss"))
    run = pfedbred.run(federation=numbers(), task=kind, rounds=1, metrics="r2")
    assert [each.name for each in run.backend.plan.metrics] == ["mae", "loss", "r2"]
    assert run.record().primary == "mae"


@pytest.mark.parametrize("split", ["dirichlet(0.5)", "labels(2)"])
def test_numbers_cannot_be_split_by_label(split):
    with pytest.raises(SettingError, match=r"divides by label, but the labels of custom are numbers: use column, iid"):
        pfedbred.from_arrays(np.ones((8, 2)), np.arange(8) / 3, task="regression", split=split, clients=2)


def test_fractions_are_not_classes(tmp_path):
    (tmp_path / "t.csv").write_text("client,x,y\n" + "".join(f"{i % 2},{i},{i / 4}\n" for i in range(8)))
    with pytest.raises(SettingError, match=r"t.csv, line 3: label 0.25 is neither .*the task is regression"):
        pfedbred.load(str(tmp_path / "t.csv"))
    assert pfedbred.load(str(tmp_path / "t.csv"), task="regression").train.y.dtype == np.float32
    assert pfedbred.load(str(tmp_path / "t.csv"), task="classification").classes == 8


@pytest.mark.full
@pytest.mark.parametrize("task", ["regression", "multi-label", "binary"])
def test_clients_in_memory_learn_as_on_the_device(task):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = {"regression": 5 + x[:, 0], "multi-label": (x > 0).astype(int), "binary": (x[:, 0] > 0).astype(int)}[task]
    federation = pfedbred.from_arrays(x, y, np.arange(40) % 4, task=task)
    options = {"algorithm": "pfedme", "settings": {"R": 2, "K": 2}, "rounds": 2, "participation": "sample"}
    device, memory = (pfedbred.run(federation=federation, store=store, **options) for store in ("device", "memory"))
    for name in device.points[-1].scores.personal.test.values:
        for model in ("global", "personal"):
            np.testing.assert_allclose(memory.curve(name, model), device.curve(name, model), rtol=1e-4)


def test_classes_without_names_can_be_taken_for_numbers():
    federation = pfedbred.load("digits", task="regression")
    assert (federation.train.y.dtype, federation.classes, federation.task) == (np.float32, 1, "regression")
    assert pfedbred.Experiment(task="regression").checked().metrics == ["rmse", "loss", "mae", "r2"]
