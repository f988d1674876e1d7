"""Minibatches: shuffled passes over a client's samples, with every order equally likely."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pfedbred.data.minibatches import Place, draw_rows, permute, shuffled

# Compiled once for all sizes, as in the engine: n is a number in the program, not a shape.
LONGEST = 1200
many = jax.jit(lambda seed, n: shuffled(jax.random.key(seed), jnp.arange(LONGEST, dtype=jnp.uint32), n))
three_batches = jax.jit(
    lambda offset, n, drawn: draw_rows(jax.random.key(5), offset, n, drawn, draws=3, batch_size=10),
)


@given(n=st.integers(1, 300), seed=st.integers(0, 2**31))
def test_each_pass_visits_every_sample_once(n, seed):
    passes = LONGEST // n
    order = np.asarray(many(seed, jnp.int32(n)))[: passes * n].reshape(passes, n)
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(n), (passes, 1)))


def test_passes_clients_and_seeds_have_different_orders():
    n = 50
    positions = jnp.arange(2 * n, dtype=jnp.uint32)
    first, second = np.asarray(shuffled(jax.random.key(0), positions, jnp.int32(n))).reshape(2, n)
    other = np.asarray(shuffled(jax.random.key(1), positions, jnp.int32(n)))[:n]
    assert np.mean(first == second) < 0.2
    assert np.mean(first == other) < 0.2


@given(n=st.integers(1, 40), offset=st.integers(0, 1000), rounds=st.integers(1, 4))
def test_a_round_continues_where_the_last_one_ended(n, offset, rounds):
    pieces = [three_batches(jnp.int32(offset), jnp.int32(n), jnp.uint32(r * 30)) for r in range(rounds)]
    rows = np.concatenate(pieces).ravel()
    whole_passes = rows[: len(rows) // n * n].reshape(-1, n) - offset
    np.testing.assert_array_equal(np.sort(whole_passes, axis=1), np.tile(np.arange(n), (len(whole_passes), 1)))
    assert rows.min() >= offset
    assert rows.max() < offset + n


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("varied", ["key", "pass"])
def test_all_orders_are_equally_likely(n, varied):
    count = 48_000
    keys = jax.random.split(jax.random.key(2), count) if varied == "key" else jnp.repeat(jax.random.key(2)[None], count)
    passes = jnp.zeros(count, jnp.uint32) if varied == "key" else jnp.arange(count, dtype=jnp.uint32)
    places = jnp.arange(n, dtype=jnp.uint32)
    orders = np.asarray(jax.vmap(lambda key, number: permute(key, number, places, jnp.uint32(n)))(keys, passes))
    _, seen = np.unique(orders, axis=0, return_counts=True)
    assert len(seen) == math.factorial(n)
    assert scipy.stats.chisquare(seen).pvalue > 1e-4


def test_large_orders_look_random():
    """Where a sample lands, how far apart neighbours land, and how many stay where they were."""
    n, count = 200, 20_000
    places = jnp.arange(n, dtype=jnp.uint32)
    permute_one = jax.vmap(lambda number: permute(jax.random.key(3), number, places, jnp.uint32(n)))
    orders = np.asarray(permute_one(jnp.arange(count, dtype=jnp.uint32))).astype(int)
    assert scipy.stats.chisquare(np.bincount(orders[:, 17], minlength=n)).pvalue > 1e-4
    assert scipy.stats.chisquare(np.bincount((orders[:, 1] - orders[:, 0]) % n, minlength=n)[1:]).pvalue > 1e-4
    fixed_points = np.sum(orders == np.arange(n), axis=1)  # Poisson(1) for a random permutation
    assert abs(fixed_points.mean() - 1) < 0.04
    assert abs(fixed_points.var() - 1) < 0.06


def test_padding_repeats_a_minibatch_in_turn():
    """So that its mean and variance hardly change: those of a copied sample would be zero."""
    counts = (jnp.int32(each) for each in (2, 3, 7))
    rows, real = map(np.asarray, Place(jax.random.key(0), jnp.uint32(0), *counts).rows(0, 2, 5))
    assert real.tolist() == [[True] * 5, [True, True, False, False, False]]
    assert sorted([*rows[0], *rows[1, :2]]) == list(range(3, 10))
    np.testing.assert_array_equal(rows[1], rows[1, [0, 1, 0, 1, 0]])
