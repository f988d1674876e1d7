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
    return x, kernel, strides, tuple(zip(before, after, strict=True)), dilation


@settings(max_examples=8)
@given(cases())
def test_kernels_are_the_convolution(case):
    shape, kernel_shape, strides, padding, dilation = case
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=each)) for each in (shape, kernel_shape))
    y, pull = jax.vjp(lambda x, k: lax.conv_general_dilated(x, k, strides, padding, None, dilation, LAYOUT), x, kernel)
    dy = jnp.asarray(rng.normal(size=y.shape))
    dx, dk = pull(dy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_kernels, "_cut", lambda *given: SMALL)
        patch.setattr(convolution_kernels, "_cut_sum", lambda *given: (SMALL, 2))
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
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_they_are_lowered_for_gpus(monkeypatch, dtype):
    """To Triton, which is stricter than the interpreter, with clients and seeds as one axis; not for a CPU.

    The gradient by x of the second layer is faster by slices.
    """
    monkeypatch.setattr(convolution_kernels, "usable", lambda: True)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    gradient = jax.grad(with_fast_convolutions(network), argnums=(0, 1))
    traced = jax.jit(jax.vmap(jax.vmap(gradient))).trace(*a_network(dtype))
    count = lambda platform: traced.lower(lowering_platforms=(platform,)).as_text().count("xla.gpu.triton(")  # noqa: E731
    assert (count("cuda"), count("cpu")) == (5, 0)


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
    for dtype in (jnp.float32, jnp.bfloat16):
        assert faster("y", (3, 3, 64, 64), (1, 1), dtype)
        assert faster("k", (3, 3, 256, 256), (1, 1), dtype)
        assert faster("k", (3, 3, 64, 128), (2, 2), dtype)
        assert faster("y", (5, 5, 16, 20), (1, 1), dtype)
        assert not faster("x", (3, 3, 64, 128), (2, 2), dtype)
        assert not faster("y", (3, 3, 512, 512), (1, 1), dtype)
        assert not faster("y", (7, 7, 64, 64), (1, 1), dtype)
        assert not faster("y", (1, 1, 64, 64), (1, 1), dtype)
        assert not faster("y", (3, 3, 3, 64), (1, 1), dtype)
    assert not faster("y", (3, 3, 64, 64), (1, 1), jnp.float64)
    assert not convolution_kernels.usable()  # not on a CPU


@pytest.mark.parametrize("precision", ["highest", "float32", "high"])
def test_float32_whose_products_must_not_be_rounded_has_none(monkeypatch, precision):
    monkeypatch.setattr(convolution_kernels, "usable", lambda: True)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    kernels = jax.ShapeDtypeStruct((2, 3, 3, 16, 16), jnp.float32)
    x = jax.ShapeDtypeStruct((2, 1, 8, 8, 16), jnp.float32)

    def lowered():
        def apply(kernel, x):
            return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=LAYOUT)

        traced = jax.jit(jax.vmap(with_fast_convolutions(apply))).trace(kernels, x)
        return "xla.gpu.triton(" in traced.lower(lowering_platforms=("cuda",)).as_text()

    assert lowered()
    with jax.default_matmul_precision(precision):
        assert not lowered()


@pytest.mark.parametrize("scales", [(1.0, 1.0), (1e-20, 1e-12), (1e30, 1e-25), (0.0, 1.0)])
def test_half_precision_stands_for_float32_of_any_size(monkeypatch, scales):
    """Within what rounding the factors to 11 bits explains, of the largest result."""
    monkeypatch.setattr(convolution_kernels, "_cut", lambda *given: SMALL)
    rng = np.random.default_rng(0)
    x, kernel = (
        (scale * rng.standard_t(2, size=shape)).astype(np.float32)
        for scale, shape in zip(scales, ((2, 6, 6, 20), (3, 3, 20, 17)), strict=True)
    )
    how = ((6, 6), (3, 3), (1, 1), (1, 1), (1, 1))
    found = convolution_kernels.compute("y", jnp.asarray(x), jnp.asarray(kernel), *how)
    wide = (jnp.asarray(each, jnp.float64) for each in (x, kernel))
    exact = lax.conv_general_dilated(*wide, (1, 1), "SAME", dimension_numbers=LAYOUT)
    assert found.dtype == jnp.float32
    assert np.abs(found - exact).max() <= 2**-10 * np.abs(exact).max()


def test_half_precision_keeps_what_is_not_finite():
    x = jnp.ones((1, 4, 4, 16), jnp.float32).at[0, 0, 0, 0].set(jnp.nan)
    kernel = jnp.ones((3, 3, 16, 16), jnp.float32)
    found = convolution_kernels.compute("y", x, kernel, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1))
    assert np.isnan(found[0, 0, 0]).all()
