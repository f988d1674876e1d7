"""Aggregation rules against plain NumPy: with rejected uploads, averaging weights, ties and few clients."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import array_sizes, small_federation
from hypothesis import given
from hypothesis import strategies as st

import pfedbred
from pfedbred import aggregation
from pfedbred.aggregation import RULES, Gathered
from pfedbred.algorithms.base import Uploads
from pfedbred.engine import ResidentBackend, selection
from pfedbred.experiment.configuration import Experiment

CLIENTS = 7
SHAPES = {"a": (2, 3), "b": ()}
CENTRE = {"a": np.arange(6.0).reshape(2, 3) / 4, "b": np.array(-0.5)}


KEY = jax.random.key(0)


@functools.cache
def rule(name, outliers=0.2):
    return aggregation.get(name, outliers=outliers)


def dropped(outliers, n):
    """floor(outliers n), with the decimal fraction that was written."""
    return math.floor(round(outliers * n, 6))


def by_hand(name, u, p, outliers, centre):
    """Of the valid uploads, one row each; p are their averaging weights, which sum to one."""
    n = len(u)
    f = dropped(outliers, n)
    if name == "mean":
        return p @ u
    if name == "median":
        return np.median(u, axis=0)
    if name == "trimmed":
        means = []
        for column in u.T:
            order = sorted(range(n), key=lambda i: (column[i], i))[f : n - f]
            means.append(sum(p[i] * column[i] for i in order) / sum(p[i] for i in order))
        return np.array(means)
    if name == "clipped":
        lengths = np.linalg.norm(u - centre, axis=1)
        limit = np.median(lengths)
        shrunk = [(row - centre) * min(1.0, limit / length) if length else row - centre for row, length in zip(u, lengths, strict=True)]  # fmt: skip # noqa: E501
        return centre + p @ np.array(shrunk)
    if name != "krum":
        raise KeyError(f"add the formula of the rule {name} here")
    scores = []
    for i in range(n):
        others = sorted(np.sum((u[i] - u[j]) ** 2) for j in range(n) if j != i)
        scores.append(sum(others[: max(n - f - 2, 1)]))
    chosen = sorted(range(n), key=lambda i: (scores[i], i))[: n - f]
    return p[chosen] @ u[chosen] / p[chosen].sum()


def flat(tree):
    return np.concatenate([np.reshape(tree[name], (*np.shape(tree[name])[: -len(SHAPES[name]) or None], -1)) for name in SHAPES], axis=-1)  # fmt: skip # noqa: E501


def example(seed, kind, valid):
    """Uploads, and the averaging weights of the valid ones. In ``few values`` entries are often equal."""
    rng = np.random.default_rng(seed)
    draw = (
        (lambda size: rng.integers(-2, 3, size) / 2) if kind == "few values" else (lambda size: rng.normal(size=size))
    )
    uploads = {name: draw((CLIENTS, *shape)) for name, shape in SHAPES.items()}
    if kind == "one far away":
        uploads = {name: np.concatenate([leaf[:1] + 1e4, leaf[1:]]) for name, leaf in uploads.items()}
    weights = np.where(valid, rng.integers(1, 9, CLIENTS), 0)
    return uploads, weights / weights.sum()


@functools.cache
def program(rule):
    """Compiled once, whichever uploads are valid."""
    return jax.jit(lambda *given: rule(Gathered(*given, KEY)))


def ours(rule, uploads, weights, valid):
    return jax.tree.map(np.asarray, program(rule)(uploads, weights, valid, CENTRE))


masks = st.lists(st.booleans(), min_size=CLIENTS, max_size=CLIENTS).filter(any)


@pytest.mark.parametrize("name", RULES)
@given(st.integers(0, 10**6), st.sampled_from(["normal", "few values", "one far away"]), masks)
def test_rules_match_their_formulas(name, seed, kind, mask):
    if name == "krum" and kind == "few values":
        kind = "normal"  # equal scores are decided by rounding
    valid = np.array(mask)
    uploads, weights = example(seed, kind, valid)
    for outliers in (0.2, 0.45):
        found = ours(rule(name, outliers), uploads, weights, valid)
        expected = by_hand(name, flat(uploads)[valid], weights[valid], outliers, flat(CENTRE))
        np.testing.assert_allclose(flat(found), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_one_client_is_its_own_average(name):
    uploads, _ = example(0, "normal", np.ones(CLIENTS, bool))
    for i in (0, 5):
        valid = np.arange(CLIENTS) == i
        found = ours(rule(name, 0.45), uploads, valid.astype(float), valid)
        np.testing.assert_allclose(flat(found), flat(uploads)[i], rtol=1e-12)


@pytest.mark.parametrize("name", ["trimmed", "krum"])
def test_dropping_nothing_is_the_mean(name):
    valid = np.array([True] * 5 + [False] * 2)
    uploads, weights = example(1, "normal", valid)
    found, mean = (ours(rule(each, 0.0), uploads, weights, valid) for each in (name, "mean"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, mean)


@pytest.mark.parametrize("name", ["median", "trimmed", "clipped", "krum"])
@given(st.integers(0, 10**6), st.floats(10, 1e6))
def test_one_bad_upload_cannot_pull_the_result_far(name, seed, far):
    """Of seven, one is anywhere: the average stays among the others. The mean goes with it."""
    valid = np.ones(CLIENTS, bool)
    uploads, _ = example(seed, "normal", valid)
    uploads = {key: np.concatenate([leaf[:1] * 0 + far, leaf[1:]]) for key, leaf in uploads.items()}
    uniform = np.full(CLIENTS, 1 / CLIENTS)
    found = ours(rule(name, 0.2), uploads, uniform, valid)
    assert np.max(np.abs(flat(found))) < 5
    mean = ours(rule("mean"), uploads, uniform, valid)
    assert np.max(np.abs(flat(mean))) > far / CLIENTS - 5


@pytest.mark.parametrize(
    ("outliers", "n", "f"), [(0.29, 100, 29), (0.1, 10, 1), (0.2, 4, 0), (0.3, 10, 3), (0.49, 3, 1)]
)
def test_how_many_uploads_are_dropped(outliers, n, f):
    """Values 0 ... n - 1 with weights that tell them apart: what is left is their weighted mean."""
    values, weights = np.arange(float(n)), np.arange(1.0, n + 1) / np.sum(np.arange(1.0, n + 1))
    given = Gathered(values, weights, np.ones(n, bool), None, KEY)
    found = jax.jit(rule("trimmed", outliers))(given)
    kept = slice(f, n - f)
    assert float(found) == pytest.approx(values[kept] @ weights[kept] / weights[kept].sum(), rel=1e-12)


def test_totals_and_plain_means():
    """SCAFFOLD's sum is of all alike, whatever the weights; by a robust rule, its mean times how many there are."""
    valid = np.array([True] * 5 + [False] * 2)
    uploads, weights = example(3, "normal", valid)
    uploads = {name: np.where(valid.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0) for name, leaf in uploads.items()}
    rows = flat(uploads)[valid]
    for name, expected in (("mean", rows.mean(axis=0)), ("median", np.median(rows, axis=0))):

        @jax.jit
        def both(uploads, weights, valid, name=name):
            found = Uploads(uploads, jnp.arange(CLIENTS), weights, valid, KEY, rule(name))
            return found.average(weighted=False), found.total()

        plain, total = both(uploads, weights, valid)
        np.testing.assert_allclose(flat(plain), expected, rtol=1e-12)
        np.testing.assert_allclose(flat(total), 5 * expected, rtol=1e-12)
    part = Uploads(uploads, jnp.arange(CLIENTS), weights, jnp.asarray(valid), KEY).average(lambda upload: upload["b"])
    assert float(part) == pytest.approx(float(weights @ uploads["b"]))


def test_krum_allocates_no_array_of_pairs_times_parameters():
    clients, d = 60, 100
    average = lambda uploads, w, valid: rule("krum")(Gathered(uploads, w, valid, None, KEY))  # noqa: E731
    shapes = [jax.ShapeDtypeStruct((clients, d), float), jax.ShapeDtypeStruct((clients,), float)]
    program = jax.make_jaxpr(average)(*shapes, jax.ShapeDtypeStruct((clients,), bool))
    assert max(array_sizes(program.jaxpr)) <= clients * d < clients * clients * d


# In a run --------------------------------------------------------------------------------------------------


def vector(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.broad
def test_a_round_uses_the_rule():
    """SCAFFOLD, in the plain loop: the model is the rule of what clients uploaded, and the control follows it too."""
    sizes = (7, 12, 5, 20, 9)
    federation = small_federation(sizes)
    task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes, dtype=jnp.float64))
    scaffold, seen = pfedbred.make("scaffold", task, {"R": 2}), []

    def by_rule(rule):
        aggregate = jax.jit(lambda state, given: scaffold.server.aggregate(state, Uploads(*given, rule)))
        return lambda state, uploads: aggregate(state, uploads[:-1])

    def aggregate(state, uploads):
        seen.append((state, uploads))
        return by_rule(uploads.rule)(state, uploads)

    watched = scaffold._replace(server=scaffold.server._replace(aggregate=aggregate))
    plan = pfedbred.Plan(selection.fixed(range(5)), batch_size=4, executor="loop", rule=rule("krum", 0.3))
    backend = ResidentBackend(watched, task, federation, plan)
    backend.advance(backend.init([0]), 2)
    state, uploads = seen[-1]
    assert uploads.rule is plan.rule
    models = np.stack([vector(jax.tree.map(lambda leaf, i=i: leaf[i], uploads.upload.w)) for i in range(5)])
    changes = np.stack(
        [vector(jax.tree.map(lambda leaf, i=i: leaf[i], uploads.upload.control_change)) for i in range(5)]
    )
    for name in RULES:
        after = by_rule(rule(name))(state, uploads)
        expected = by_hand(name, models, np.array(sizes) / 53, 0.2, vector(state.model))
        np.testing.assert_allclose(vector(after.model), expected, rtol=1e-9, atol=1e-12)
        change = by_hand(name, changes, np.full(5, 0.2), 0.2, 0 * changes[0])  # times five, over five
        control = vector(state.extra["control"]) + change
        np.testing.assert_allclose(vector(after.extra["control"]), control, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("algorithm", ["fedamp", "heurfedamp", "fedu", "local"])
def test_servers_that_do_not_average_reject_a_rule(algorithm):
    with pytest.raises(pfedbred.SettingError, match=f"must be mean for {algorithm}: its server does not av"):
        pfedbred.run(federation=small_federation(), algorithm=algorithm, aggregate="krum")
    task = pfedbred.Task(pfedbred.models.mclr((6,), 3))
    plan = pfedbred.Plan(selection.uniform(2), rule=rule("krum"))
    with pytest.raises(pfedbred.SettingError, match="must be mean for this algorithm"):
        ResidentBackend(pfedbred.make(algorithm, task), task, small_federation(), plan)


def test_clipping_needs_a_center():
    task = pfedbred.Task(pfedbred.models.mclr((6,), 3))
    fedavg = pfedbred.make("fedavg", task)
    forgetful = lambda state, uploads: state._replace(model=uploads.average())  # noqa: E731
    algorithm = fedavg._replace(server=fedavg.server._replace(aggregate=forgetful))
    plan = pfedbred.Plan(selection.uniform(2), rule=rule("clipped"))
    with pytest.raises(pfedbred.SettingError, match="needs the model to clip around"):
        ResidentBackend(algorithm, task, small_federation(), plan).trace(1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregate": "meadian"}, "unknown aggregation rule 'meadian'; did you mean 'median'"),
        ({"outliers": 0.5}, "outliers must be a number >= 0 and below 0.5, not 0.5"),
    ],
)
def test_bad_rules_are_rejected(options, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        Experiment.from_mapping(options)


AVERAGING = sorted(set(pfedbred.ALGORITHMS) - {"fedamp", "heurfedamp", "fedu", "local"})
DIFFERENT = ("fedem", "scaffold", "pfedvem")  # their servers average several parts, or in their own way


@pytest.mark.parametrize(
    ("name", "rule_name"),
    [
        pytest.param(name, "clipped", marks=[] if name in DIFFERENT else [pytest.mark.full])
        for name in AVERAGING
        if name != "mime"
    ]
    + [pytest.param("mime", name, marks=[] if name == "clipped" else [pytest.mark.full]) for name in RULES],
)
def test_every_algorithm_that_averages_takes_every_rule(name, rule_name):
    """``clipped`` asks most of a server. The state keeps its shapes and types, as a compiled loop needs."""
    task = pfedbred.Task(pfedbred.models.dnn((6,), 3, hidden=4)._replace(norms=("hidden",)))
    plan = pfedbred.Plan(selection.uniform(3), rule=rule(rule_name))
    backend = ResidentBackend(pfedbred.make(name, task, {"R": 1}), task, small_federation(), plan)
    after, _ = backend.trace_shapes()
    before = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], backend._start(jnp.zeros(1, jnp.uint32))))
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), each) for each in (before, after)]
    assert shapes[0] == shapes[1]
