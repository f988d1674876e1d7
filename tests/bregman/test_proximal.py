"""The proximal map and the envelope against closed forms, an independent minimiser and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
import scipy.optimize

from pfedbred import priors
from pfedbred.algorithms.strength import FixedStrength
from pfedbred.bregman.proximal import (
    Problem,
    envelope,
    envelope_gradient,
    gradient_steps,
    implicit_steps,
    mirror_steps,
    optimizer,
    prox,
    solver,
)
from pfedbred.errors import SettingError

D = 3
RNG = np.random.default_rng(0)
FACTOR = RNG.normal(size=(D, D))
A = FACTOR @ FACTOR.T + np.eye(D)
B = RNG.normal(size=D)
MEAN = jnp.asarray(RNG.normal(size=D))
START = jnp.asarray(RNG.normal(size=D))
SIGMA = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 0.5]])
LAM = 3.0

FAMILIES = {
    "gaussian": priors.gaussian(),
    "gaussian-diagonal": priors.gaussian(np.diag(SIGMA)),
    "gaussian-full": priors.gaussian(SIGMA),
    "bernoulli": priors.bernoulli(),
    "poisson": priors.poisson(),
    "exponential": priors.exponential(),
    "from-g": priors.from_log_partition(lambda s: jax.nn.logsumexp(s) + 0.5 * jnp.sum(s**2)),
}
every_family = pytest.mark.parametrize("name", FAMILIES)

# The divergences again, written out by hand in params, for the independent minimiser.
PENALTIES = {
    "gaussian": lambda v, m: 0.5 * np.sum((m - v) ** 2),
    "gaussian-diagonal": lambda v, m: 0.5 * np.sum((m - v) ** 2 / np.diag(SIGMA)),
    "gaussian-full": lambda v, m: 0.5 * (m - v) @ np.linalg.solve(SIGMA, m - v),
    "bernoulli": lambda v, m: np.sum(np.log1p(np.exp(m)) - np.log1p(np.exp(v)) - (m - v) / (1 + np.exp(-v))),
    "poisson": lambda v, m: np.sum(np.exp(m) - np.exp(v) - np.exp(v) * (m - v)),
    "exponential": lambda v, m: np.sum(np.exp(v - m) - (v - m) - 1),
}


def quadratic(v):
    return 0.5 * v @ A @ v - B @ v


def problem(family, mean=MEAN, loss=quadratic):
    return Problem(loss, mean, family, LAM)


@pytest.mark.parametrize(
    ("sigma", "precision"),
    [
        (None, np.eye(D)),
        (2.0, np.eye(D) / 2),
        (np.diag(SIGMA), np.diag(1 / np.diag(SIGMA))),
        (SIGMA, np.linalg.inv(SIGMA)),
    ],
    ids=["spherical", "scaled", "diagonal", "full"],
)
def test_prox_of_a_quadratic_has_a_closed_form(sigma, precision):
    exact = np.linalg.solve(A + LAM * precision, B + LAM * precision @ MEAN)
    for solve in (gradient_steps(0.05, 4000), mirror_steps(0.02, 8000), optimizer(optax.adam(0.01), 6000)):
        found = prox(problem(priors.gaussian(sigma)), solve, START).personal
        np.testing.assert_allclose(found, exact, atol=1e-8)


@functools.cache
def solved(name):
    """``solve(mean)``: the proximal point and the envelope, compiled once per family."""
    solve = gradient_steps(0.03, 20_000, tol=1e-12)

    @jax.jit
    def at(mean):
        personal = prox(problem(FAMILIES[name], mean), solve, START).personal
        return personal, problem(FAMILIES[name], mean).value(personal)

    return at


@pytest.mark.parametrize("name", PENALTIES)
def test_prox_agrees_with_an_independent_minimiser(name):
    expected = scipy.optimize.minimize(
        lambda v: quadratic(v) + LAM * PENALTIES[name](v, np.asarray(MEAN)), np.asarray(START), tol=1e-12
    )
    personal, value = solved(name)(MEAN)
    np.testing.assert_allclose(personal, expected.x, atol=1e-5)
    assert float(value) == pytest.approx(expected.fun, abs=1e-9)


def test_envelope_is_the_objective_at_the_proximal_point():
    solve = gradient_steps(0.03, 20_000, tol=1e-12)
    found = jax.jit(lambda start: envelope(problem(FAMILIES["poisson"]), solve, start))(START)
    assert float(found) == pytest.approx(float(solved("poisson")(MEAN)[1]), rel=1e-12)


def test_k_gradient_steps_by_hand():
    v = np.asarray(START)
    for _ in range(5):
        v = v - 0.01 * (A @ v - B + LAM * (v - np.asarray(MEAN)))
    solution = prox(problem(priors.gaussian()), gradient_steps(0.01, 5), START)
    np.testing.assert_allclose(solution.personal, v, rtol=1e-13)
    assert solution.steps == 5


@every_family
def test_mirror_descent_finds_the_same_point(name):
    by_mirror = jax.jit(lambda s: prox(problem(FAMILIES[name]), mirror_steps(0.01, 20_000, tol=1e-11), s).personal)
    np.testing.assert_allclose(by_mirror(START), solved(name)(MEAN)[0], atol=1e-8)


def test_a_mirror_step_by_hand():
    """Poisson: Hess g(s)^{-1} = e^{-s}."""
    v, m = np.asarray(START), np.asarray(MEAN)
    expected = v - 0.1 * (np.exp(-v) * (A @ v - B) + LAM * (v - m))
    np.testing.assert_allclose(
        prox(problem(priors.poisson()), mirror_steps(0.1, 1), START).personal, expected, rtol=1e-12
    )


def test_a_mirror_step_of_the_exponential_family_by_hand():
    """In params u, s = -e^-u: Hess g(s) = e^2u and ds/du = e^-u, so the two maps cancel for the loss."""
    u, m = np.asarray(START), np.asarray(MEAN)
    expected = u - 0.1 * ((A @ u - B) + LAM * np.exp(u) * (np.exp(-m) - np.exp(-u)))
    found = prox(problem(priors.exponential()), mirror_steps(0.1, 1), START).personal
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_for_the_spherical_gaussian_mirror_steps_are_gradient_steps():
    mirrored = prox(problem(priors.gaussian()), mirror_steps(0.03, 7), START).personal
    np.testing.assert_allclose(
        mirrored, prox(problem(priors.gaussian()), gradient_steps(0.03, 7), START).personal, rtol=1e-13
    )


@pytest.mark.parametrize("transformation", [optax.lbfgs(), optax.polyak_sgd(0.05), optax.adamw(0.05)])
def test_any_optax_optimizer_lowers_the_objective(transformation):
    """Also those that ask for the value: a line search, a Polyak step."""
    with jax.default_matmul_precision("highest"):
        found = prox(problem(priors.gaussian()), optimizer(transformation, 30), START).personal
    assert problem(priors.gaussian()).value(found) < problem(priors.gaussian()).value(START) - 1


def test_optax_steps_by_hand():
    """Heavy-ball momentum, written out."""
    v, trace = np.asarray(START), np.zeros(D)
    for _ in range(6):
        trace = 0.9 * trace + (A @ v - B + LAM * (v - np.asarray(MEAN)))
        v = v - 0.02 * trace
    found = prox(problem(priors.gaussian()), optimizer(optax.sgd(0.02, momentum=0.9), 6), START).personal
    np.testing.assert_allclose(found, v, rtol=1e-12)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("gaussian", "poisson") else [pytest.mark.full]) for name in FAMILIES],
)
def test_tolerance_stops_early_and_is_met(name):
    """The tolerance is the solver's own: one family with a constant curvature and one without show it."""
    family = FAMILIES[name]
    solve = jax.jit(lambda start: prox(problem(family), gradient_steps(0.03, 10_000, tol=1e-3), start))
    solution = solve(START)
    residual = jax.grad(problem(family).value)(solution.personal)
    assert 1 < int(solution.steps) < 10_000
    assert float(jnp.linalg.norm(residual)) <= 1e-3
    strict = prox(problem(family), gradient_steps(0.03, 10_000, tol=1e-9), START)
    assert int(strict.steps) > int(solution.steps)
    assert int(solve(solution.personal).steps) == 0


@every_family
def test_exact_envelope_gradient_against_finite_differences(name):
    solve, step = solved(name), 1e-4
    numerical = [(solve(MEAN + step * e)[1] - solve(MEAN - step * e)[1]) / (2 * step) for e in np.eye(D)]
    found = envelope_gradient(problem(FAMILIES[name]), solve(MEAN)[0])
    np.testing.assert_allclose(found, numerical, rtol=1e-6, atol=1e-8)


@every_family
def test_exact_envelope_gradient_in_natural_coordinates(name):
    """lam (grad g(m) - grad g(v)), as derived in natural coordinates; through the map for the exponential."""
    family = FAMILIES[name]
    s, m = family.to_natural(START), family.to_natural(MEAN)
    through_map = jax.vjp(family.to_natural, MEAN)[1](LAM * (family.grad_g(m) - family.grad_g(s)))[0]
    np.testing.assert_allclose(envelope_gradient(problem(family), START), through_map, rtol=1e-10)


@every_family
def test_first_order_envelope_gradient_is_the_papers(name):
    family = FAMILIES[name]
    found = envelope_gradient(problem(family), START, exact=False)
    np.testing.assert_allclose(found, LAM * (MEAN - START), rtol=1e-13)
    if family.name == "gaussian":
        np.testing.assert_allclose(envelope_gradient(problem(family), START), found, rtol=1e-13)


def test_solvers_by_name():
    assert solver("gradient", 0.1, 3).steps == 3
    assert solver("adam", 0.1, 3, tol=0.5).tol == 0.5
    assert solver(optax.sgd(0.1), 0.1, 4).steps == 4
    with pytest.raises(SettingError, match="did you mean 'adam'"):
        solver("adan", 0.1, 3)


# Implicit steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.1, 3.0, 1e6])
def test_an_implicit_step_minimises_its_model_of_the_objective(lam):
    """argmin_u <grad f(v), u> + ||u - v||^2 / (2 alpha) + lam/2 ||u - m||^2, by setting its gradient to zero."""
    alpha = 0.2
    problem = Problem(quadratic, MEAN, priors.gaussian(), lam)
    found = prox(problem, implicit_steps(alpha, 1), START).personal
    slope = A @ START - B
    np.testing.assert_allclose(slope + (found - START) / alpha + lam * (found - MEAN), 0, atol=1e-8 * (1 + lam))


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "exponential"])
def test_implicit_steps_find_the_proximal_point(name):
    problem = Problem(quadratic, MEAN, FAMILIES[name], LAM)
    found = prox(problem, implicit_steps(0.15, 2_000), START).personal
    slope = jax.grad(problem.value)(found)
    np.testing.assert_allclose(slope, 0, atol=1e-8)


def test_implicit_steps_are_stable_where_gradient_steps_are_not():
    problem = Problem(quadratic, MEAN, priors.gaussian(), 1e5)
    exact = np.linalg.solve(A + 1e5 * np.eye(D), B + 1e5 * np.asarray(MEAN))
    assert not np.all(np.abs(prox(problem, gradient_steps(0.05, 50), START).personal) < 1e6)
    np.testing.assert_allclose(prox(problem, implicit_steps(0.05, 50), START).personal, exact, rtol=1e-8)


# Long tails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prior", "penalty", "weight"),
    [
        ("student-t(3)", lambda x: 1.5 * np.log(1 + x**2 / 3), lambda x: 1 / (1 + x**2 / 3)),
        (
            "huber(0.5)",
            lambda x: np.where(np.abs(x) <= 0.5, x**2 / 2, 0.5 * np.abs(x) - 0.125),
            lambda x: np.minimum(1, 0.5 / np.abs(x)),
        ),
    ],
)
def test_long_tailed_priors_are_reweighted_gaussians(prior, penalty, weight):
    """Their values by hand, their slopes as weight times distance, and 1/2 x^2 near the mean."""
    scale = 0.7
    made = priors.get(prior, scale**2)
    v = MEAN + jnp.asarray([0.01, -0.9, 4.0])
    x = np.asarray(v - MEAN) / scale
    np.testing.assert_allclose(made.regulariser(v, MEAN), penalty(x).sum(), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(made.regulariser)(v, MEAN), weight(x) * x / scale, rtol=1e-12)
    np.testing.assert_allclose(made.curvature(MEAN), 1 / scale**2, rtol=1e-12)
    np.testing.assert_allclose(made.precision(v, MEAN), weight(x) / scale**2, rtol=1e-12)
    np.testing.assert_allclose(made.precision(MEAN, MEAN), 1 / scale**2, rtol=1e-12)


def mean_of_precisions(x, lam, df, scale):
    """Student's t as a scale mixture: exp(-lam D) = E exp(-t x^2 / (df scale^2)), t ~ Gamma(lam df / 2); E[t | x]."""
    shape, away = lam * df / 2, x**2 / (df * scale**2)
    joint = [lambda t, k=k: t ** (shape - 1 + k) * np.exp(-t * (1 + away)) for k in (0, 1)]
    mass, first = (scipy.integrate.quad(each, 0, np.inf, epsabs=0, epsrel=1e-10)[0] for each in joint)
    return 2 * first / mass / (df * scale**2)


def precision_of_the_tightest_parabola(x, lam, c, scale):
    """Huber's penalty is the least of a x^2 / 2 + c^2 / 2 (1 / (a scale^2) - 1) over precisions a <= 1 / scale^2."""

    def above(log_a):
        return np.exp(log_a) * x**2 / 2 + c**2 / 2 * (np.exp(-log_a) / scale**2 - 1)

    largest = -2 * np.log(scale)
    found = scipy.optimize.minimize_scalar(above, bounds=(largest - 20, largest), options={"xatol": 1e-9})
    return lam * np.exp(found.x)


@pytest.mark.parametrize(
    ("prior", "precision", "value"),
    [("student-t(3)", mean_of_precisions, 3.0), ("huber(0.5)", precision_of_the_tightest_parabola, 0.5)],
)
def test_an_implicit_step_on_a_long_tailed_prior_is_one_on_the_reweighted_gaussian(prior, precision, value):
    """Gaussians from the definitions, by integration and by minimisation; the step on them as a linear system."""
    alpha, scale = 0.2, 0.1
    start = MEAN + jnp.asarray([0.003, -0.3, 2.0])
    weights = [precision(float(x), LAM, value, scale) for x in start - MEAN]
    slope = A @ np.asarray(start) - B
    right = np.asarray(start) / alpha + weights * np.asarray(MEAN) - slope
    expected = np.linalg.solve(np.eye(D) / alpha + np.diag(weights), right)
    problem = Problem(quadratic, MEAN, priors.get(prior, scale**2), LAM)
    np.testing.assert_allclose(prox(problem, implicit_steps(alpha, 1), start).personal, expected, rtol=1e-5)


@pytest.mark.parametrize("prior", ["student-t(1)", "student-t(30)", "huber"])
@pytest.mark.parametrize("sigma", [1.0, 1e-2, 1e-6])
def test_no_step_on_a_long_tailed_prior_increases_the_objective(prior, sigma):
    """However narrow the prior, if alpha is at most 1 / L."""
    problem = Problem(quadratic, MEAN, priors.get(prior, sigma), LAM)
    solve = implicit_steps(1 / float(np.linalg.eigvalsh(A)[-1]), 1)
    step = jax.jit(lambda v: prox(problem, solve, v).personal)
    points = [START]
    for _ in range(300):
        points.append(step(points[-1]))
    values = np.asarray([problem.value(each) for each in points])
    assert np.all(np.diff(values) <= 1e-12 * np.abs(values[1:]))
    assert values[-1] < values[0] - 1e-3


def test_gradient_steps_are_as_the_prior_needs_them():
    tailed, plain = (FixedStrength(priors.get(name, 0.01), 15.0) for name in ("student-t(3)", "gaussian"))
    problem = Problem(quadratic, MEAN, priors.get("student-t(3)", 0.01), 15.0)

    def step(solve):
        return prox(problem, solve, START).personal

    np.testing.assert_array_equal(step(tailed.solver("gradient", 0.1, 2, 0.0)), step(implicit_steps(0.1, 2)))
    np.testing.assert_array_equal(step(tailed.solver("sgd", 0.1, 2, 0.0)), step(gradient_steps(0.1, 2)))
    np.testing.assert_array_equal(step(plain.solver("gradient", 0.1, 2, 0.0)), step(gradient_steps(0.1, 2)))


def test_a_far_entry_is_held_less_by_a_long_tailed_prior():
    """One entry whose data want it far from the mean: the Gaussian pulls it back more."""

    def loss(v):
        return 0.5 * jnp.sum((v - MEAN - jnp.asarray([0.0, 0.0, 20.0])) ** 2)

    def distance(prior):
        return float(
            (prox(Problem(loss, MEAN, priors.get(prior), 2.0), implicit_steps(0.5, 500), MEAN).personal - MEAN)[2]
        )

    assert distance("gaussian") == pytest.approx(20 / 3)
    assert distance("huber") == pytest.approx(18)  # 20 - lam c
    assert 19 < distance("student-t(3)") < 20


def test_only_exponential_families_have_mirror_steps():
    with pytest.raises(SettingError, match="needs an exponential family, which student-t is not"):
        prox(Problem(quadratic, MEAN, priors.get("student-t"), LAM), mirror_steps(0.1, 2), START)


@pytest.mark.parametrize(
    ("prior", "sigma", "words"),
    [
        ("student-t(-1)", None, "df must be a number > 0"),
        ("student", None, "did you mean 'student-t'"),
        ("huber", np.ones(3), "the sigma of the huber prior must be a number > 0"),
        ("huber", -1.0, "the sigma of the huber prior must be a number > 0"),
        ("gaussian(3)", None, "gaussian takes no values"),
    ],
)
def test_bad_priors_are_one_clear_line(prior, sigma, words):
    with pytest.raises(SettingError) as refused:
        priors.get(prior, sigma)
    assert words in str(refused.value)


@pytest.mark.parametrize(("equations", "at_once"), [(20, 5), (300, 1)])
def test_steps_of_a_long_loss_are_a_loop(equations, at_once):
    """Unrolled, a large network would be compiled once for every step."""

    def loss(v):
        for _ in range(equations):
            v = jnp.sin(v)
        return jnp.sum(v)

    def solved(v):
        problem = Problem(loss, v, priors.get("gaussian"), 1.0)
        return prox(problem, gradient_steps(0.1, 5), v).personal

    start = jnp.linspace(0.1, 1.0, 3)
    (loop,) = (each for each in jax.make_jaxpr(solved)(start).eqns if each.primitive.name == "scan")
    assert (loop.params["length"], loop.params["unroll"]) == (5, at_once)
    expected = start
    for _ in range(5):
        expected = expected - 0.1 * (jax.grad(loss)(expected) + expected - start)
    np.testing.assert_allclose(solved(start), expected, rtol=1e-12)
