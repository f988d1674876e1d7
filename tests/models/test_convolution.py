"""Convolutions as slices and one matrix product, beside the compiler's own."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from pfedbred import models
from pfedbred.models import convolution_on_cpu
from pfedbred.models.convolution import convolve, with_fast_convolutions
from pfedbred.models.convolution_forms import GIVEN, by_lax, by_ordered_lax, of_equation
from pfedbred.models.convolution_on_cpu import by_chunks, fastest
from pfedbred.models.convolution_winograd import by_winograd, bytes_of_tiles, has_form

KEY = jax.random.key(0)
LAYOUTS = {
    1: [("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW"), ("CWN", "IWO", "WNC")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HNCW", "IHOW", "WCNH")],
}


@st.composite
def convolutions(draw):
    """x, kernel and the other arguments of lax.conv_general_dilated."""
    dims = draw(st.integers(1, 2))
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    layout = draw(st.sampled_from(LAYOUTS[dims]))
    groups, inputs, outputs = draw(st.sampled_from([(1, 1, 2), (1, 3, 2), (2, 2, 3), (3, 2, 1), (3, 1, 1), (2, 1, 2)]))
    window = each(1, 3)
    options = {"window_strides": draw(st.one_of(st.just(window), st.just(each(1, 3)))), "rhs_dilation": each(1, 2)}
    padding = draw(st.sampled_from(["SAME", "VALID", "explicit"]))
    if padding == "explicit":
        options["lhs_dilation"] = each(1, 3)
        padding = tuple(zip(each(-1, 3), each(0, 2), strict=True))
    options |= {"padding": padding, "dimension_numbers": layout, "feature_group_count": groups}
    sizes = dict(zip("HW" if dims == 2 else "W", each(6, 8), strict=True)) | {"N": 2, "C": groups * inputs}
    of_kernel = dict(zip("HW" if dims == 2 else "W", window, strict=True)) | {"I": inputs, "O": groups * outputs}
    shapes = [tuple(size[axis] for axis in letters) for size, letters in ((sizes, layout[0]), (of_kernel, layout[1]))]
    keys = jax.random.split(jax.random.key(draw(st.integers(0, 9))))
    return (*(jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)), options)


def close(a, b, tolerance=1e-11):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def primitives(program):
    """The names of all operations in a program and in those within it."""
    names = set()
    for equation in program.eqns:
        names.add(equation.primitive.name)
        for inner in core.jaxprs_in_params(equation.params):
            names |= primitives(inner)
    return names


def pulled_back(function, x, kernel):
    """The output, and the gradients of a sum in which every output counts differently."""
    y, pull = jax.vjp(function, x, kernel)
    return y, pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))


@settings(max_examples=12)
@given(convolutions())
@pytest.mark.full
def test_slices_are_the_convolution(case):
    check_slices(case)


@pytest.mark.slow
@settings(max_examples=150)
@given(convolutions())
def test_slices_are_the_convolution_in_many_cases(case):
    check_slices(case)


def check_slices(case):
    x, kernel, options = case
    lax_conv = partial(lax.conv_general_dilated, **options)
    assert x.dtype == jnp.float64
    expected = pulled_back(lax_conv, x, kernel)
    close(pulled_back(partial(convolve, **options), x, kernel), expected)
    close(pulled_back(with_fast_convolutions(lax_conv), x, kernel), expected)


@pytest.mark.parametrize("wanted", ["y", "x", "k"])
@pytest.mark.parametrize("way", ["ordered", "slices", "slices of one sample at a time"])
def test_both_ways_on_a_cpu(wanted, way, monkeypatch):
    monkeypatch.setattr(convolution_on_cpu, "_CACHED", 0 if "one sample" in way else 2**23)
    computed = by_ordered_lax if way == "ordered" else by_chunks

    @settings(max_examples=4)
    @given(convolutions())
    def check(case):
        x, kernel, options = case
        traced = jax.make_jaxpr(partial(lax.conv_general_dilated, **options))(x, kernel)
        shaped = of_equation(traced.eqns[-1])
        given = {"x": x, "k": kernel, "y": jnp.cos(jnp.arange(np.prod(shaped.y), dtype=x.dtype)).reshape(shaped.y)}
        arguments = [given[name] for name in GIVEN[wanted]]
        found, expected = (each(*arguments, wanted=wanted, convolution=shaped) for each in (computed, by_lax))
        close(found, expected)

    check()


@pytest.mark.parametrize("wanted", ["y", "x", "k"])
def test_winograds_form(wanted):
    """Any padding, cropping as well, sides odd and even, and any order of axes."""
    pads = st.tuples(st.integers(-1, 4), st.integers(-1, 3))

    @settings(max_examples=6)
    @given(
        st.tuples(st.integers(4, 9), st.integers(4, 9)),
        st.one_of(st.sampled_from(["SAME", "VALID"]), st.tuples(pads, pads)),
        st.sampled_from(LAYOUTS[2]),
    )
    def check(sides, padding, layout):
        sizes = {"N": 2, "H": sides[0], "W": sides[1], "C": 3}
        keys = jax.random.split(jax.random.key(sides[0]), 3)
        x = jax.random.normal(keys[0], [sizes[axis] for axis in layout[0]])
        kernel = jax.random.normal(keys[1], [{"H": 3, "W": 3, "I": 3, "O": 5}[axis] for axis in layout[1]])
        conv = partial(lax.conv_general_dilated, window_strides=(1, 1), padding=padding, dimension_numbers=layout)
        shaped = of_equation(jax.make_jaxpr(conv)(x, kernel).eqns[-1])
        assert has_form(shaped)
        given = {"x": x, "k": kernel, "y": jax.random.normal(keys[2], shaped.y)}
        arguments = [given[name] for name in GIVEN[wanted]]
        found, expected = (each(*arguments, wanted=wanted, convolution=shaped) for each in (by_winograd, by_lax))
        close(found, expected)

    check()


def test_where_winograds_form_is_taken():
    """3x3 kernels without strides, dilation or groups, between many channels, where the tiles fit in the cache."""

    def way(wanted, channels=64, samples=20, side=8, window=3, dtype=jnp.float32, **options):
        x, kernel = (jnp.zeros(shape, dtype) for shape in ((samples, side, side, 64), (window, window, channels, 64)))
        options = {"window_strides": (1, 1), "padding": ((1, 1), (1, 1)), "dimension_numbers": LAYOUTS[2][0], **options}
        traced = jax.make_jaxpr(partial(lax.conv_general_dilated, **options))(x, kernel)
        return fastest(wanted, of_equation(traced.eqns[-1]), jnp.dtype(dtype))

    assert {way(wanted) for wanted in "yxk"} == {by_winograd}
    others = (
        {"window_strides": (2, 2)},
        {"rhs_dilation": (2, 2)},
        {"lhs_dilation": (2, 2)},
        {"feature_group_count": 4, "channels": 16},
        {"window": 5},
        {"dtype": jnp.bfloat16},
        {"samples": 1024},
    )
    assert all(way(wanted, **options) is not by_winograd for wanted in "yxk" for options in others)


def test_the_memory_of_winograds_tiles():
    """16 numbers for each channel of each tile of 2 x 2 outputs: y's for y and k', x's for x'."""
    x, kernel = jnp.zeros((2, 5, 7, 3)), jnp.zeros((3, 3, 3, 4))
    conv = partial(lax.conv_general_dilated, window_strides=(1, 1), dimension_numbers=LAYOUTS[2][0])
    shaped = of_equation(jax.make_jaxpr(partial(conv, padding="VALID"))(x, kernel).eqns[-1])
    expected = {"y": 2 * (2 * 3) * 3, "k": 2 * (2 * 3) * 3, "x": 2 * (3 * 4) * 4}
    assert {wanted: bytes_of_tiles(wanted, shaped, 4) for wanted in "yxk"} == {
        wanted: 16 * count * 4 for wanted, count in expected.items()
    }


def test_slices_of_two_samples_at_a_time(monkeypatch):
    monkeypatch.setattr(convolution_on_cpu, "_CACHED", 2 * 5 * 5 * 3 * 3 * 2 * 8)
    x, y = (jax.random.normal(KEY, (6, 5, 5, channels)) for channels in (2, 4))
    _, kernel = inputs()
    shaped = of_equation(jax.make_jaxpr(same)(x, kernel).eqns[-1])
    found, expected = (partial(way, wanted="k", convolution=shaped) for way in (by_chunks, by_lax))
    assert any("dynamic_slice" in name for name in primitives(jax.make_jaxpr(found)(x, y).jaxpr))
    close(found(x, y), expected(x, y))


@pytest.mark.full
@settings(max_examples=8)
@given(convolutions(), st.sampled_from([(0, 0), (0, None), (None, 0), (1, 2)]))
def test_slices_for_many_clients(case, axes):
    x, kernel, options = case
    many = [
        each if axis is None else jnp.stack([each, jnp.sin(each), each**2], axis)
        for each, axis in zip((x, kernel), axes, strict=True)
    ]
    lax_conv = partial(lax.conv_general_dilated, **options)
    slow, fast = (jax.vmap(partial(pulled_back, each), axes) for each in (lax_conv, with_fast_convolutions(lax_conv)))
    close(fast(*many), slow(*many))
    if axes[1] is not None:
        assert "conv_general_dilated" not in primitives(jax.make_jaxpr(fast)(*many))


def same(x, kernel, groups=1):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=groups)


def inputs(channels=2, groups=1, outputs=4, dtype=jnp.float64):
    x = jax.random.normal(KEY, (2, 5, 5, channels), dtype)
    return x, jax.random.normal(KEY, (3, 3, channels // groups, outputs), dtype)


def test_second_derivatives_in_both_modes():
    x, kernel = inputs()

    def loss(function, kernel):
        return jnp.sum(jnp.sin(function(x, function(kernel, kernel[..., :2, :2]))))

    fast = with_fast_convolutions(same)
    kernel = kernel[..., :2]
    for twice in (jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jacfwd(f))):
        close(jax.jit(twice(partial(loss, fast)))(kernel), jax.jit(twice(partial(loss, same)))(kernel))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_single_and_half_precision(dtype, tolerance, groups):
    x, kernel = inputs(4, groups, dtype=dtype)
    fast, exact = with_fast_convolutions(partial(same, groups=groups)), partial(same, groups=groups)
    many = [each[None].repeat(2, 0) for each in (x, kernel)]
    found = jax.jit(jax.vmap(partial(pulled_back, fast)))(*many)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(dtype)}
    expected = jax.vmap(partial(pulled_back, exact))(*(each.astype(jnp.float64) for each in many))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=tolerance, atol=tolerance)


@jax.custom_jvp
def with_jvp(x, kernel):
    return same(x, kernel)


with_jvp.defjvps(lambda dx, y, x, k: same(dx, k), lambda dk, y, x, k: same(x, dk))


@jax.custom_vjp
def with_vjp(x, kernel):
    return same(x, kernel)


with_vjp.defvjp(lambda x, k: jax.vjp(same, x, k), lambda pull, y: pull(y))

CONTROL = {
    "jit": lambda x, k: jax.jit(same)(x, k),
    "remat": lambda x, k: jax.checkpoint(same)(x, k),
    "scan": lambda x, k: lax.scan(lambda c, _: (same(c, k), None), x, None, length=2)[0],
    "cond": lambda x, k: lax.cond(x.sum() > 0, same, lambda x, k: same(x, 2 * k), x, k),
    "while": lambda x, k: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, same(c[1], k)), (0, x))[1],
    "fori": lambda x, k: lax.fori_loop(0, 2, lambda _, c: same(c, k), x),
    "custom_jvp": lambda x, k: with_jvp(x, k),
    "custom_vjp": lambda x, k: with_vjp(x, k),
}


@pytest.mark.parametrize("name", CONTROL)
def test_convolutions_within_other_programs(name):
    x, kernel = inputs(outputs=2)
    x, kernels = jnp.stack([x, -x]), jnp.stack([kernel, kernel**2])
    slow, fast = jax.vmap(CONTROL[name]), jax.vmap(with_fast_convolutions(CONTROL[name]))
    assert "conv_general_dilated" in primitives(jax.make_jaxpr(slow)(x, kernels))
    assert "conv_general_dilated" not in primitives(jax.make_jaxpr(fast)(x, kernels))
    close(jax.jit(fast)(x, kernels), jax.jit(slow)(x, kernels))
    if name != "while":  # which has no gradient
        total = [lambda k, f=f: jnp.sum(jnp.sin(f(x, k))) for f in (fast, slow)]
        close(jax.jit(jax.grad(total[0]))(kernels), jax.jit(jax.grad(total[1]))(kernels))


def test_what_has_no_fast_form_runs_as_before():
    x, kernel = inputs()
    batch_groups = partial(
        lax.conv_general_dilated,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        batch_group_count=2,
    )
    close(with_fast_convolutions(batch_groups)(x, kernel), batch_groups(x, kernel))
    assert "conv_general_dilated" in primitives(jax.make_jaxpr(with_fast_convolutions(batch_groups))(x, kernel))
    with pytest.raises(NotImplementedError):
        convolve(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), batch_group_count=2)


def test_programs_without_convolutions_are_unchanged():
    def function(tree, x):
        return {"logits": jax.nn.relu(x @ tree["w"]) + lax.map(jnp.sin, tree["b"]), "norm": jnp.linalg.norm(x)}

    tree, x = {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}, jnp.ones((2, 3))
    fast = with_fast_convolutions(function)
    assert str(jax.make_jaxpr(fast)(tree, x)) == str(jax.make_jaxpr(function)(tree, x))
    assert with_fast_convolutions(fast) is fast


def test_shared_kernels_keep_the_compilers_convolution():
    """As the global model's, wherever it is evaluated; wide ones on a CPU too."""
    x, kernel = inputs(8, dtype=jnp.float32)
    many = jnp.stack([x] * 8)
    program = jax.jit(jax.vmap(with_fast_convolutions(same), (0, None)))
    for platform in ("cpu", "cuda"):
        text = program.trace(many, kernel).lower(lowering_platforms=(platform,)).as_text()
        assert text.count("stablehlo.convolution") == 1
        assert "feature_group_count = 1 " in text


@pytest.mark.parametrize("layout", LAYOUTS[2])
def test_clients_in_turn(layout):
    """On a CPU XLA does not reorder the axes of convolutions within loops, so they are given in its own order."""
    shape = {"N": 4, "H": 16, "W": 16, "C": 8, "I": 8, "O": 16}
    x, kernel = (
        jnp.ones([3 if letter in "HW" and "I" in letters else shape[letter] for letter in letters], jnp.float32)
        for letters in layout[:2]
    )
    options = {"window_strides": (2, 2), "padding": "SAME", "dimension_numbers": layout}
    function = with_fast_convolutions(partial(lax.conv_general_dilated, **options))
    step = jax.grad(lambda x, kernel: jnp.sum(function(x, kernel) ** 2), (0, 1))
    lowered = jax.jit(step).trace(x, kernel).lower(lowering_platforms=("cpu",)).as_text()
    labels = [
        line.split("dim_numbers = ")[1].split(", window")[0] for line in lowered.splitlines() if "dim_num" in line
    ]
    assert labels == ["[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"] * 3  # y, x' and k'


def test_slices_for_clients_in_turn():
    """Where XLA has nothing fast on a CPU, or many outputs; on other platforms the compiler's convolution."""
    few = [inputs(), inputs(8, groups=2, dtype=jnp.float32), inputs(8, dtype=jnp.bfloat16)]
    for case in (*few, inputs(8, outputs=128, dtype=jnp.float32)):
        x, kernel = case
        groups = x.shape[-1] // kernel.shape[-2]
        step = jax.jit(
            jax.grad(lambda k, x=x, g=groups: jnp.sum(with_fast_convolutions(partial(same, groups=g))(x, k)))
        )
        texts = {
            platform: step.trace(kernel).lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda")
        }
        assert "stablehlo.convolution" not in texts["cpu"]
        assert "stablehlo.convolution" in texts["cuda"]


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3), strides=2)(x))
        x = nn.GroupNorm(2)(nn.Conv(4, (3, 3), feature_group_count=4, kernel_dilation=2)(x))
        x = nn.ConvTranspose(3, (2, 2), strides=(2, 2))(x)
        return nn.Dense(3)(nn.max_pool(x, (2, 2)).reshape(x.shape[0], -1))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(2, 4, (3, 3), rngs=rngs)
        self.last = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.conv(x)).mean((1, 2)))


def equinox_net(key):
    keys = jax.random.split(key, 3)
    return eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(8, 4, 3, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(4, 4, (3, 1), groups=2, key=keys[1]),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(4 * 6 * 2, 3, key=keys[2]),
        ]
    )


ADAPTED = {
    "linen": lambda: models.from_flax(Linen(), (8, 8, 2)),
    "nnx": lambda: models.from_flax(Nnx, (8, 8, 2)),
    "equinox": lambda: models.from_equinox(equinox_net, dtype=jnp.float64),
}


@pytest.mark.parametrize("name", ADAPTED)
def test_modules_of_a_user(name):
    model = ADAPTED[name]()
    params = jax.jit(jax.vmap(model.init))(jax.random.split(KEY, 3))
    x = jax.random.normal(KEY, (3, 2, 8, 8, 2), jnp.float32)

    def steps(apply):
        return jax.vmap(jax.value_and_grad(lambda params, x: jnp.sum(jnp.sin(apply(params, x)))))

    fast, slow = steps(model.apply), steps(model.apply.__wrapped__)
    assert "conv_general_dilated" in primitives(jax.make_jaxpr(slow)(params, x))
    assert "conv_general_dilated" not in primitives(jax.make_jaxpr(fast)(params, x))
    close(jax.jit(fast)(params, x), jax.jit(slow)(params, x), 1e-4)


def test_model_functions_of_a_user():
    model = models.Model(lambda key: jax.random.normal(key, (3, 3, 2, 4)), lambda k, x: same(x, k).sum((1, 2)))
    for each in (model, lambda shape, classes: model):
        found = models.get(each, (5, 5, 2), 4)
        kernels = jax.vmap(found.init)(jax.random.split(KEY, 2))
        program = jax.make_jaxpr(jax.vmap(found.apply, (0, None)))(kernels, inputs()[0])
        assert "conv_general_dilated" not in primitives(program)
    assert models.get("mclr", (5,), 4).apply.__name__ == "apply"
    assert not hasattr(models.get("mclr", (5,), 4).apply, "__wrapped__")
