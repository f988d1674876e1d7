"""A Sigma in a file is loaded before the algorithm is built."""

import jax
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.errors import SettingError
from pfedbred.experiment.sigma import read_sigma, with_sigma

SIZE = 21  # parameters of mclr on the small federation


def test_a_path_becomes_the_array_in_the_file(tmp_path):
    sigma = np.linspace(1, 2, 5)
    np.save(tmp_path / "sigma.npy", sigma)
    np.testing.assert_array_equal(read_sigma(str(tmp_path / "sigma.npy")), sigma)
    loaded = with_sigma({"lam": 3.0, "sigma": str(tmp_path / "sigma.npy")})
    assert loaded.keys() == {"lam", "sigma"}
    np.testing.assert_array_equal(loaded["sigma"], sigma)


def test_anything_else_is_unchanged():
    sigma = np.ones(3)
    assert read_sigma(sigma) is sigma
    assert read_sigma(None) is None
    assert with_sigma({"alpha": 0.1, "sigma": 2.0}) == {"alpha": 0.1, "sigma": 2.0}
    assert with_sigma({"prox_solver": "adam"}) == {"prox_solver": "adam"}


def test_a_missing_file_is_one_line():
    with pytest.raises(SettingError, match=r"cannot read sigma from nowhere\.npy"):
        read_sigma("nowhere.npy")


def test_a_run_with_a_file_is_the_run_with_its_array(tmp_path):
    sigma = np.linspace(1, 4, SIZE)
    np.save(tmp_path / "sigma.npy", sigma)
    options = {"algorithm": "pfedbred", "rounds": 1, "federation": small_federation()}
    one, other = (
        pfedbred.run(settings={"R": 1, "K": 1, "sigma": each}, **options)
        for each in (str(tmp_path / "sigma.npy"), sigma)
    )
    jax.tree.map(np.testing.assert_array_equal, one.personal_model(0), other.personal_model(0))


@pytest.mark.full
def test_a_sweep_reads_the_file(tmp_path):
    np.save(tmp_path / "sigma.npy", np.linspace(1, 4, SIZE))
    experiment = pfedbred.Experiment(
        algorithm="pfedbred", rounds=1, settings={"R": 1, "K": 1, "sigma": str(tmp_path / "sigma.npy")}
    )
    swept = pfedbred.sweep(experiment, {"lam": [1.0, 2.0]}, federation=small_federation())
    assert np.all(np.isfinite(swept.best_accuracy("personal")))
