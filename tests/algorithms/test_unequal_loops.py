"""Loops of unequal length: each client's result is that of its own loop, side by side too."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedbred.algorithms.unequal_loops import StepInputs, chosen_widths, repeat


def numbers(source: jax.Array, first: jax.Array, count: int) -> jax.Array:
    """What step r reads: source + r."""
    return source + first + jnp.arange(count)


def grow(matrix: jax.Array, count: jax.Array, source: jax.Array, everyone: np.ndarray | None = None) -> tuple:
    """x <- A x + (source + r) for ``count`` steps, and how many there were."""

    def step(carry: tuple[jax.Array, jax.Array], r: jax.Array, read: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, taken = carry
        return matrix @ x + read, taken + 1

    return repeat(step, (jnp.ones(3), jnp.int32(0)), count, StepInputs(numbers, source), everyone)


def in_python(matrix: np.ndarray, count: int, source: float) -> np.ndarray:
    x = np.ones(3)
    for r in range(count):
        x = matrix @ x + source + r
    return x


def samples(*shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matrices, counts of up to 40 steps, and sources."""
    rng = np.random.default_rng(shape[-1])
    return 0.4 * rng.normal(size=(*shape, 3, 3)), rng.integers(0, 40, shape), rng.normal(size=shape)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("clients", [1, 19])
def test_every_client_ends_after_its_own_steps(clients, known):
    matrices, counts, sources = samples(clients)
    everyone = counts if known else None
    run = jax.jit(jax.vmap(lambda matrix, count, source: grow(matrix, count, source, everyone)))
    x, taken = run(matrices, counts, sources)
    assert taken.tolist() == counts.tolist()
    for i in range(clients):
        np.testing.assert_allclose(x[i], in_python(matrices[i], counts[i], sources[i]), rtol=1e-12)


def test_seeds_over_clients_with_counts_of_their_own():
    matrices, counts, sources = samples(2, 9)
    x, taken = jax.vmap(jax.vmap(grow))(matrices, counts, sources)
    assert taken.tolist() == counts.tolist()
    np.testing.assert_allclose(x[1, 4], in_python(matrices[1, 4], counts[1, 4], sources[1, 4]), rtol=1e-12)


def test_clients_in_turn_read_block_after_block():
    matrices, counts, sources = samples(6)
    x, taken = jax.lax.map(lambda each: grow(*each), tuple(map(jnp.asarray, (matrices, counts, sources))))
    assert taken.tolist() == counts.tolist()
    for i in range(6):
        np.testing.assert_allclose(x[i], in_python(matrices[i], counts[i], sources[i]), rtol=1e-12)


@pytest.mark.parametrize("known", [False, True])
def test_narrower_and_narrower_groups_do_less_work_than_everyone_for_the_longest(known):
    """Counts the clients' steps that are computed, thrown away or not."""
    computed = 0

    def count_clients(x: np.ndarray) -> np.ndarray:
        nonlocal computed
        computed += x.size
        return x

    counts = np.array([1] * 15 + [100])

    def one(count: jax.Array, own: jax.Array) -> jax.Array:
        def step(x: jax.Array, r: jax.Array, read: jax.Array) -> jax.Array:
            shape = jax.ShapeDtypeStruct((), x.dtype)
            return jax.pure_callback(count_clients, shape, x + own, vmap_method="expand_dims")

        return repeat(step, jnp.float32(0), count, StepInputs(numbers, jnp.int32(0)), counts if known else None)

    jax.block_until_ready(jax.vmap(one)(jnp.asarray(counts), jnp.zeros(16, jnp.float32)))
    assert counts.sum() <= computed <= (115 if known else 16 + 99 * 2)


def work(counts: np.ndarray, widths: list[int]) -> int:
    """Clients' steps that are computed if so many clients run side by side, then fewer, and so on."""
    done, total = 0, 0
    for width, narrower in zip(widths, [*widths[1:], 0], strict=True):
        total += width * int(counts[narrower] - done)
        done = counts[narrower]
    return total


def test_the_chosen_widths_have_the_least_work():
    counts = np.array([100, 40, 40, 40, 9, 9, 9, 9, 9, 1])
    fewer = [rest for size in range(6) for rest in itertools.combinations(range(9, 0, -1), size)]
    assert work(counts, chosen_widths(counts)) == min(work(counts, [10, *rest]) for rest in fewer)
