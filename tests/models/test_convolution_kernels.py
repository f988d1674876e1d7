"""The convolution kernels for GPUs, run by an interpreter, beside the compiler's convolution."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from pfedbred.models import convolution_kernels
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.models.convolution_kernels import Tile

pytestmark = pytest.mark.full  # compiling many networks takes long

LAYOUT = ("NHWC", "HWIO", "NHWC")
SMALL = Tile(16, 16, 16, 4, 2)


@st.composite
def cases(draw):
    """Shapes that fill no tile, with the other arguments of a convolution."""
    two = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    window, strides, dilation, before, after = two(1, 3), two(1, 2), two(1, 2), two(0, 2), two(0, 2)
    x = (2, *two(6, 7), draw(st.sampled_from([3, 20])))
    kernel = (*window, x[3], draw(st.sampled_from([5, 17])))
    return x, kernel, strides, tuple(zip(before, after, strict=True)), dilation, draw(st.booleans())


@settings(max_examples=8)
@given(cases())
def test_kernels_are_the_convolution(case):
    shape, kernel_shape, strides, padding, dilation, pixels_last = case
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=each)) for each in (shape, kernel_shape))
    y, pull = jax.vjp(lambda x, k: lax.conv_general_dilated(x, k, strides, padding, None, dilation, LAYOUT), x, kernel)
    dy = jnp.asarray(rng.normal(size=y.shape))
    dx, dk = pull(dy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_kernels, "_cut", lambda *given: SMALL)
        patch.setattr(convolution_kernels, "_cut_sum", lambda *given: (SMALL, 2, pixels_last))
        for wanted, a, b, exact in (("y", x, kernel, y), ("x", dy, kernel, dx), ("k", x, dy, dk)):
            before = tuple(low for low, _ in padding)
            window = kernel_shape[:2]
            sides = {"y": y.shape[1:3], "x": shape[1:3], "k": window}[wanted]
            found = convolution_kernels.compute(wanted, a, b, sides, window, strides, dilation, before)
            np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-11, err_msg=wanted)


def network(params, x):
    """Two layers whose sizes the kernels are used for, the second with a stride."""
    for kernel, stride in zip(params, (1, 2), strict=True):
        x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=LAYOUT))
    return jnp.sum(x**2)


def a_network(dtype):
    params = [jnp.ones((2, 2, 3, 3, 16, 16), dtype)] * 2
    return params, jnp.ones((2, 2, 1, 8, 8, 16), dtype)


@pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="from 0.12 on, JAX compiles for GPUs only where one is")
@pytest.mark.parametrize(("dtype", "kernels"), [(jnp.float32, 4), (jnp.bfloat16, 5)])
def test_they_are_lowered_for_gpus(monkeypatch, dtype, kernels):
    """To Triton, which is stricter than the interpreter, with clients and seeds as one axis; not for a CPU.

    In float32 the gradients by x and k of the second layer are faster by slices, in bfloat16 only that by x.
    """
    monkeypatch.setattr(convolution_kernels, "usable", lambda: True)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    gradient = jax.grad(with_fast_convolutions(network), argnums=(0, 1))
    traced = jax.jit(jax.vmap(jax.vmap(gradient))).trace(*a_network(dtype))
    count = lambda platform: traced.lower(lowering_platforms=(platform,)).as_text().count("xla.gpu.triton(")  # noqa: E731
    assert (count("cuda"), count("cpu")) == (kernels, 0)


def test_differentiated_after_clients_are_batched():
    """The gradient of a sum over clients, and its derivative, are those of lax.conv."""
    rng = np.random.default_rng(1)
    params = [jnp.asarray(rng.normal(size=(2, 2, 2, 3, 3))) for _ in range(2)]
    x = jnp.asarray(rng.normal(size=(2, 1, 4, 4, 3)))

    def total(apply, params):
        return jnp.sum(jax.vmap(apply)(params, x) ** 2)

    found, exact = (partial(total, apply) for apply in (with_fast_convolutions(network), network))
    along = jax.tree.map(jnp.cos, params)
    for one, other in zip(
        jax.tree.leaves(jax.jvp(jax.grad(found), (params,), (along,))),
        jax.tree.leaves(jax.jvp(jax.grad(exact), (params,), (along,))),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_where_they_are_used():
    """Where they were measured to be faster: small windows, 16 channels or more, and not too many outputs."""
    faster = convolution_kernels.faster
    assert faster("y", (3, 3, 64, 64), (1, 1), jnp.float32)
    assert not faster("y", (3, 3, 256, 256), (1, 1), jnp.float32)
    assert faster("k", (3, 3, 256, 256), (1, 1), jnp.bfloat16)
    assert not faster("x", (3, 3, 64, 128), (2, 2), jnp.bfloat16)
    assert faster("y", (5, 5, 16, 20), (1, 1), jnp.float32)
    assert not faster("y", (7, 7, 64, 64), (1, 1), jnp.float32)
    assert not faster("y", (1, 1, 64, 64), (1, 1), jnp.float32)
    assert not faster("y", (3, 3, 3, 64), (1, 1), jnp.float32)
    assert not faster("y", (3, 3, 64, 64), (1, 1), jnp.float64)
    assert not convolution_kernels.usable()  # not on a CPU
