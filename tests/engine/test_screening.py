"""A faulty client does no harm: its update is rejected, its state restored, it is counted and named."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from hypothesis import given
from hypothesis import strategies as st
from support.poison import POISONS, numbered, poisoned

import pfedbred
from pfedbred import aggregation
from pfedbred.data.minibatches import ClientData, Inputs
from pfedbred.engine import ResidentBackend, StreamedBackend, screening, selection
from pfedbred.engine.scores import Evaluation, ModelScores, Scores
from pfedbred.engine.screening import Norms, Rejections
from pfedbred.engine.varying import Varying
from pfedbred.paper import cells

SIZES = (7, 12, 5, 20, 9)


def make(name, federation, dtype=jnp.float64):
    task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes, dtype=dtype))
    return pfedbred.make(name, task, {"R": 2}), task


def simulate(name, chosen, bad=(), *, seeds=(0,), what=None, **plan):
    """Of five clients, some of them faulty while ``states.settings["faulty"]`` is 1, as it is not at first."""
    federation = small_federation(SIZES)
    algorithm, task = make(name, federation)
    plan = pfedbred.Plan(selection.fixed(chosen), **{"batch_size": 4, "executor": "vmap", **plan})

    def vary(own):
        broken = lambda start, tree: jax.tree.map(lambda leaf: jnp.where(own["faulty"] > 0, jnp.nan, leaf), tree)  # noqa: E731
        return poisoned(algorithm, bad, broken, **(what or {}))

    backend = ResidentBackend(algorithm, task, federation, plan, Varying(vary) if bad else None)
    return backend, backend.init(seeds, {"faulty": np.zeros(len(seeds))} if bad else None)


def faulty(states, on=1.0):
    return states._replace(settings={"faulty": jnp.full_like(states.settings["faulty"], on)})


def copy(states):
    """On the host: a state is used up by going on from it."""
    return jax.tree.map(np.array, states._replace(key=()))


def arrays(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


def assert_close(one, other):
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


# Which updates are valid ------------------------------------------------------------------------------------

norms = st.one_of(st.sampled_from([0.0, np.nan, np.inf, 1.0, 100.0, 101.0]), st.floats(1e-6, 1e6))


@given(st.lists(norms, min_size=1, max_size=9))
@pytest.mark.full
def test_norms_that_counting_finds_similar_are_all_valid(lengths):
    """Half of them at least a fifth of the largest: so is the median."""
    update = jnp.asarray(lengths)
    if screening._similar(update):
        assert np.all(screening.valid(Norms(update, jnp.zeros_like(update)), averaged=True))
    ordered = sorted(lengths)
    enough = np.all(np.isfinite(lengths)) and 5 * ordered[(len(lengths) - 1) // 2] >= ordered[-1]
    assert bool(screening._similar(update)) == enough


@given(st.lists(st.tuples(norms, st.sampled_from([0.0, 2.0, 1e4])), min_size=6, max_size=6), st.booleans())
def test_which_updates_are_too_long(clients, averaged):
    update, reference = (np.array(column) for column in zip(*clients, strict=True))
    finite = [m for m in update if np.isfinite(m)]
    middle = np.median(finite) if finite else 0.0
    factor, part = 100.0, 1.0
    if averaged and middle > 0:
        with np.errstate(divide="ignore", over="ignore"):
            factor, part = max(5.0, np.exp(5 * 1.4826 * np.median(np.abs(np.log(np.array(finite) / middle))))), 0.1
    expected = [bool(np.isfinite(m) and not (middle > 0 and m > factor * middle and m > part * s)) for m, s in clients]
    found = screening.valid(Norms(jnp.asarray(update), jnp.asarray(reference)), averaged)
    assert found.tolist() == expected


def related(updates):
    """The norms of the updates, and their products; as uploads of two arrays around a start, as the engine has them."""
    rows = np.asarray(updates, float)
    start = np.broadcast_to(np.linspace(-1, 1, rows.shape[1]), rows.shape)
    trees = [{"a": jnp.asarray(each[:, :2]), "b": jnp.asarray(each[:, 2:, None])} for each in (start, start + rows)]
    norms = jnp.asarray(np.linalg.norm(rows, axis=1))
    return norms, screening.related(*trees, norms, None)


def compared(updates, counted=None):
    norms, products = related(updates)
    counted = jnp.ones(len(norms), bool) if counted is None else jnp.asarray(counted)
    return screening.compare(products, norms=norms, numbers=jnp.arange(len(norms)), counted=counted, known=None)


def in_line(updates, counted=None):
    return compared(updates, counted).valid.tolist()


def expected_in_line(updates, counted):
    """Plain NumPy, one pair of clients after another."""
    n, rows = len(updates), np.asarray(updates, float)
    length = np.linalg.norm(rows, axis=1)
    cosine = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j and counted[i] and counted[j] and length[i] > 0 and length[j] > 0:
                cosine[i, j] = rows[i] @ rows[j] / (length[i] * length[j])
    kept = list(counted)
    if sum(kept) < 6:
        return kept
    copies = []
    for i in range(n):
        same = [j for j in range(n) if cosine[i, j] > 0.99999 and abs(length[i] / length[j] - 1) < 0.00001]
        copies.append(len(same) > 1 or any(j < i for j in same))
    if 2 * sum(copies) < sum(counted):
        kept = [keep and not copy for keep, copy in zip(kept, copies, strict=True)]
    while 2 * sum(kept) > n:
        scores, suspects = {}, {}
        for i in range(n):
            if kept[i]:
                cubes = [cosine[i, j] ** 3 for j in range(n) if kept[j]]
                scores[i] = sum(cubes) / sum(map(abs, cubes)) if any(cubes) else 0.0
                if any(cosine[i, j] < -0.8 for j in range(n) if kept[j]):
                    suspects[i] = scores[i]
        worst = min(suspects, key=suspects.get, default=None)
        if worst is None or scores[worst] >= 0 or np.median(list(scores.values())) - scores[worst] <= 0.3:
            break
        kept[worst] = False
    return kept


@pytest.mark.parametrize("seed", range(8))
def test_which_updates_are_in_line(seed):
    """Clients of three kinds of data; some updates are reversed, some copied, one is zero, some do not count."""
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(3, 12))
    updates = kinds[rng.integers(0, 3, 14)] + 0.3 * rng.normal(size=(14, 12))
    updates[rng.choice(14, 3, replace=False)] *= -1
    updates[5] = updates[2] if seed % 2 else 0
    if seed > 3:
        updates[[8, 9]] = updates[2]
    counted = rng.random(14) < 0.9
    with jax.enable_x64(True):
        found = in_line(updates, counted)
    assert found == expected_in_line(updates, counted)


@pytest.mark.parametrize("seed", range(12))
def test_screening_in_one_go_is_norms_then_directions(seed):
    """Where a few counts show that all are valid, and where they do not; the selected are some of the clients."""
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(3, 12))[rng.integers(0, 3, 14)] + rng.normal(size=(14, 12))
    who = rng.permutation(14)[:9]
    if seed % 4:
        updates[who[0]] *= [1, -1, 7, 90][seed % 4]
    if seed % 3 == 1:
        updates[who[1]] = updates[who[2]]
    if seed == 11:
        updates[who[3]] = np.nan
    answered = np.arange(9) != 4 if seed % 5 == 4 else None
    lengths = np.linalg.norm(updates, axis=1)
    with jax.enable_x64(True):
        _, products = related(updates[who])
        all_ = Norms(jnp.asarray(lengths), jnp.zeros(14))
        given = {"among": jnp.asarray(who), "numbers": jnp.asarray(who), "known": None, "opposed": True}
        answers = None if answered is None else jnp.asarray(answered)
        found = screening.screen(all_, products, answered=answers, **given)
        by_norm = np.asarray(screening.valid(all_, averaged=True))
    counted = by_norm[who] if answered is None else by_norm[who] & answered
    expected = by_norm.copy()
    expected[who] = expected_in_line(updates[who], counted)
    assert found.tolist() == expected.tolist()


def test_it_is_said_why_an_update_is_out_of_line():
    rng = np.random.default_rng(1)
    updates = np.ones(5) + 0.3 * rng.normal(size=(8, 5))
    updates[3] *= -1
    updates[6] = updates[2]
    found = compared(updates)
    assert np.flatnonzero(~found.valid).tolist() == [3, 6]
    assert found.reason(3) == "it points against the other updates"
    assert found.reason(6) == "it is a copy of another client's"


def test_one_reversed_update_among_similar_ones_is_rejected():
    rng = np.random.default_rng(1)
    updates = np.ones(5) + 0.3 * rng.normal(size=(8, 5))
    updates[3] *= -1
    assert in_line(updates) == [i != 3 for i in range(8)]
    assert in_line(updates[:5]) == [True] * 5  # too few to tell
    assert in_line(updates, np.arange(8) != 3) == [i != 3 for i in range(8)]


def test_of_fewer_than_six_that_count_none_is_compared():
    rng = np.random.default_rng(1)
    updates = np.ones(5) + 0.3 * rng.normal(size=(8, 5))
    updates[3] *= -1
    counted = np.arange(8) < 5
    assert in_line(updates, counted) == counted.tolist()


def test_clients_that_share_nothing_are_in_line():
    """Each is opposed to all the others, so that none is out of line."""
    assert in_line(np.eye(8) - 1 / 8) == [True] * 8


def test_of_two_copies_one_counts_and_of_three_none_unless_all_send_the_same():
    rng = np.random.default_rng(2)
    updates = np.ones(6) + rng.normal(size=(9, 6))
    updates[7] = updates[1]
    assert in_line(updates) == [i != 7 for i in range(9)]
    updates[4] = updates[1]
    assert in_line(updates) == [i not in (1, 4, 7) for i in range(9)]
    assert in_line(np.ones((9, 6))) == [True] * 9


@pytest.mark.broad
@pytest.mark.full
def test_honest_clients_may_pull_one_output_both_ways():
    """Numbers above the mean at six clients, below it at two: opposed, and right. Nobody is rejected for it."""
    rng = np.random.default_rng(0)
    train = [(rng.normal(size=(12, 3)), np.full(12, -3.0 if i < 2 else 1.0) + rng.normal(size=12)) for i in range(8)]
    federation = pfedbred.from_clients(train, train, task="regression")
    options = {"federation": federation, "algorithm": "fedavg", "rounds": 3, "aggregated": 8}
    assert pfedbred.run(**options).rejections.rejected == [{}]
    task = pfedbred.run(**options).backend.task
    plan = pfedbred.Plan(selection.uniform(8))  # by directions
    backend = ResidentBackend(pfedbred.make("fedavg", task), task, federation, plan)
    assert backend.rejections(backend.advance(backend.init([0]), 3)).rejected[0].keys() == {"0", "1"}


@pytest.mark.broad
@pytest.mark.full
def test_honest_clients_may_pull_two_labels_both_ways():
    """Six clients hold one label, two the other one: opposed, and right. Nobody is rejected for it."""
    rng = np.random.default_rng(0)
    train = [(1 + 0.1 * rng.normal(size=(12, 3)), np.full(12, int(i < 2))) for i in range(8)]
    federation = pfedbred.from_clients(train, train)
    result = pfedbred.run(federation=federation, algorithm="fedavg", rounds=3, aggregated=8)
    assert result.rejections.rejected == [{}]
    task, plan = result.backend.task, pfedbred.Plan(selection.uniform(8))  # by directions
    backend = ResidentBackend(pfedbred.make("fedavg", task), task, federation, plan)
    assert backend.rejections(backend.advance(backend.init([0]), 3)).rejected[0].keys() == {"0", "1"}


def test_an_update_of_nan_that_does_not_count_disturbs_nobody():
    updates = np.ones((8, 5)) + 0.3 * np.random.default_rng(3).normal(size=(8, 5))
    updates[2] = np.nan
    assert in_line(updates, np.arange(8) != 2) == [i != 2 for i in range(8)]


def test_many_updates_are_compared_with_some():
    updates = np.ones(40) + 0.5 * np.random.default_rng(4).normal(size=(150, 40))
    reversed_ = [3, 40, 41, 100]  # not among those compared with, except by chance
    updates[reversed_] *= -1
    assert np.flatnonzero(~np.array(in_line(updates))).tolist() == reversed_


# Averaging weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "valid", "expected"),
    [
        ([10] * 9 + [2**24], [True] * 10, [10] * 9 + [70]),
        ([10] * 9 + [69], [True] * 10, [10] * 9 + [69]),
        ([10, 20, 30, 2**24, 40, 7], [True] * 5 + [False], [10, 20, 30, 0.7 * 5 * 25, 40, 0]),
        ([10, 20, 30, 2**24], [True] * 4, [10, 20, 30, 60]),
        ([2**24, 2**24, 30, 20], [True] * 4, [90, 90, 30, 20]),
        ([10, 2**24, 30], [True] * 3, [10, 60, 30]),
        ([2**24, 30, 20], [True, False, True], [75, 0, 20]),
        ([10, 2**24], [True] * 2, [10, 30]),
        ([2**24], [True], [2**24]),
        ([227, 220, 92, 150], [True] * 4, [227, 220, 92, 150]),  # the four hospitals of heart
        ([7, 12, 5, 20], [True] * 4, [7, 12, 5, 20]),
        ([10] * 3, [True] * 3, [10] * 3),
        ([10, 30], [True] * 2, [10, 30]),
    ],
)
def test_a_claim_of_many_samples_counts_for_so_much(sizes, valid, expected):
    """At most 0.7 times as many clients, times the median; of up to four clients three times the others' median."""
    key, uploads = jax.random.key(0), jnp.zeros((len(sizes), 2))

    def weights(name):
        plan = pfedbred.Plan(selection.uniform(2), weights=name)
        return plan.gather(uploads, jnp.arange(len(sizes)), jnp.asarray(sizes), jnp.asarray(valid), key).weights

    np.testing.assert_allclose(weights("data"), np.array(expected) / sum(expected), rtol=1e-6)
    claimed = np.where(valid, sizes, 0)
    np.testing.assert_allclose(weights("unbounded"), claimed / claimed.sum(), rtol=1e-6)
    np.testing.assert_allclose(weights("uniform"), np.array(valid) / sum(valid), rtol=1e-6)


@pytest.mark.parametrize(("aggregated", "limit"), [([5, 1], 0.7 * 3), ([5, 1, 2, 0], 0.7 * 4)])
@pytest.mark.parametrize("participation", ["all", "sample"])
def test_few_aggregated_clients_are_bounded_by_the_median_of_all_clients(aggregated, limit, participation):
    """Client 5 holds 200 samples, the others 10: with one step on all of them, G is the average of the updates."""
    federation = small_federation((10, 10, 10, 10, 10, 200))
    algorithm, task = make("fedavg", federation)
    given = {"batch_size": 200, "participation": participation, "screening": "norms"}
    backend = ResidentBackend(algorithm, task, federation, pfedbred.Plan(selection.fixed(aggregated), **given))
    start = backend.init([0])
    before, kept = backend.global_model(start), copy(start)
    found = backend.global_model(backend.advance(start, 1))
    alone = []
    for client in aggregated:
        one = ResidentBackend(algorithm, task, federation, pfedbred.Plan(selection.fixed([client]), **given))
        alone.append(arrays(one.global_model(one.advance(one.init([0]), 1))))
    weights = np.array([10 * limit] + [10] * (len(aggregated) - 1))
    for place, leaf in enumerate(arrays(found)):
        expected = sum(w * each[place] for w, each in zip(weights / weights.sum(), alone, strict=True))
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, atol=1e-8)
    assert not same(before, found)
    assert kept.round.tolist() == [0]


def test_norms():
    start = {"a": jnp.array([1.0, 2.0]), "n": jnp.int32(5)}
    upload = {"a": jnp.array([4.0, -2.0]), "n": jnp.int32(900)}
    found = screening.measure(start, upload, ())
    assert (float(found.update), float(found.reference)) == pytest.approx((5.0, np.sqrt(5)))
    found = screening.measure(
        (start["a"],), upload, {"count": jnp.int32(3)}
    )  # another structure: the upload's own length
    assert (float(found.update), float(found.reference)) == pytest.approx((np.sqrt(20), 0.0))
    for broken in (jnp.nan, jnp.inf, -jnp.inf):
        assert not np.isfinite(screening.measure(start, {**upload, "a": jnp.array([0.0, broken])}, ()).update)
        assert not np.isfinite(screening.measure(start, upload, [jnp.zeros(3), jnp.array(broken)]).update)


@pytest.mark.broad
def test_a_fedem_client_with_a_component_of_no_weight_is_valid():
    """The share of that component is 0 to the last digit; with its logarithm, -inf, the client would be rejected."""
    algorithm, _ = make("fedem", small_federation())
    x, y = jnp.ones((4, 6)), jnp.zeros(4, int)
    server = algorithm.server.init(jax.random.key(0), 2)
    wrong = jax.tree.map(lambda leaf: leaf.at[1].set(0), server.model)
    wrong["output"]["bias"] = wrong["output"]["bias"].at[1].set(jnp.array([-1e4, 0.0, 0.0]))
    data = ClientData(Inputs(x), y, jnp.zeros((2, 4), int), jnp.int32(0), jnp.int32(4))
    _, log_weights, *_ = jax.jit(algorithm.client.train)(wrong, algorithm.client.init(wrong), data)
    assert np.all(np.isfinite(log_weights))
    assert log_weights[1] < -500 < log_weights[0]


# Rejected, and restored -------------------------------------------------------------------------------------

CASES = {
    "mg-meta": {},
    "scaffold": {},
    "mime's answers": {"answers_too": True},
    "fedem": {},
    "fedamp": {},
    "fedu": {},
    "local": {"state_too": True},
}


SAMPLED = ["mg-meta", "scaffold", "fedamp", "mime's answers"]  # the others have nothing of their own there


@pytest.mark.broad
@pytest.mark.parametrize(
    ("case", "participation"),
    [pytest.param(case, "all", marks=pytest.mark.full) for case in CASES]
    + [pytest.param(case, "sample", marks=[] if case == "scaffold" else [pytest.mark.full]) for case in SAMPLED],
)
@pytest.mark.few_cases
@pytest.mark.broad
def test_a_round_with_a_rejected_client_is_the_round_without_it(case, participation):
    """Clients 0, 1 and 3 are selected, and 1 is faulty: a round of 0 and 3. Its own state stays, to the bit."""
    name = case.split("'")[0]
    backend, start = simulate(name, [0, 1, 3], [1], seeds=(0, 4), what=CASES[case], participation=participation)
    without, _ = simulate(name, [0, 3], participation=participation)
    start = backend.advance(start, 2)
    kept = copy(start)
    expected = without.advance(jax.tree.map(jnp.copy, start._replace(settings={})), 2)
    found = backend.advance(faulty(start), 2)
    assert_close(found.server, expected.server)
    assert all(np.all(np.isfinite(leaf)) for leaf in arrays(found.server))
    others = [0, 2, 3, 4]
    pick = lambda tree, who: jax.tree.map(lambda leaf: leaf[:, jnp.array(who)], tree)  # noqa: E731
    assert_close(pick(found.clients.state, others), pick(expected.clients.state, others))
    assert same(pick(found.clients.state, [1]), pick(kept.clients.state, [1]))
    drawn = np.asarray(found.clients.drawn) - np.asarray(kept.clients.drawn)
    assert np.all(drawn[:, 1] == drawn[:, 0])  # the next time it has other minibatches
    assert drawn[0, 0] > 0
    np.testing.assert_array_equal(found.clients.rejected, [[0, 2, 0, 0, 0]] * 2)
    assert backend.rejections(found) == Rejections([{"1": 2}] * 2, [0, 0], [0, 0])


@pytest.mark.broad
def test_a_client_rejected_in_its_first_round_has_not_taken_part():
    """Under sampling it starts from the first message after which its update is valid."""
    backend, start = simulate("mg-meta", [0, 1, 3], [1], participation="sample")
    states = backend.advance(faulty(start), 1)
    assert np.asarray(states.clients.participated).tolist() == [[True, False, False, True, False]]
    assert same(backend.personal_model(states, 1), backend.global_model(states))


# Rounds that are skipped ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["mg-meta", *(pytest.param(name, marks=pytest.mark.full) for name in ("scaffold", "mime"))]
)
def test_a_round_with_too_few_valid_updates_is_skipped(name):
    """Of 0, 1 and 3 one is left: the server stays, to the bit; so do clients that mirror it; others keep their work."""
    backend, start = simulate(name, [0, 1, 3], [0, 1])
    start = backend.advance(start, 2)
    kept = copy(start)
    states = backend.advance(faulty(start), 2)
    found = copy(states)
    assert same(found.server, kept.server)
    assert (found.skipped.tolist(), found.skipped_in_row.tolist()) == ([2], [2])
    np.testing.assert_array_equal(found.clients.rejected, [[2, 2, 0, 0, 0]])
    moved = [np.any((a != b).reshape(5, -1), 1) for a, b in zip(arrays(found.clients.state), arrays(kept.clients.state), strict=True)]  # fmt: skip # noqa: E501
    expected = [False, False, True, True, True] if name == "mg-meta" else [False] * 5
    assert all(each.tolist() == expected for each in moved)
    after = backend.advance(faulty(states, 0.0), 1)  # valid again
    assert (after.skipped.tolist(), after.skipped_in_row.tolist()) == ([2], [0])
    assert not same(after.server, found.server)


@pytest.mark.full
def test_half_of_the_selected_are_enough():
    backend, start = simulate("fedavg", [0, 1, 2, 3], [0, 1])
    states = backend.advance(faulty(start), 1)
    assert states.skipped.tolist() == [0]
    without, start = simulate("fedavg", [2, 3])
    assert_close(states.server, without.advance(start, 1).server)


# However it runs --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_executors_agree_on_rejections():
    """Two seeds of different clients, some rounds skipped and some not."""
    federation = small_federation((7, 12, 5, 20, 9, 8))
    algorithm, task = make("mg-meta", federation)
    faulty_ = poisoned(algorithm, [0, 2], POISONS["scaled"])
    found = []
    for options in ({"executor": "loop"}, {"executor": "in-turn"}, {"executor": "vmap", "chunk": 2}):
        plan = pfedbred.Plan(selection.uniform(2), batch_size=4, **options)
        backend = ResidentBackend(faulty_, task, federation, plan)
        found.append(backend.advance(backend.init([1, 3]), 6)._replace(key=()))
    loop = found[0]
    for other in found[1:]:
        assert_close(loop, other)
    np.testing.assert_array_equal(loop.clients.rejected, [[6, 0, 6, 0, 0, 0]] * 2)


@pytest.mark.full
@pytest.mark.parametrize("bad", [[1, 2], [1]])
def test_a_gpu_computes_both_and_chooses_alike(bad, monkeypatch):
    """Valid rounds, rounds with one faulty client and skipped ones, without the branches of a CPU."""

    def go_on(bad):
        backend, states = simulate("scaffold", [1, 2, 3], bad)
        after = [copy(states := backend.advance(states, 1))]
        after.append(copy(states := backend.advance(faulty(states), 1)))
        return [*after, copy(backend.advance(faulty(states, 0.0), 1))]

    by_branches = go_on(bad)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert_close(by_branches, go_on(bad))
    assert [each.skipped.tolist() for each in by_branches] == ([[0], [1], [1]] if len(bad) == 2 else [[0]] * 3)


@pytest.mark.broad
@pytest.mark.parametrize(
    "name", ["fedavg", *(pytest.param(name, marks=pytest.mark.full) for name in ("mg-meta", "scaffold"))]
)
def test_streamed_clients_are_rejected_alike(name):
    federation = small_federation((7, 12, 5, 20, 9, 3))
    algorithm, task = make(name, federation)
    faulty_ = poisoned(algorithm, [1, 4])
    plan = pfedbred.Plan(selection.uniform(3), participation="sample", batch_size=4)
    resident = ResidentBackend(faulty_, task, federation, plan)
    streamed = StreamedBackend(faulty_, task, federation, plan)
    expected, found = (each.advance(each.advance(each.init([0, 1]), 4), 3) for each in (resident, streamed))
    assert_close(expected.server, found.server)
    assert_close(resident.models(expected), streamed.models(found))
    assert resident.rejections(expected) == streamed.rejections(found)
    told = streamed.rejections(found)
    assert all(set(each) == {"1", "4"} for each in told.rejected)
    assert 0 < sum(told.skipped) < 14  # some of the rounds, not all
    met = np.asarray(expected.clients.participated).sum(axis=1).tolist()
    assert streamed.participated(found) == met == [4, 4]


# Attacks ----------------------------------------------------------------------------------------------------

CLEAN = len(POISONS)


def attacked(rule):
    """G on the digits by poison (none is the last), 2 of 20 clients being bad: accuracies in percent and losses.

    And who was rejected. One program for all.
    """
    federation = pfedbred.load("digits", split="iid")
    task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes))
    fedavg = pfedbred.make("fedavg", task, {"alpha": 0.05})
    plan = pfedbred.Plan(selection.uniform(10), rule=aggregation.get(rule))
    vary = lambda own: poisoned(fedavg, [3, 11], numbered(own["poison"]))  # noqa: E731
    backend = ResidentBackend(fedavg, task, federation, plan, Varying(vary))
    states = backend.init([0] * (CLEAN + 1), {"poison": np.arange(CLEAN + 1.0)})
    states = backend.advance(states, 25)
    test = backend.evaluate(states).global_.test
    accuracy, loss = (dict(zip([*POISONS, "none"], each, strict=True)) for each in (100 * test.accuracy, test.loss))
    return accuracy, loss, backend.rejections(states).rejected


@pytest.fixture(scope="module")
def clean():
    return attacked("mean")


@pytest.mark.full
@pytest.mark.parametrize(
    "rule",
    aggregation.RULES,
)
@pytest.mark.few_cases
def test_a_tenth_of_bad_clients_does_no_harm(rule, clean):
    """Whatever the rule, the mean included; no honest client is ever rejected."""
    found, _, rejected = clean if rule == "mean" else attacked(rule)
    reference = clean[0]["none"]
    assert reference > 90
    for poison, each in zip([*POISONS, "none"], rejected, strict=True):
        assert found[poison] >= reference - 2, poison
        assert set(each) <= ({"3", "11"} if poison != "none" else set()), poison
        if poison in ("nan", "one infinity", "scaled", "flipped ten times"):
            assert each == {"3": 25, "11": 25}, poison


def all_valid(norms, *rest, **others):
    return jnp.ones(norms.update.shape, bool)


@pytest.mark.full
def test_without_screening_bad_clients_do_harm(clean, monkeypatch):
    """What the test above guards against: with every update taken for valid, the same poisons ruin the mean.

    By their losses: a linear model a thousand times too large may still rank labels well, but is sure of its mistakes.
    """
    monkeypatch.setattr(screening, "screen", all_valid)
    ruined, reference = attacked("mean")[1], clean[1]["none"]
    for poison in ("nan", "one infinity", "scaled", "flipped ten times"):
        assert clean[1][poison] < 1.1 * reference, poison
        assert not ruined[poison] < 3 * reference, poison


# Reported ---------------------------------------------------------------------------------------------------


@pytest.fixture
def faulty_fedavg(monkeypatch):
    """``faulty``: FedAvg whose client 3 sends NaN."""
    build = lambda task, *, R=2: poisoned(pfedbred.make("fedavg", task, {"R": R}), [3])  # noqa: E731
    monkeypatch.setitem(pfedbred.ALGORITHMS, "faulty", build)


@pytest.mark.full
def test_rejected_clients_are_named(call, faulty_fedavg, tmp_path):
    code, out, _ = call("run", "--algorithm", "faulty", "--clients", 8, "--rounds", 5, "--eval-every", 2, "--out", "a")
    assert code == 0
    words = "updates of 1 client were rejected because they were not finite or out of line: 3 (5 times)\n"
    assert words in out
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [line["rejected"] for line in lines] == [[{"3": 2}], [{"3": 2}], [{"3": 1}]]
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["rejected"] == [{"3": 5}]
    skipped = summary["skipped_rounds"][0]
    assert sum(line["skipped"][0] for line in lines) == skipped
    assert (f"{skipped} round" in out and "skipped: too few valid updates" in out) == bool(skipped)


@pytest.mark.broad
def test_clients_with_names_go_by_them(faulty_fedavg):
    federation = small_federation((7, 12, 5, 20)).take(np.array([3, 2, 1, 0]))
    result = pfedbred.run(federation=federation, algorithm="faulty", rounds=2, seeds=2, aggregated=3)
    assert result.rejections.rejected == [{"0": 2}, {"0": 2}]  # the name of the client whose number is 3
    assert result.diverged is None


# Divergence -------------------------------------------------------------------------------------------------


def test_a_run_that_diverges_stops_with_what_it_has():
    federation = small_federation()
    result = pfedbred.run(federation=federation, algorithm="fedavg", settings={"alpha": 1e30}, rounds=50, eval_every=4)
    assert result.diverged == 12  # the first evaluation after ten rounds without a valid update
    assert [point.round for point in result.points] == [4, 8, 12]
    assert result.rejections.skipped == [12]
    assert all(np.all(np.isfinite(leaf)) for leaf in arrays((result.state.server, result.state.clients)))
    assert not cells.measured(result)["P"]["finite"]  # a cell without a number in the paper's table


def evaluation_with(global_loss, personal_loss):
    def scores(loss):
        return Scores({"loss": np.asarray(loss)}, {})

    fine = scores(np.ones(len(global_loss)))
    return Evaluation(ModelScores(scores(global_loss), fine), ModelScores(scores(personal_loss), fine))


def test_a_training_loss_that_is_not_finite_is_divergence():
    scores = evaluation_with([1.0, np.nan, 1.0, np.inf], [1.0, 1.0, np.nan, 1.0])
    assert screening.diverged(scores, [0] * 4, 100).tolist() == [False, True, True, True]


def test_seeds_that_skip_ten_rounds_in_a_row_or_all_have_diverged():
    scores = evaluation_with([1.0] * 3, [1.0] * 3)
    assert screening.diverged(scores, [0, 9, 10], 100).tolist() == [False, False, True]
    assert screening.diverged(scores, [3, 4, 5], 5).tolist() == [False, False, True]


@pytest.mark.full
def test_a_point_of_a_sweep_that_diverges_has_no_figure():
    experiment = pfedbred.Experiment(algorithm="fedavg", settings={"R": 2}, rounds=3)
    found = pfedbred.sweep(experiment, {"alpha": [0.01, 1e30]}, federation=small_federation())
    assert np.isnan(found.best_accuracy("personal")).tolist() == [False, True]
    assert found.best_point() == {"alpha": 0.01}
