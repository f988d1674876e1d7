"""Inverses and roots: NumPy's, and one matrix at a time on a CPU, without which several devices can stand still."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedbred.bregman import dense

RNG = np.random.default_rng(0)
ROOTS = RNG.normal(size=(2, 3, 4, 4))
MATRICES = jnp.asarray(ROOTS @ ROOTS.swapaxes(-1, -2) + np.eye(4))


def test_results_are_those_of_numpy():
    def twice(function):
        return jax.vmap(jax.vmap(function))(MATRICES)

    np.testing.assert_allclose(twice(dense.inverse), np.linalg.inv(MATRICES), atol=1e-12)
    np.testing.assert_allclose(twice(dense.cholesky), np.linalg.cholesky(MATRICES), atol=1e-12)
    values, vectors = twice(dense.eigenvectors)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(MATRICES), atol=1e-12)
    np.testing.assert_allclose(MATRICES @ vectors, values[..., None, :] * vectors, atol=1e-12)


@pytest.mark.parametrize("function", [dense.inverse, dense.cholesky, dense.eigenvectors])
def test_no_batch_reaches_lapack(function):
    lowered = jax.jit(jax.vmap(jax.vmap(function))).lower(MATRICES).as_text()
    calls = [line for line in lowered.splitlines() if "@lapack" in line]
    assert calls
    assert not any("3x4x4" in line or "2x4x4" in line for line in calls)


STUCK = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # two threads, which two devices can both keep waiting
import jax
jax.config.update("jax_num_cpu_devices", 2)
import pfedbred
run = pfedbred.run(clients=20, rounds=1, model="dnn", algorithm="learned-prior", settings={"R": 1}, seeds=2)
print("round", run.round)
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(__import__("os"), "sched_setaffinity"), reason="Linux only")
def test_a_learned_strength_on_two_devices_comes_to_its_end():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "round 1\n", done.stderr
