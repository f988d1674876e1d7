"""Every family against the identities that define it, in float64, over random inputs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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


def compiled(family):
    """The same family, each function compiled once: hypothesis calls them thousands of times."""
    functions = ("g", "grad_g", "conjugate", "grad_conjugate", "divergence", "conjugate_divergence")
    functions += ("to_natural", "from_natural", "solve_hessian")
    return dataclasses.replace(family, **{name: jax.jit(getattr(family, name)) for name in functions})


FAMILIES = {name: compiled(family) for name, family in FAMILIES.items()}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)

vectors = st.lists(st.floats(-3, 3), min_size=D, max_size=D).map(np.array)


def finite_difference(f, at, step=1e-6):
    at = np.asarray(at)
    return np.array([(f(at + step * e) - f(at - step * e)) / (2 * step) for e in np.eye(len(at))])


@every_family
@given(u=vectors)
def test_grad_g_is_the_gradient_of_g(family, u):
    s = family.to_natural(u)
    np.testing.assert_allclose(family.grad_g(s), finite_difference(family.g, s, 1e-6), rtol=1e-5, atol=1e-7)


@every_family
@given(u=vectors)
def test_grad_conjugate_is_the_gradient_of_the_conjugate(family, u):
    x = family.grad_g(family.to_natural(u))
    step = 1e-6 * float(np.min(np.abs(x)) if family.domain.mean[0] == 0 else 1)  # stay inside the domain
    expected = finite_difference(family.conjugate, x, step)
    np.testing.assert_allclose(family.grad_conjugate(x), expected, rtol=1e-4, atol=1e-5)


@every_family
@given(u=vectors)
def test_gradients_are_inverse(family, u):
    s = family.to_natural(u)
    np.testing.assert_allclose(family.grad_conjugate(family.grad_g(s)), s, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(family.from_natural(s), u, rtol=1e-9, atol=1e-9)


@every_family
@given(u=vectors, w=vectors)
def test_fenchel_young(family, u, w):
    s, other = family.to_natural(u), family.to_natural(w)
    x, y = family.grad_g(s), family.grad_g(other)
    scale = 1 + abs(float(family.g(s))) + abs(float(family.conjugate(y)))
    assert family.g(s) + family.conjugate(y) - jnp.vdot(s, y) >= -1e-10 * scale
    equality = family.g(s) + family.conjugate(x) - jnp.vdot(s, x)
    assert abs(float(equality)) <= 1e-9 * scale


@every_family
@given(u=vectors, w=vectors)
def test_divergences_follow_their_definition_and_duality(family, u, w):
    a, b = family.to_natural(u), family.to_natural(w)
    x, y = family.grad_g(a), family.grad_g(b)
    by_definition = family.g(a) - family.g(b) - jnp.vdot(family.grad_g(b), a - b)
    np.testing.assert_allclose(family.divergence(a, b), by_definition, rtol=1e-8, atol=1e-9)
    conjugate_by_definition = family.conjugate(x) - family.conjugate(y) - jnp.vdot(family.grad_conjugate(y), x - y)
    np.testing.assert_allclose(family.conjugate_divergence(x, y), conjugate_by_definition, rtol=1e-7, atol=1e-8)
    # D_{g*}(grad g(a), grad g(b)) = D_g(b, a), which is what lets the weights be natural parameters
    np.testing.assert_allclose(family.conjugate_divergence(x, y), family.divergence(b, a), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(family.regulariser(u, w), family.conjugate_divergence(x, y), rtol=1e-7, atol=1e-8)


@every_family
@given(u=vectors, w=vectors)
def test_divergence_is_zero_only_at_equality(family, u, w):
    a, b = family.to_natural(u), family.to_natural(w)
    assert abs(float(family.divergence(a, a))) <= 1e-12 * (1 + abs(float(family.g(a))))
    assert family.divergence(a, b) >= -1e-10
    if np.max(np.abs(u - w)) > 1e-2:
        assert family.divergence(a, b) > 1e-8
        assert family.regulariser(u, w) > 1e-8


@every_family
@given(u=vectors, v=vectors, w=vectors)
def test_three_point_identity(family, u, v, w):
    a, b, c = (family.to_natural(each) for each in (u, v, w))
    left = family.divergence(a, c) - family.divergence(a, b) - family.divergence(b, c)
    right = jnp.vdot(family.grad_g(b) - family.grad_g(c), a - b)
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-8)


@every_family
@given(points=st.lists(vectors, min_size=2, max_size=6), shift=vectors)
def test_the_mean_minimises_expected_divergence(family, points, shift):
    natural = jnp.stack([family.to_natural(u) for u in points])
    means = jnp.stack([family.grad_g(s) for s in natural])
    for divergence, samples in ((family.divergence, natural), (family.conjugate_divergence, means)):
        centre = jnp.mean(samples, axis=0)
        # Towards another point of the (convex) domain, so that both ends stay inside it.
        target = family.to_natural(shift) if samples is natural else family.grad_g(family.to_natural(shift))
        if np.max(np.abs(target - centre)) < 1e-3:
            continue
        expected = [np.mean([divergence(s, y) for s in samples]) for y in (centre, 0.9 * centre + 0.1 * target)]
        assert expected[0] <= expected[1] + 1e-9


@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith("auto")])
@pytest.mark.parametrize("lam", [1.0, 4.0])
def test_samples_have_the_mean_and_variance_of_the_scaled_family(name, lam):
    family = FAMILIES[name]
    s = family.to_natural(np.array([-1.0, -0.2, 0.4, 1.0]))
    count = 40_000
    draws = jax.vmap(lambda key: family.sample(key, jnp.asarray(s), lam))(jax.random.split(jax.random.key(1), count))
    covariance = jax.jacfwd(family.grad_g)(jnp.asarray(s)) / lam
    error = np.sqrt(np.diag(covariance) / count)
    np.testing.assert_array_less(np.abs(np.mean(draws, 0) - family.grad_g(s)), 5 * error)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.06 * float(np.max(covariance)))
    assert float(np.min(draws)) >= family.domain.mean[0]
    assert float(np.max(draws)) <= family.domain.mean[1]


@given(u=vectors)
def test_the_numerical_conjugate_agrees_with_closed_forms(u):
    for closed, numerical in (("bernoulli", "auto-bernoulli"), ("exponential", "auto-exponential")):
        a, b = FAMILIES[closed], FAMILIES[numerical]
        x = a.grad_g(a.to_natural(u))
        np.testing.assert_allclose(b.grad_conjugate(x), a.grad_conjugate(x), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(b.conjugate(x), a.conjugate(x), rtol=1e-8, atol=1e-9)


def test_the_numerical_conjugate_differentiates_vectorises_and_says_when_there_is_no_answer():
    family = FAMILIES["auto-coupled"]
    x = family.grad_g(jnp.array([0.3, -1.0, 0.5, 2.0]))
    exact = jnp.linalg.inv(jax.hessian(family.g)(family.grad_conjugate(x)))
    np.testing.assert_allclose(jax.jacrev(family.grad_conjugate)(x), exact, atol=1e-8)
    np.testing.assert_allclose(jax.jacfwd(family.grad_conjugate)(x), exact, atol=1e-8)
    np.testing.assert_allclose(jax.jit(jax.vmap(family.grad_conjugate))(jnp.stack([x, x]))[1], family.grad_conjugate(x))
    outside = jnp.array([0.5, 0.5, 0.5, 1.5])  # 1.5 is no Bernoulli mean
    assert np.all(np.isnan(FAMILIES["auto-bernoulli"].grad_conjugate(outside)))


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
def test_any_family_regularises_a_network(family):
    """Weights of both signs and any size: the penalty and its gradients are finite, and vanish at the mean."""
    personal = {"weight": jnp.array([[-2.0, 0.5]]), "bias": jnp.array([3.0, -0.1])}
    mean = jax.tree.map(lambda leaf: leaf + 0.3, personal)
    for argument in (0, 1):
        gradient = jax.grad(family.regulariser, argument)(personal, mean)
        assert all(np.all(np.isfinite(leaf)) and np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))
        at_mean = jax.grad(family.regulariser, argument)(mean, mean)
        assert all(np.allclose(leaf, 0, atol=1e-12) for leaf in jax.tree.leaves(at_mean))


def test_float32_divergence_of_near_points_keeps_its_digits():
    for family in (priors.gaussian(), priors.bernoulli(), priors.poisson(), priors.exponential()):
        u = jnp.linspace(-2, 2, 10_000)
        near = u + 1e-3
        exact = float(family.regulariser(u, near))
        rounded = float(family.regulariser(u.astype(jnp.float32), near.astype(jnp.float32)))
        assert rounded == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("family", "personal", "mean", "exact"),
    [
        (priors.exponential(), -60.0, 40.0, 99.0),
        (priors.poisson(), -90.0, 10.0, 22026.4658),
        (priors.bernoulli(), -50.0, 50.0, 50.0),
        (priors.bernoulli(), 60.0, -60.0, 60.0),
    ],
)
def test_float32_penalties_of_far_points_are_finite(family, personal, mean, exact):
    arguments = jnp.asarray([personal], jnp.float32), jnp.asarray([mean], jnp.float32)
    assert float(family.regulariser(*arguments)) == pytest.approx(exact, rel=1e-5, abs=1e-5)
    assert all(np.all(np.isfinite(jax.grad(family.regulariser, i)(*arguments))) for i in (0, 1))


@every_family
@given(u=vectors, v=vectors)
def test_solve_hessian_inverts_the_hessian(family, u, v):
    s = family.to_natural(u)
    product = jax.jvp(family.grad_g, (s,), (jnp.asarray(v),))[1]
    np.testing.assert_allclose(family.solve_hessian(s, product), v, rtol=1e-7, atol=1e-7)


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
        (lambda: priors.gaussian(np.ones(3)).g(jnp.ones(4)), "3 parameters, but the model has 4"),
        (lambda: priors.bernoulli().sample(jax.random.key(0), jnp.zeros(2), 1.5), "integer lam"),
        (lambda: FAMILIES["auto-bernoulli"].sample(jax.random.key(0), jnp.zeros(2), 1.0), "pass sample="),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(SettingError, match=words):
        make()
