"""Rules that draw random numbers: from the run's seed, anew in every round, and alike in every backend."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.algorithms.base import Client, ServerState
from pfedbred.engine import ResidentBackend, StreamedBackend, keys, selection

SEEDS, ROUNDS = (0, 0, 1), 2


def noisy(gathered):
    """The mean with noise; ``key`` is its only randomness."""
    mean = pfedbred.aggregation.weighted_mean(gathered)
    return jax.tree.map(lambda leaf: leaf + jax.random.normal(gathered.key, leaf.shape, leaf.dtype), mean)


def one_of_them(gathered):
    """The upload that comes first in a random permutation."""
    order = jax.random.permutation(gathered.key, len(gathered.valid))
    return jax.tree.map(lambda leaf: leaf[order][0], gathered.uploads)


def method(draws):
    """Clients send their first input added to the model, a pair of vectors that are averaged with these draws."""

    def aggregate(state, uploads):
        pair = [uploads.average(lambda upload, i=i: upload[i], draw=draw) for i, draw in enumerate(draws)]
        return ServerState(tuple(pair))

    def train(message, state, data):
        return jax.tree.map(lambda leaf: leaf + data.batch(0).x[0], message), state

    task = pfedbred.Task(pfedbred.models.mclr((6,), 3, dtype=jnp.float64))
    fedavg = pfedbred.make("fedavg", task)
    server = fedavg.server._replace(init=lambda key, clients: ServerState((jnp.zeros(6),) * 2), aggregate=aggregate)
    client = Client(lambda message: (), train, lambda message, state, data: message, draws=1)
    predict = lambda model, x: x[:, :3] + model[0][:3]  # noqa: E731
    return fedavg._replace(client=client, server=server, predict=predict), task


def models(rule, *, draws=(0, 1), kind="resident", executor="vmap", rounds=ROUNDS):
    """The server's pair of vectors after each round, by round, seed and vector."""
    algorithm, task = method(draws)
    plan = pfedbred.Plan(
        selection.uniform(3), "sample", batch_size=1, executor=executor, rule=pfedbred.aggregation.get(rule)
    )
    backend_type = {"resident": ResidentBackend, "streamed": StreamedBackend}[kind]
    backend = backend_type(algorithm, task, small_federation((7, 12, 5, 20, 9)), plan)
    state, found = backend.init(SEEDS), []
    for _ in range(rounds):
        state = backend.advance(state, 1)
        found.append(np.stack([np.asarray(leaf) for leaf in state.server.model], axis=1))
    return np.stack(found)


def both(gathered):
    """Noise on an upload chosen at random."""
    return jax.tree.map(jnp.add, noisy(gathered), one_of_them(gathered))


@functools.cache
def resident(rule):
    return models(rule)


@pytest.mark.parametrize(
    "options",
    [{"kind": "streamed"}, {"executor": "loop"}, pytest.param({"executor": "in-turn"}, marks=pytest.mark.full)],
    ids=str,
)
def test_backends_draw_the_same_numbers(options):
    np.testing.assert_allclose(models(both, **options), resident(both), rtol=1e-12)


def test_the_seed_decides():
    found = resident(both)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    assert not np.allclose(found[-1, 0], found[-1, 2])


def test_noise_is_new_in_every_round_and_draw():
    plain, noise = models("mean"), resident(noisy)
    added = np.diff(noise - plain, axis=0, prepend=0)[:, 0]  # by round and vector; the noise before it stays
    rows = added.reshape(2 * ROUNDS, -1)
    assert len(np.unique(rows.round(9), axis=0)) == 2 * ROUNDS
    assert 0.3 < rows.std() < 2


def test_averages_with_the_same_draw_share_their_noise():
    """This is what ``draw`` is for."""
    same = models(noisy, draws=(0, 0), rounds=1)
    np.testing.assert_array_equal(same[:, :, 0], same[:, :, 1])


def test_clients_are_permuted_anew_in_every_round_and_draw():
    def first_place(gathered):
        order = jax.random.permutation(gathered.key, len(gathered.valid))
        return jax.tree.map(lambda leaf: jnp.full_like(leaf[0], order[0]), gathered.uploads)

    found = models(first_place, rounds=8)[:, 0, :, 0]  # by round and vector
    assert all(len(set(each)) > 1 for each in found.T)
    assert not np.array_equal(found[:, 0], found[:, 1])


def test_the_exchange_before_training_has_a_key_of_its_own():
    """The stage tells the two exchanges of a round apart."""
    found = [keys.aggregation_key(jax.random.key(0), t, stage) for t in (0, 1) for stage in (0, 1)]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in found}) == 4
