"""Client selection: how often clients are chosen, and selections by name, by numbers and as functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from pfedbred.engine import selection
from pfedbred.errors import SettingError


def chosen_often(select, sizes, count=20_000):
    keys = jax.random.split(jax.random.key(0), count)
    return np.asarray(jax.jit(jax.vmap(lambda key: select(key, jnp.asarray(sizes))))(keys))


def test_uniform_selection_takes_every_subset_equally_often():
    chosen = np.sort(chosen_often(selection.uniform(2), [5, 1, 1, 9]), axis=1)
    subsets, seen = np.unique(chosen, axis=0, return_counts=True)
    assert len(subsets) == 6
    assert scipy.stats.chisquare(seen).pvalue > 1e-4


def test_selection_by_data_is_proportional():
    sizes = np.array([10, 20, 30, 40])
    seen = np.bincount(chosen_often(selection.by_data(1), sizes)[:, 0], minlength=4)
    assert scipy.stats.chisquare(seen, sizes / sizes.sum() * seen.sum()).pvalue > 1e-4
    pairs = chosen_often(selection.by_data(2), sizes)
    assert np.all(pairs[:, 0] != pairs[:, 1])


KEY, SIZES = jax.random.key(3), jnp.array([5, 1, 1, 9])


def test_names_numbers_functions_and_builders_are_selections():
    def first(key, sizes):
        return jnp.array([0])

    def last(count):
        return lambda key, sizes: sizes.shape[0] - 1 - jnp.arange(count)

    assert selection.get(first, 2) is first
    assert selection.get(last, 2)(KEY, SIZES).tolist() == [3, 2]
    assert selection.get([2, 0], 5)(KEY, SIZES).tolist() == [2, 0]
    assert selection.get((1,), 5)(KEY, SIZES).tolist() == [1]
    for name, build in selection.SELECTIONS.items():
        assert selection.get(name, 3)(KEY, SIZES).tolist() == build(3)(KEY, SIZES).tolist()


def test_unknown_names_are_rejected_in_one_line():
    for name, message in (
        ("unifrom", "unknown selection 'unifrom'; did you mean 'uniform'"),
        ("", "unknown selection ''; choose one of: uniform, by-data"),
    ):
        with pytest.raises(SettingError, match=message):
            selection.get(name, 2)


@pytest.mark.parametrize("given", [3, None, 0.5, object()])
def test_what_is_no_selection_is_rejected(given):
    with pytest.raises(SettingError, match="select must be"):
        selection.get(given, 2)


@pytest.mark.parametrize("chosen", [[], [1, 1], [4], [-1], [0.5]])
def test_clients_that_do_not_exist_are_rejected(chosen):
    with pytest.raises(SettingError, match="a selection must be"):
        selection.check(chosen, 4)


@jax.jit
def compiled(key, sizes):
    return jnp.argsort(-sizes)[:2]


READ_SIZES = {
    "by-data": selection.by_data(2),
    "operator": lambda key, sizes: jnp.arange(2) + (sizes > 3)[:2],
    "entry": lambda key, sizes: jnp.arange(2) if sizes[0] > 3 else jnp.arange(3),
    "numpy": lambda key, sizes: np.argsort(sizes)[:2],
    "primitive": lambda key, sizes: jax.lax.top_k(sizes, 2)[1],
    "compiled": compiled,
    "itself": lambda key, sizes: sizes,
}


@pytest.mark.parametrize("name", READ_SIZES)
def test_a_selection_that_reads_unknown_sizes_is_rejected_in_one_line(name):
    assert len(selection.among(READ_SIZES[name], 4, SIZES)(KEY)) > 0
    with pytest.raises(SettingError, match=r"^the selection needs the sizes of all clients, but .* on demand$"):
        selection.among(READ_SIZES[name], 4, None)


def test_a_selection_may_read_the_number_of_clients_alone():
    for select in (selection.uniform(2), lambda key, sizes: jnp.arange(len(sizes))[-2:], selection.fixed([2, 3])):
        expected = select(KEY, SIZES).tolist()
        assert (
            selection.among(select, 4, None)(KEY).tolist()
            == expected
            == selection.among(select, 4, SIZES)(KEY).tolist()
        )


def test_what_else_a_selection_raises_is_its_own():
    with pytest.raises(jax.errors.TracerArrayConversionError):
        selection.among(lambda key, sizes: np.asarray(jax.random.key_data(key)), 4, None)
