"""Loops of unequal length: each client's result is that of its own loop, side by side too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedbred.algorithms.unequal_loops import repeat


def grow(matrix: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x <- A x + r for ``count`` steps, and how many there were."""

    def step(carry: tuple[jax.Array, jax.Array], r: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, taken = carry
        return matrix @ x + r, taken + 1

    return repeat(step, (jnp.ones(3), jnp.int32(0)), count)


def in_python(matrix: np.ndarray, count: int) -> np.ndarray:
    x = np.ones(3)
    for r in range(count):
        x = matrix @ x + r
    return x


@pytest.mark.parametrize("clients", [1, 5, 19])
def test_every_client_ends_after_its_own_steps(clients):
    rng = np.random.default_rng(clients)
    matrices, counts = 0.4 * rng.normal(size=(clients, 3, 3)), rng.integers(0, 12, clients)
    x, taken = jax.jit(jax.vmap(grow))(matrices, counts)
    assert taken.tolist() == counts.tolist()
    for i in range(clients):
        np.testing.assert_allclose(x[i], in_python(matrices[i], counts[i]), rtol=1e-12)


def test_seeds_over_clients_with_counts_of_their_own():
    rng = np.random.default_rng(0)
    matrices, counts = 0.4 * rng.normal(size=(2, 9, 3, 3)), rng.integers(0, 12, (2, 9))
    x, taken = jax.vmap(jax.vmap(grow))(matrices, counts)
    assert taken.tolist() == counts.tolist()
    np.testing.assert_allclose(x[1, 4], in_python(matrices[1, 4], counts[1, 4]), rtol=1e-12)


def test_clients_in_turn_take_no_more_steps_than_they_have():
    matrices, counts = np.zeros((4, 3, 3)), np.array([3, 0, 7, 1])
    _, taken = jax.lax.map(lambda each: grow(*each), (jnp.asarray(matrices), jnp.asarray(counts)))
    assert taken.tolist() == counts.tolist()


def test_narrower_and_narrower_groups_do_less_work_than_everyone_for_the_longest():
    """Counts the clients' steps that are computed, thrown away or not."""
    computed = 0

    def count_lanes(r: np.ndarray) -> np.ndarray:
        nonlocal computed
        computed += r.size
        return r

    def one(count: jax.Array, own: jax.Array) -> jax.Array:
        def step(x: jax.Array, r: jax.Array) -> jax.Array:
            shape = jax.ShapeDtypeStruct((), jnp.int32)
            return x + jax.pure_callback(count_lanes, shape, r + own, vmap_method="expand_dims")

        return repeat(step, jnp.int32(0), count)

    counts = jnp.array([1] * 15 + [100])
    jax.block_until_ready(jax.vmap(one)(counts, jnp.zeros(16, jnp.int32)))
    assert counts.sum() <= computed <= 16 + 99 * 4
