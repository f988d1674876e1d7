"""Updates that are reversed are told by how they respond to the server's steps, whatever data the clients have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.poison import POISONS, poisoned

import pfedbred
from pfedbred.engine import ResidentBackend, directions, responses, screening, selection
from pfedbred.experiment.building import build

RESPONSES = [np.nan, 0.0, 0.2, 0.3, 0.9, 1.0, *[-0.2, -0.3, -0.8], *[-0.9, -1.0, -1.1, -1.2] * 3]

# Against NumPy ----------------------------------------------------------------------------------------------


def gradients(seed, clients=9, size=6):
    """Clients with quadratic losses 1/2 (w - c_i)^T H_i (w - c_i), and their update from w: a step down."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(clients, size, size))
    curvature, centre = (
        3 * np.eye(size) + factors @ factors.transpose(0, 2, 1) / size,
        5 * rng.normal(size=(clients, size)),
    )
    return lambda w: -0.01 * np.einsum("cij,cj->ci", curvature, w - centre)


def split(rows):
    """As two arrays, as the engine has them."""
    return [jnp.asarray(rows[..., :2], jnp.float32), jnp.asarray(rows[..., 2:, None], jnp.float32)]


def latest(values):
    """The mean of up to five; of more, each new one counts a fifth."""
    average = np.mean(values[:5])
    for value in values[5:]:
        average = 0.8 * average + 0.2 * value
    return average


def after_round(unchanged, uploads, norms, who, counted, before):
    """What is known after a round, in which updates that do not count are not finite."""
    norms, who = jnp.asarray(np.where(counted, norms, np.nan), jnp.float32), jnp.asarray(who)
    return screening.remember(before, screening.related(unchanged, uploads, norms, before, who), norms, who)


def rounds(update_of, chosen, counted, steps=6, size=6):
    """The responses after some rounds, by the library and by plain NumPy."""
    w = np.ones(size)
    known = responses.unknown(split(w), 9)
    averages, before, known_of = np.full(9, np.nan), {}, {}
    for who, counts in zip(chosen[:steps], counted[:steps], strict=True):
        updates = update_of(w)[who]
        norms = np.linalg.norm(updates, axis=1)
        start = split(np.broadcast_to(w, updates.shape))
        uploads = jax.tree.map(jnp.add, start, split(updates))
        known = after_round(start, uploads, norms, who, counts, known)
        for i, u, norm, counts_ in zip(who, updates, norms, counts, strict=True):
            if i in before and counts_:
                update, began = before[i]
                step = w - began
                r = (u - update) @ step / (np.linalg.norm(step) * norm)
                known_of.setdefault(i, []).append(np.clip(r, -1, 1))
                averages[i] = latest(known_of[i])
        before |= {i: (u, w) for i, u, counts_ in zip(who, updates, counts, strict=True) if counts_}
        w = w + updates[counts].mean(0)
    return known, averages


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.broad
def test_responses_match_numpy(seed):
    """Few clients are selected in a round, some do not count: a step may be that of several rounds."""
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(9)[:4] for _ in range(9)]
    counted = [rng.random(4) < 0.9 for _ in range(9)]
    known, averages = rounds(gradients(seed), chosen, counted, steps=9)
    np.testing.assert_allclose(known.averages, averages, rtol=2e-4, atol=1e-5)
    assert np.isfinite(averages).sum() > 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.full
def test_downhill_responses_are_negative_and_reversed_ones_positive(seed):
    """The gradient of a convex function is monotone, whatever the clients' data."""
    sign = np.where(np.arange(9) % 4 == 3, -1.0, 1.0)[:, None]
    down = gradients(seed)
    everyone = [np.arange(9)] * 6
    known, _ = rounds(lambda w: sign * down(w), everyone, [np.ones(9, bool)] * 6)
    assert np.array_equal(np.asarray(known.averages) > 0, sign[:, 0] < 0)
    assert known.times.tolist() == [5] * 9
    assert np.array_equal(responses.are_reversed(known.averages, known.times), sign[:, 0] < 0)


def test_which_responses_are_reversed():
    def found(*averages, times=16):
        return np.flatnonzero(responses.are_reversed(jnp.asarray(averages), jnp.full(len(averages), times))).tolist()

    honest = (-1.0, -1.2, -0.8, -0.9, -1.1, -0.7, -1.3)  # median 1, spread about 0.3
    assert found(*honest, 0.3) == [7]
    assert found(*honest, 0.3, times=1) == []  # one minibatch more or less can turn a sign
    assert found(*(-each for each in honest), -0.3) == [7]  # early in training, networks may all respond so
    assert found(*honest, 0.2) == []  # as good as none
    assert found(*honest, -9.0) == []  # on the same side
    assert found(*honest[1:], 0.5) == []  # too few to tell
    assert found(*honest[1:], 0.5, np.nan) == []
    assert found(-0.1, -1.1, -2.9, -0.2, -1.0, -3.0, -2.0, 0.7) == []  # not clear
    assert found(*[0.0] * 7, 0.5) == []


def test_reversed_ones_do_not_hide_each_other():
    honest = -1 - 0.1 * np.random.default_rng(0).normal(size=15)
    for bad in (5, 6):  # more than a quarter of 20 are not a few
        averages = np.concatenate([honest[: 20 - bad], [0.9, 1.1, 1.0, 0.8, 1.2, 1.0][:bad]])
        found = responses.are_reversed(jnp.asarray(averages), jnp.full(20, 3))
        assert found.tolist() == [False] * (20 - bad) + [bad == 5] * bad


def expected_reversed(averages, times):
    """The rule in plain NumPy."""
    known = np.isfinite(averages)
    if known.sum() < 8:
        return np.zeros(len(averages), bool)
    size = np.abs(averages)
    middle, typical = np.median(size[known]), np.median(averages[known])
    spread = 1.4826 * np.median(np.abs(size[known] - middle))
    against = known & (averages * typical < 0)
    if not (middle > 2.5 * spread and against.sum() <= known.sum() / 4):
        return np.zeros(len(averages), bool)
    return against & (size > middle / 4) & (times >= 2)


@given(st.lists(st.tuples(st.sampled_from(RESPONSES), st.integers(0, 3)), min_size=5, max_size=24))
@pytest.mark.full
def test_reversed_responses_match_numpy_and_counting_misses_none(clients):
    averages, times = (np.array(column) for column in zip(*clients, strict=True))
    with jax.enable_x64(True):
        both = jnp.asarray(averages), jnp.asarray(times)
        found, calm = responses.are_reversed(*both), responses.unopposed(*both)
    assert found.tolist() == expected_reversed(averages, times).tolist()
    assert not (calm and np.any(found))


@pytest.mark.parametrize(("clients", "most"), [(8, 0.02), (20, 0.001), (100, 0.0)])
def test_noise_is_hardly_ever_taken_for_an_attack(clients, most):
    """Responses without a common sign: honest clients at the end of training, or a server that hardly moves."""
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(2_000, clients)))
    assert np.mean(jax.vmap(responses.are_reversed)(noise, jnp.full(noise.shape, 9))) <= most


def test_responses_in_half_precision_are_summed_in_single():
    """Of ten clients whose updates all oppose a step a little; in bfloat16 the sums would lose that."""
    rng = np.random.default_rng(0)
    step = rng.normal(size=1000) / 100
    before = rng.normal(size=(10, 1000)) / 10
    after = before - 0.02 * step

    def halves(rows):
        return [jnp.asarray(rows, jnp.bfloat16)]

    known, everyone = responses.unknown(halves(np.zeros(1000)), 10), jnp.arange(10)

    def sketched(updates):
        norms = jnp.asarray(np.linalg.norm(updates, axis=1), jnp.float32)
        return responses.sketches(known, directions.units(halves(updates), norms)) * norms[:, None]

    known = responses.record(known, sketched(before), jnp.zeros(1000), everyone, jnp.ones(10, bool))
    moved = responses.sketches(known, halves(step[None])[0])[0]
    found = responses.measured(known, sketched(after), moved, everyone)
    rounded = [np.asarray(halves(each)[0], float) for each in (step, before, after)]
    expected = (rounded[2] - rounded[1]) @ rounded[0] / (np.linalg.norm(rounded[0]) * np.linalg.norm(after, axis=1))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_sketches_keep_inner_products():
    """Exactly those of few params, to one part in 64 of their lengths those of many."""
    rng = np.random.default_rng(0)
    for numbers, error in ((4_000, 1e-4), (100_000, 4 / 64)):
        nothing = responses.unknown([jnp.zeros((numbers // 100, 100))], 20)
        rows = np.exp(rng.normal(size=(20, numbers))) * rng.normal(size=(20, numbers))
        rows /= np.linalg.norm(rows, axis=1)[:, None]
        found = np.asarray(responses.sketches(nothing, jnp.asarray(rows, jnp.float32)), float)
        assert np.max(np.abs(found @ found.T - rows @ rows.T)) < error
        assert found.shape == (20, min(numbers, 4_093))


@pytest.mark.parametrize("row", [True, False])
def test_sketches_keep_inner_products_of_updates_in_one_row_or_column(row):
    """Of a layer as wide as a power of two: one row is the weights of one unit, one column those of one input."""
    rng = np.random.default_rng(0)
    updates = np.zeros((20, 100, 4_096))
    updates[(slice(None), 3) if row else (slice(None), slice(None), 7)] = rng.normal(size=(20, 4_096 if row else 100))
    rows = updates.reshape(20, -1) / np.linalg.norm(updates.reshape(20, -1), axis=1)[:, None]
    nothing = responses.unknown([jnp.zeros((100, 4_096))], 20)
    found = np.asarray(responses.sketches(nothing, jnp.asarray(rows, jnp.float32)), float)
    assert np.max(np.abs(found @ found.T - rows @ rows.T)) < 4 / 64


@pytest.mark.parametrize("steps", [0, 3])
def test_sketches_are_sums_by_class_in_a_loop_or_not(steps):
    rng = np.random.default_rng(0)
    rows, signs = rng.normal(size=(5, 330)), rng.choice([-1, 1], 330)
    expected = np.zeros((5, 100))
    for place in range(330):
        expected[:, place % 100] += signs[place] * rows[:, place]
    with jax.enable_x64(True):
        found = responses._sums(jnp.asarray(rows), jnp.asarray(signs), size=100, dtype=jnp.float64, steps=steps)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_signs_of_sketches_are_fair_and_always_the_same():
    signs = np.asarray(responses._signs(100_001))
    assert signs.shape == (100_001,)
    assert set(signs.tolist()) == {-1, 1}
    assert abs(signs.mean()) < 4 / np.sqrt(signs.size)
    for apart in (1, 31, 32, 4_096):  # neighbours in a word, in neighbouring words, in a class
        assert abs(np.mean(signs[apart:] * signs[:-apart])) < 4 / np.sqrt(signs.size)
    np.testing.assert_array_equal(signs[:500], responses._signs(500))


def test_sketches_of_many_clients_are_small():
    nothing = jax.eval_shape(lambda: responses.unknown([jnp.zeros(10**6)], 10**5))
    assert nothing.updates.shape == (10**5, 61)


# In a run ---------------------------------------------------------------------------------------------------

BAD = [3, 7, 11, 18]


@pytest.fixture(scope="module")
def federation():
    """The paper's split: clients with three labels each, so that honest updates point in all directions."""
    return pfedbred.load("digits", split="paper", clients=20)


def backend_for(federation, aggregated, bad=BAD, poison="flipped", **plan):
    task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes, dtype=jnp.float32))
    fedavg = pfedbred.make("fedavg", task)
    algorithm = poisoned(fedavg, bad, POISONS[poison]) if bad else fedavg
    return ResidentBackend(algorithm, task, federation, pfedbred.Plan(selection.uniform(aggregated), **plan))


def rejections(backend, states, rounds):
    states = backend.advance(states, rounds)
    return states, np.asarray(states.clients.rejected)[0]


@pytest.mark.broad
def test_a_fifth_of_reversed_clients_is_found_on_clients_of_few_labels(federation):
    """From the fourth round on, in nearly every round, and no honest client with them."""
    backend = backend_for(federation, 20)
    states, before = rejections(backend, backend.init([0]), 3)
    states, after = rejections(backend, states, 17)
    assert np.all((after - before)[BAD] >= 16)
    assert np.delete(after - before, BAD).sum() == 0


@pytest.mark.broad
@pytest.mark.full
def test_executors_and_seeds_side_by_side_agree_on_reversed_clients(federation):
    """Two seeds as one program, where branches become choices, are each of them alone; so is the plain loop."""
    alone = [rejections(backend := backend_for(federation, 20), backend.init([seed]), 6)[1] for seed in (0, 1)]
    assert all(each[BAD].sum() > 4 for each in alone)
    for options in ({"executor": "vmap"}, {"executor": "loop"}):
        backend = backend_for(federation, 20, **options)
        states = backend.advance(backend.init([0, 1]), 6)
        np.testing.assert_array_equal(states.clients.rejected, alone)


@pytest.mark.full
def test_reversed_clients_cost_as_much_as_absent_ones(federation):
    def accuracy(backend):
        return 100 * backend.evaluate(backend.advance(backend.init([0]), 60)).global_.test.accuracy[0]

    clean, screened = accuracy(backend_for(federation, 20, bad=())), accuracy(backend_for(federation, 20))
    assert accuracy(backend_for(federation, 20, screening="norms")) < clean - 10
    assert screened > clean - 5


@pytest.mark.full
def test_they_are_found_among_few_selected_clients_too(federation):
    """Five of twenty are averaged: a response is known of a client that is selected again, however much later."""
    backend = backend_for(federation, 5)
    states, early = rejections(backend, backend.init([0]), 30)
    _, after = rejections(backend, states, 30)
    late = after - early
    assert late[BAD].sum() >= 20  # of about 30
    assert np.delete(after, BAD).sum() == 0


@pytest.mark.full
def test_updates_that_are_too_long_to_count_are_remembered_too(federation):
    """Else one of them that passes for once, when the honest ones differ much in length, is the first that is known."""
    backend = backend_for(federation, 5, poison="flipped ten times")
    states = backend.advance(backend.init([0]), 30)
    assert np.all(np.asarray(states.responses.averages)[0][BAD] > 0)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, True),
        ({"local_optimizer": "adam"}, False),
        ({"settings": {"alpha": {"schedule": "exponential", "start": 0.01, "rate": 0.7}}}, False),
        ({"participation": "sample"}, False),
        ({"screening": "norms"}, False),
    ],
    ids=str,
)
def test_responses_count_only_where_clients_train_alike_in_every_round(options, kept, federation):
    """With a smaller step size, an update changes though the server does not move."""
    experiment = pfedbred.Experiment(dataset="digits", algorithm="fedavg", rounds=4, **options)
    backend = build(experiment, federation).backend
    assert (backend.init([0]).responses is not None) == kept


@pytest.mark.broad
def test_an_undisturbed_run_rejects_nobody_and_a_checkpoint_keeps_what_is_known(federation):
    backend = backend_for(federation, 20, bad=())
    states = backend.advance(backend.init([0]), 4)
    saved = backend.save(states)
    whole, rejected = rejections(backend, states, 3)
    assert rejected.sum() == 0
    again = backend.advance(backend.load(saved, 1), 3)
    assert all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(jax.tree.leaves(whole._replace(key=())), jax.tree.leaves(again._replace(key=())), strict=True)
    )
    assert np.all(np.asarray(whole.responses.averages) < 0)


@pytest.mark.broad
@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"responses.along": np.zeros((1, 20)), "responses.times": np.ones((1, 20))},
        {f"responses.{name}": np.ones((1, 20, 650)) for name in ("updates", "starts")},
    ],
)
def test_a_checkpoint_of_before_is_resumed_with_unknown_responses(kept, federation):
    """Earlier versions kept none, those to the last step alone, or sketches with other signs."""
    backend = backend_for(federation, 20, bad=())
    states = backend.advance(backend.init([0]), 2)
    saved = backend.save(states)
    old = saved._replace(arrays={n: a for n, a in saved.arrays.items() if not n.startswith("responses.")} | kept)
    assert len(old.arrays) < len(saved.arrays)
    loaded = backend.load(old, 1)
    assert all(np.all(np.isnan(np.asarray(each))) for each in loaded.responses[:3])
    assert not np.any(loaded.responses.times)
    ours, theirs = backend.advance(states, 2), backend.advance(loaded, 2)
    for a, b in zip(jax.tree.leaves(ours.server), jax.tree.leaves(theirs.server), strict=True):
        np.testing.assert_array_equal(a, b)


def test_few_clients_are_not_remembered_whatever_a_checkpoint_holds():
    backend = backend_for(pfedbred.load("digits", clients=7), 7, bad=())
    states = backend.advance(backend.init([0]), 1)
    assert states.responses is None
    saved = backend.save(states)
    old = saved._replace(arrays=saved.arrays | {"responses.updates": np.ones((1, 7, 650))})
    assert backend.load(old, 1).responses is None
