"""Rules that draw random numbers: from the run's seed, anew in every round and draw, and alike in every backend."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.algorithms.base import Client, ServerState
from pfedbred.engine import ResidentBackend, StreamedBackend, keys, selection

SEEDS, ROUNDS = (0, 0, 1), 8
NOISE, PLACE, UPLOAD = slice(0, 4), 4, 5


def rule(gathered):
    """Noise, the client that comes first in a random permutation, and what that client sent."""
    order = jax.random.permutation(gathered.key, len(gathered.valid))
    noise = jax.random.normal(gathered.key, (4,))
    return jnp.concatenate([noise, order[:1].astype(float), gathered.uploads[order][0, UPLOAD:]])


def method(draws):
    """Clients send their first input, twice; the server keeps the two averages, with these draws."""

    def aggregate(state, uploads):
        return ServerState(
            tuple(uploads.average(lambda upload, i=i: upload[i], draw=draw) for i, draw in enumerate(draws))
        )

    task = pfedbred.Task(pfedbred.models.mclr((6,), 3, dtype=jnp.float64))
    fedavg = pfedbred.make("fedavg", task)
    client = Client(
        init=lambda message: (),
        train=lambda message, state, data: ((data.batch(0).x[0],) * 2, state),
        model=lambda message, state, data: message,
        draws=1,
    )
    server = fedavg.server._replace(init=lambda key, clients: ServerState((jnp.zeros(6),) * 2), aggregate=aggregate)
    return fedavg._replace(client=client, server=server, predict=lambda model, x: x[:, :3] + model[0][:3]), task


@functools.cache
def models(backend_type=ResidentBackend, *, draws=(0, 1), executor="vmap"):
    """The two averages, by round, seed and draw."""
    algorithm, task = method(draws)
    plan = pfedbred.Plan(selection.uniform(3), "sample", batch_size=1, executor=executor, rule=rule)
    backend = backend_type(algorithm, task, small_federation((7, 12, 5, 20, 9)), plan)
    state, found = backend.init(SEEDS), []
    for _ in range(ROUNDS):
        state = backend.advance(state, 1)
        found.append(np.stack([np.asarray(leaf) for leaf in state.server.model], axis=1))
    assert not any(backend.rejections(state).rejected)
    return np.stack(found)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("backend_type", "executor"),
    [
        (StreamedBackend, "vmap"),
        pytest.param(ResidentBackend, "in-turn", marks=pytest.mark.full),
        pytest.param(ResidentBackend, "loop", marks=pytest.mark.full),
        pytest.param(StreamedBackend, "loop", marks=pytest.mark.full),
    ],
)
@pytest.mark.few_cases
@pytest.mark.full
def test_backends_draw_the_same_numbers(backend_type, executor):
    np.testing.assert_allclose(models(backend_type, executor=executor), models(), rtol=1e-12)


def test_the_seed_decides():
    found = models()
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    assert not np.any(found[:, 0, :, NOISE] == found[:, 2, :, NOISE])


def test_noise_is_new_in_every_round_and_draw():
    noise = models()[:, 0, :, NOISE].ravel()
    assert len(np.unique(noise)) == noise.size == ROUNDS * 2 * 4
    assert 0.5 < noise.std() < 2


def test_clients_are_permuted_anew_in_every_round_and_draw():
    places = models()[:, 0, :, PLACE]
    assert all(len(set(each)) > 1 for each in places.T)
    assert not np.array_equal(places[:, 0], places[:, 1])


@pytest.mark.full
def test_averages_with_the_same_draw_use_the_same_numbers():
    found = models(draws=(0, 0))
    np.testing.assert_array_equal(found[:, :, 0], found[:, :, 1])


def test_the_exchange_before_training_has_its_own_key():
    found = [keys.aggregation_key(jax.random.key(0), t, stage) for t in (0, 1) for stage in (0, 1)]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in found}) == 4
