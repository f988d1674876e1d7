"""Every family against the identities that define it, in float64, at many points."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pfedbred import priors
from pfedbred.errors import SettingError

D = 4
_RNG = np.random.default_rng(0)
_FACTOR = _RNG.normal(size=(D, D))
FULL_SIGMA = _FACTOR @ _FACTOR.T + np.eye(D)
DIAGONAL_SIGMA = np.array([0.5, 1.0, 2.0, 4.0])


def flat(tree):
    return ravel_pytree(tree)[0]


FAMILIES = {
    "gaussian": priors.gaussian(),
    "gaussian-scaled": priors.gaussian(2.5),
    "gaussian-diagonal": priors.gaussian(DIAGONAL_SIGMA),
    "gaussian-full": priors.gaussian(FULL_SIGMA),
    "bernoulli": priors.bernoulli(),
    "poisson": priors.poisson(),
    "exponential": priors.exponential(),
    # Built from g alone; the last one couples its entries and is in no table.
    "auto-bernoulli": priors.from_log_partition(lambda s: jnp.sum(jax.nn.softplus(flat(s)))),
    "auto-exponential": priors.from_log_partition(
        lambda s: -jnp.sum(jnp.log(-flat(s))),
        to_natural=lambda u: jax.tree.map(lambda leaf: -jnp.exp(-leaf), u),
        from_natural=lambda s: jax.tree.map(lambda leaf: -jnp.log(-leaf), s),
    ),
    "auto-coupled": priors.from_log_partition(lambda s: jax.nn.logsumexp(flat(s)) + 0.5 * jnp.sum(flat(s) ** 2)),
}
REPEATS = "auto-bernoulli"  # what is built from g alone has two more families
every_family = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name == REPEATS else []) for name in FAMILIES]
)


def points(seed):
    """120 vectors of params: most of them random, some at the edges, at zero, equal in all entries, or tiny."""
    rng = np.random.default_rng(seed)
    entries = [-3.0, -1.0, -1e-3, -1e-12, 0.0, 5e-324, 1e-12, 1e-3, 1.0, 3.0]
    special = [np.full((len(entries), D), np.array(entries)[:, None]), rng.choice(entries, (30, D))]
    return np.concatenate([*special, rng.uniform(-3, 3, (80, D))])


U, V = points(1), points(2)
W = np.roll(points(3), 50, axis=0)
W[40:50] = U[40:50]  # some pairs are equal,
W[50:60] = U[50:60] + 1e-3 * _RNG.normal(size=(10, D))  # some are close,
W[60:80] = U[60:80] + np.eye(D)[np.arange(20) % D]  # some differ in one entry


class Values(NamedTuple):
    """A family's functions at natural parameters a, b, c of U, V, W, and at the means x, z, y of those.

    Groups are of five neighbouring points, ``centre`` their mean and ``aside`` a step from it towards b or z, which
    stays inside the (convex) domain.
    """

    u_again: Any  # from_natural(a)
    a: Any
    b: Any
    c: Any
    x: Any
    z: Any
    y: Any
    g: Any  # at a, b, c
    g_slopes: Any  # by central differences at a
    conjugate: Any  # at x, y
    conjugate_slopes: Any  # by central differences at x
    grad_conjugate: Any  # at x, y
    divergence: Any  # of (a, c), (c, a), (a, b), (b, c), (a, a), (a, centre), (a, aside)
    conjugate_divergence: Any  # of (x, y), (x, centre), (x, aside)
    regulariser: Any  # of (U, W)
    solved: Any  # Hess g(a)^{-1} (Hess g(a) V)


@functools.cache
def values(name):
    """All of them from one program that has each function once: most of a test's time is compiling."""
    family, step, eye = FAMILIES[name], 1e-6, np.eye(D)

    def rows(function, *columns):
        """The function of each row, for columns stacked into one."""
        out = jax.vmap(function)(*(jnp.concatenate(column) for column in columns))
        return out.reshape(len(columns[0]), len(U), *out.shape[1:])

    def centres(points, targets):
        centre = jnp.mean(points.reshape(-1, 5, D), axis=1)
        return [jnp.repeat(each, 5, axis=0) for each in (centre, 0.9 * centre + 0.1 * targets[::5])]

    @jax.jit
    def everything(u, v, w):
        a, b, c = rows(family.to_natural, [u, v, w])
        x, z, y = rows(family.grad_g, [a, b, c])
        g = rows(family.g, [a, b, c, *(a + sign * step * e for sign in (1, -1) for e in eye)])
        # A mean that must be positive may be small: stay inside the domain.
        small = step * (jnp.min(jnp.abs(x), axis=1, keepdims=True) if family.domain.mean[0] == 0 else np.ones((1, 1)))
        conjugate = rows(family.conjugate, [x, y, *(x + sign * small * e for sign in (1, -1) for e in eye)])
        products = jax.vmap(lambda s, t: jax.jvp(family.grad_g, (s,), (t,))[1])(a, v)
        return Values(
            rows(family.from_natural, [a])[0],
            *(a, b, c, x, z, y),
            g[:3],
            (g[3 : 3 + D] - g[3 + D :]).T / (2 * step),
            conjugate[:2],
            (conjugate[2 : 2 + D] - conjugate[2 + D :]).T / (2 * small),
            rows(family.grad_conjugate, [x, y]),
            rows(family.divergence, [a, c, a, b, a, a, a], [c, a, b, c, a, *centres(a, b)]),
            rows(family.conjugate_divergence, [x, x, x], [y, *centres(x, z)]),
            rows(family.regulariser, [u], [w])[0],
            rows(family.solve_hessian, [a], [products])[0],
        )

    return jax.tree.map(np.asarray, everything(U, V, W))


def dot(a, b):
    return np.sum(a * b, axis=-1)


@every_family
def test_grad_g_is_the_gradient_of_g(name):
    at = values(name)
    np.testing.assert_allclose(at.x, at.g_slopes, rtol=1e-5, atol=1e-7)


@every_family
def test_grad_conjugate_is_the_gradient_of_the_conjugate(name):
    at = values(name)
    np.testing.assert_allclose(at.grad_conjugate[0], at.conjugate_slopes, rtol=1e-4, atol=1e-5)


@every_family
def test_gradients_are_inverse(name):
    at = values(name)
    np.testing.assert_allclose(at.grad_conjugate[0], at.a, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(at.u_again, U, rtol=1e-9, atol=1e-9)


@every_family
def test_fenchel_young(name):
    at = values(name)
    scale = 1 + np.abs(at.g[0]) + np.abs(at.conjugate[1])
    assert np.all(at.g[0] + at.conjugate[1] - dot(at.a, at.y) >= -1e-10 * scale)
    equality = at.g[0] + at.conjugate[0] - dot(at.a, at.x)
    assert np.all(np.abs(equality) <= 1e-9 * scale)


@every_family
def test_divergences_follow_their_definition_and_duality(name):
    at = values(name)
    by_definition = at.g[0] - at.g[2] - dot(at.y, at.a - at.c)
    np.testing.assert_allclose(at.divergence[0], by_definition, rtol=1e-8, atol=1e-9)
    by_definition = at.conjugate[0] - at.conjugate[1] - dot(at.grad_conjugate[1], at.x - at.y)
    np.testing.assert_allclose(at.conjugate_divergence[0], by_definition, rtol=1e-7, atol=1e-8)
    # D_{g*}(grad g(a), grad g(c)) = D_g(c, a), which is what lets the params be natural parameters
    np.testing.assert_allclose(at.conjugate_divergence[0], at.divergence[1], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(at.regulariser, at.conjugate_divergence[0], rtol=1e-7, atol=1e-8)


@every_family
def test_divergence_is_zero_only_at_equality(name):
    at = values(name)
    assert np.all(np.abs(at.divergence[4]) <= 1e-12 * (1 + np.abs(at.g[0])))
    assert np.all(at.divergence[0] >= -1e-10)
    apart = np.max(np.abs(U - W), axis=1) > 1e-2
    assert 80 < apart.sum() < len(U)
    assert np.all(at.divergence[0][apart] > 1e-8)
    assert np.all(at.regulariser[apart] > 1e-8)


@every_family
def test_three_point_identity(name):
    at = values(name)
    ac, _, ab, bc, *_ = at.divergence
    np.testing.assert_allclose(ac - ab - bc, dot(at.z - at.y, at.a - at.b), rtol=1e-8, atol=1e-8)


@every_family
def test_solve_hessian_inverts_the_hessian(name):
    np.testing.assert_allclose(values(name).solved, V, rtol=1e-7, atol=1e-7)


@every_family
def test_the_mean_minimises_expected_divergence(name):
    at = values(name)
    for centre, aside in (at.divergence[5:], at.conjugate_divergence[1:]):
        at_mean, elsewhere = (each.reshape(-1, 5).mean(axis=1) for each in (centre, aside))
        assert np.all(at_mean <= elsewhere + 1e-9)
        assert np.mean(elsewhere - at_mean > 1e-6) > 0.9


@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith("auto")])
@pytest.mark.parametrize("lam", [pytest.param(1.0, marks=pytest.mark.full), 4.0])
def test_samples_have_the_mean_and_variance_of_the_scaled_family(name, lam):
    family = FAMILIES[name]
    s = jnp.asarray(family.to_natural(np.array([-1.0, -0.2, 0.4, 1.0])))
    count = 20_000

    @jax.jit
    def draw(keys):
        return jax.vmap(lambda key: family.sample(key, s, lam))(keys), family.grad_g(s), jax.jacfwd(family.grad_g)(s)

    draws, mean, hessian = map(np.asarray, draw(jax.random.split(jax.random.key(1), count)))
    covariance = hessian / lam
    error = np.sqrt(np.diag(covariance) / count)
    np.testing.assert_array_less(np.abs(np.mean(draws, 0) - mean), 5 * error)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.06 * float(np.max(covariance)))
    assert float(np.min(draws)) >= family.domain.mean[0]
    assert float(np.max(draws)) <= family.domain.mean[1]


@pytest.mark.parametrize("name", [pytest.param("bernoulli", marks=pytest.mark.full), "exponential"])
def test_the_numerical_conjugate_agrees_with_closed_forms(name):
    closed, numerical = values(name), values(f"auto-{name}")
    np.testing.assert_allclose(numerical.x, closed.x, rtol=1e-12)
    np.testing.assert_allclose(numerical.grad_conjugate, closed.grad_conjugate, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(numerical.conjugate, closed.conjugate, rtol=1e-8, atol=1e-9)


@pytest.mark.broad
def test_the_numerical_conjugate_differentiates_and_is_nan_outside_its_domain():
    family = FAMILIES["auto-coupled"]
    x = jax.grad(family.g)(jnp.array([0.3, -1.0, 0.5, 2.0]))
    s, backward, forward, hessian = jax.jit(
        lambda x: (
            family.grad_conjugate(x),
            jax.jacrev(family.grad_conjugate)(x),
            jax.jacfwd(family.grad_conjugate)(x),
            jax.hessian(family.g)(family.grad_conjugate(x)),
        )
    )(x)
    np.testing.assert_allclose(s, [0.3, -1.0, 0.5, 2.0], atol=1e-9)
    exact = np.linalg.inv(hessian)
    np.testing.assert_allclose(backward, exact, atol=1e-8)
    np.testing.assert_allclose(forward, exact, atol=1e-8)
    outside = jnp.array([0.5, 0.5, 0.5, 1.5])  # 1.5 is no Bernoulli mean
    assert np.all(np.isnan(FAMILIES["auto-bernoulli"].grad_conjugate(outside)))


@pytest.mark.parametrize("name", list(priors.PRIORS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_precisions_are_second_derivatives(name, dtype):
    """In closed form at the mean, and by finite differences in float64 away from it."""
    family = priors.get(name)
    v, m = (np.array(each) for each in ([-3.0, -0.3, 0.0, 0.5, 3.0], [0.2, -1.0, 0.0, 0.1, -0.4]))
    sigmoid = 1 / (1 + np.exp(-v))
    exact = {
        "gaussian": 0 * v + 1,
        "bernoulli": sigmoid * (1 - sigmoid),
        "poisson": np.exp(v),
        "exponential": 0 * v + 1,
    }
    slope, h = jax.grad(family.regulariser), 1e-5
    expected = (np.asarray(slope(v + h, m)) - np.asarray(slope(v - h, m))) / (2 * h)
    v, m = jnp.asarray(v, dtype), jnp.asarray(m, dtype)
    np.testing.assert_allclose(family.curvature(v), exact[name], rtol=1e-5)
    np.testing.assert_allclose(family.precision(v, m), expected, rtol=1e-4)


def test_sigma_of_one_is_spherical():
    a, b = np.array([0.1, -2.0, 1.0, 0.4]), np.array([1.0, 0.0, -1.0, 2.0])
    spherical = priors.gaussian()
    for sigma in (1.0, np.ones(D), np.eye(D), {"w": np.ones((2, 2))}):
        family = priors.gaussian(sigma)
        for name in ("divergence", "conjugate_divergence", "regulariser"):
            np.testing.assert_allclose(getattr(family, name)(a, b), getattr(spherical, name)(a, b), rtol=1e-14)
        for name in ("g", "conjugate", "grad_g", "grad_conjugate"):
            np.testing.assert_allclose(getattr(family, name)(a), getattr(spherical, name)(a), rtol=1e-14)


@every_family
def test_any_family_regularises_a_network(name):
    """Params of both signs and any size: the gradients of the penalty are finite, and vanish at the mean."""
    personal = {"weight": jnp.array([[-2.0, 0.5]]), "bias": jnp.array([3.0, -0.1])}
    mean = jax.tree.map(lambda leaf: leaf + 0.3, personal)
    gradients = jax.jit(jax.grad(FAMILIES[name].regulariser, (0, 1)))
    for gradient in gradients(personal, mean):
        assert all(np.all(np.isfinite(leaf)) and np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))
    for at_mean in gradients(mean, mean):
        assert all(np.allclose(leaf, 0, atol=1e-12) for leaf in jax.tree.leaves(at_mean))


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "exponential"])
def test_float32_divergence_of_near_points_keeps_its_digits(name):
    regulariser = jax.jit(FAMILIES[name].regulariser)
    u = np.linspace(-2, 2, 10_000)
    near = u + 1e-3
    exact, rounded = regulariser(u, near), regulariser(u.astype(np.float32), near.astype(np.float32))
    assert float(rounded) == pytest.approx(float(exact), rel=0.02)


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("exponential", [(-60.0, 40.0, 99.0)]),
        ("poisson", [(-90.0, 10.0, 22026.4658)]),
        ("bernoulli", [(-50.0, 50.0, 50.0), (60.0, -60.0, 60.0)]),
    ],
)
def test_float32_penalties_of_far_points_are_finite(name, cases):
    both = jax.jit(jax.value_and_grad(FAMILIES[name].regulariser, (0, 1)))
    for personal, mean, exact in cases:
        value, gradients = both(np.float32([personal]), np.float32([mean]))
        assert value.dtype == jnp.float32
        assert float(value) == pytest.approx(exact, rel=1e-5, abs=1e-5)
        assert np.all(np.isfinite(gradients))


def test_poisson_is_finite_for_any_params_and_exact_where_float32_can_hold_it():
    """Against the closed form in float64, with its slopes: e^m - e^v (1 + m - v)."""
    rng = np.random.default_rng(0)
    v, m = rng.uniform(-120, 120, (2, 20_000)).astype(np.float32)
    m[:5_000] = v[:5_000] + rng.normal(0, 0.5, 5_000).astype(np.float32)
    extreme = np.float32([-3e38, -1e30, -1e4, -89, 0, 89, 1e4, 1e30, 3e38])
    far = np.meshgrid(extreme, extreme)
    v, m = (np.concatenate([each, more.ravel()]) for each, more in zip((v, m), far, strict=True))
    family = FAMILIES["poisson"]
    each = jax.jit(jax.vmap(jax.value_and_grad(lambda v, m: family.regulariser(v[None], m[None]), (0, 1))))
    value, (by_v, by_m) = jax.device_get(each(v, m))
    largest = float(np.finfo(np.float32).max)
    a, b = m.astype(np.float64), v.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.exp(b) * (np.expm1(a - b) - (a - b))
        slopes = {"v": (by_v, -np.exp(b) * (a - b)), "m": (by_m, np.exp(b) * np.expm1(a - b))}
    for name, (found, expected) in {"value": (value, exact), **slopes}.items():
        assert np.isfinite(found).all(), name
        held = (np.abs(expected) < 0.999 * largest) & (np.abs(expected) > 1e-30) & (np.abs(a) < 88) & (np.abs(b) < 88)
        assert held.sum() > 8_000, name
        np.testing.assert_allclose(found[held], expected[held], rtol=1e-3, err_msg=name)
    assert (value >= 0).all()
    assert value[(exact > 2 * largest) & (np.abs(a - b) > 2)].min() > 0.1 * largest
    many = jax.value_and_grad(family.regulariser)(np.full(50, 200, np.float32), np.zeros(50, np.float32))
    assert all(np.isfinite(part).all() for part in many)  # though their sum is not
    assert (many[1] > 0).all()


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "exponential"])
def test_the_domain_says_where_g_and_its_conjugate_are_finite(name):
    """Inside the interval g is finite; just outside it is not. Likewise g* and the means."""
    family = FAMILIES[name]
    for function, (low, high) in ((family.g, family.domain.natural), (family.conjugate, family.domain.mean)):
        inside = np.clip(np.array([-5.0, -0.5, 0.5, 5.0]), max(low, -9) + 0.01, min(high, 9) - 0.01)
        assert np.isfinite(function(inside))
        for edge, outwards in ((low, -0.1), (high, 0.1)):
            if np.isfinite(edge):
                assert not np.isfinite(function(np.full(D, edge + outwards)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: priors.get("gausian"), "did you mean 'gaussian'"),
        (lambda: priors.get("poisson", sigma=2.0), "sigma belongs to the gaussian"),
        (lambda: priors.gaussian(-1.0), "must be > 0"),
        (lambda: priors.gaussian(np.array([[1.0, 2.0], [0.0, 1.0]])), "symmetric"),
        (lambda: priors.gaussian(np.array([[1.0, 2.0], [2.0, 1.0]])), "positive definite"),
        (lambda: priors.gaussian(np.ones((2, 3))), "square"),
        (lambda: priors.gaussian(["a"]), "finite real numbers"),
        (lambda: priors.gaussian([[1.0], [1.0, 2.0]]), "sigma must be a number"),
        (lambda: priors.gaussian(np.ones(2) * 1j), "finite real numbers"),
        (lambda: priors.gaussian(np.ones(3)).g(jnp.ones(4)), "3 params, but the model has 4"),
        (lambda: priors.bernoulli().sample(jax.random.key(0), jnp.zeros(2), 1.5), "integer lam"),
        (lambda: FAMILIES["auto-bernoulli"].sample(jax.random.key(0), jnp.zeros(2), 1.0), "pass sample="),
    ],
)
def test_bad_input_is_one_clear_line(make, words):
    with pytest.raises(SettingError, match=words):
        make()
