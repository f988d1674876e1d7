"""Methods that are special cases of each other, as equalities; and Algorithm 1 by hand where it is short."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import array_sizes, small_federation

import pfedbred
from pfedbred import means, priors
from pfedbred.algorithms.pfedbred import PersonalState
from pfedbred.engine import selection

FEATURES, CLASSES = 6, 3
TASK = pfedbred.Task(pfedbred.models.mclr((FEATURES,), CLASSES, dtype=jnp.float64))
D = CLASSES * (FEATURES + 1)


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


_RUNS = {}


def run_once(name, **settings):
    """The same as ``run``, remembered: several reductions share a side, and most of the time is compiling."""
    key = (name, *sorted(f"{setting}={value!r}" for setting, value in settings.items()))
    if key not in _RUNS:
        _RUNS[key] = run(name, **settings)
    return _RUNS[key]


def run(name, federation=None, rounds=3, batch_size=4, **settings):
    """Global and personal models after a few rounds, as flat vectors."""
    federation = federation or small_federation()
    plan = pfedbred.Plan(selection.uniform(min(2, federation.clients)), batch_size=batch_size)
    settings = {"R": 3, "K": 2, **settings} if name != "fedavg" else {"R": 3, **settings}
    simulation = pfedbred.Simulation(pfedbred.make(name, TASK, settings), TASK, federation, plan)
    states = simulation.advance(simulation.init([0]), rounds)
    personal = [flat(simulation.personal_model(states, i)) for i in range(federation.clients)]
    return np.stack([flat(simulation.global_model(states)), *personal])


REDUCTIONS = {
    "identity + spherical = pFedMe": (("pfedbred", {"mean": "identity"}), ("pfedme", {})),
    "mfo with eta = 0 = pFedMe": (("mfo", {"eta": 0.0}), ("pfedme", {})),
    "mg with eta = 0 = fo": (("mg", {"eta": 0.0}), ("fo", {})),
    "mg with eta_a = 0 = mfo": (("mg", {"eta_a": 0.0}), ("mfo", {})),
    "fo with eta_a = 0 = pFedMe": (("fo", {"eta_a": 0.0}), ("pfedme", {})),
    "Sigma = 1 = spherical": (("mg", {"sigma": 1.0}), ("mg", {})),
    "diagonal Sigma = I = spherical": (("mg", {"sigma": np.ones(D)}), ("mg", {})),
    "full Sigma = I = spherical": (("mg-meta", {"sigma": np.eye(D)}), ("mg-meta", {})),
    "spherical: exact envelope = first order": (("mg", {"envelope": "first-order"}), ("mg", {})),
    "spherical: mirror = gradient": (("mg", {"prox_solver": "mirror"}), ("mg", {})),
    "optax sgd = gradient": (("mg", {"prox_solver": "sgd"}), ("mg", {})),
    "mfo: its exact Jacobian is I": (("mfo", {"jacobian": "exact"}), ("mfo", {})),
    "Phi = f is fo": (
        ("pfedbred", {"mean": means.from_phi(lambda w, context: context.loss(w, 0), eta=0.3)}),
        ("fo", {"eta_a": 0.3}),
    ),
    "Phi = 0 is pFedMe": (
        ("pfedbred", {"mean": means.from_phi(lambda w, context: 0.0 * context.loss(w, 0), eta=1.0)}),
        ("pfedme", {}),
    ),
    "the Gaussian from its g alone": (
        (
            "mg",
            {"prior": priors.from_log_partition(lambda s: sum(jnp.sum(leaf**2) / 2 for leaf in jax.tree.leaves(s)))},
        ),
        ("mg", {}),
    ),
}


@pytest.mark.parametrize(("left", "right"), REDUCTIONS.values(), ids=REDUCTIONS)
def test_reduction(left, right):
    (left_name, left_settings), (right_name, right_settings) = left, right
    expected = run_once(right_name, **right_settings)
    np.testing.assert_allclose(run_once(left_name, **left_settings), expected, rtol=1e-10, atol=1e-12)


DIFFERENCES = {
    "mg is not fo": (("mg", {}), ("fo", {})),
    "mg is not mfo": (("mg", {}), ("mfo", {})),
    "mg-meta is not mg": (("mg-meta", {}), ("mg", {})),
    "the literal equation is not what was run": (("mg-meta", {}), ("mg-meta-literal", {})),
    "an exact Jacobian differs": (("mg", {"jacobian": "exact", "eta_a": 0.3}), ("mg", {"eta_a": 0.3})),
    "Poisson is not Gaussian": (("mg", {"prior": "poisson"}), ("mg", {})),
    "Bernoulli: the first-order envelope differs": (
        ("mg", {"prior": "bernoulli"}),
        ("mg", {"prior": "bernoulli", "envelope": "first-order"}),
    ),
    "beta": (("mg", {"beta": 2.0}), ("mg", {})),
    "where w starts": (("mg", {"w_init": "memory"}), ("mg", {})),
    "where theta starts": (("mg", {"theta_init": "global"}), ("mg", {})),
    "where the proximal steps start": (("mg", {"prox_start": "theta"}), ("mg", {"prox_start": "mean"})),
}


@pytest.mark.parametrize(("left", "right"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_parts_that_should_matter_do(left, right):
    """A setting that is read nowhere would make the reductions above hold for the wrong reason."""
    (left_name, left_settings), (right_name, right_settings) = left, right
    difference = np.abs(run_once(left_name, **left_settings) - run_once(right_name, **right_settings))
    assert np.max(difference) > 1e-6


def softmax_gradient(weights, x, y):
    """Of mean cross-entropy, for W (classes x features) and b, by hand."""
    weight, bias = weights
    logits = x @ weight.T + bias
    probability = np.exp(logits - logits.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    probability[np.arange(len(y)), y] -= 1
    return probability.T @ x / len(y), probability.mean(0)


def one_client_full_batch():
    """One client whose every minibatch is its whole training set, so that no order matters."""
    return small_federation(sizes=(8,))


def start_weights():
    plan = pfedbred.Plan(selection.uniform(1))
    simulation = pfedbred.Simulation(pfedbred.make("fedavg", TASK), TASK, one_client_full_batch(), plan)
    output = simulation.global_model(simulation.init([0]))["output"]
    return np.asarray(output["weight"]), np.asarray(output["bias"])


def test_one_client_one_step_by_hand():
    """N = 1, R = 1, K = 2, mg: the mean is w - eta_a grad f(w), for memory and theta are both w at the start."""
    federation = one_client_full_batch()
    x, y = federation.train.client(0)
    w = start_weights()
    lam, alpha, alpha_m, eta_a = 4.0, 0.1, 0.05, 0.2

    mu = [a - eta_a * g for a, g in zip(w, softmax_gradient(w, x, y), strict=True)]
    theta = list(w)
    for _ in range(2):
        gradient = softmax_gradient(theta, x, y)
        theta = [t - alpha * (g + lam * (t - m)) for t, g, m in zip(theta, gradient, mu, strict=True)]
    expected_w = [a - alpha_m * lam * (m - t) for a, m, t in zip(w, mu, theta, strict=True)]

    found = run("mg", federation, 1, 8, R=1, K=2, lam=lam, alpha=alpha, alpha_m=alpha_m, eta_a=eta_a, eta=0.7)
    np.testing.assert_allclose(found[0], np.concatenate([expected_w[1], expected_w[0].ravel()]), rtol=1e-10)
    np.testing.assert_allclose(found[1], np.concatenate([theta[1], theta[0].ravel()]), rtol=1e-10)


def test_fedavg_with_one_client_is_gradient_descent():
    federation = one_client_full_batch()
    x, y = federation.train.client(0)
    w = start_weights()
    for _ in range(6):
        w = [a - 0.1 * g for a, g in zip(w, softmax_gradient(w, x, y), strict=True)]
    found = run("fedavg", federation, rounds=2, batch_size=8, R=3, alpha=0.1)
    np.testing.assert_allclose(found[0], np.concatenate([w[1], w[0].ravel()]), rtol=1e-10)
    np.testing.assert_array_equal(found[0], found[1])  # fedavg's P is its G


@pytest.mark.parametrize("prior", ["gaussian", "bernoulli", "poisson", "exponential"])
@pytest.mark.parametrize("mean", ["fo", "mg-meta-literal"])
def test_the_exact_gradient_of_the_main_problem_against_finite_differences(prior, mean):
    """With R = 1, alpha_m = 1 and a converged proximal map, the round moves w by exactly -grad F(w)."""
    federation = one_client_full_batch()
    x, y = federation.train.client(0)
    batch = pfedbred.data.minibatches.Batch(jnp.asarray(x), jnp.asarray(y))
    weight, bias = start_weights()
    start = {"output": {"weight": jnp.asarray(weight), "bias": jnp.asarray(bias)}}
    vector, unravel = jax.flatten_util.ravel_pytree(start)
    lam, eta_a, family = 2.0, 0.5, priors.get(prior)
    strategy = means.get(mean, eta_a, 0.1)
    context = means.Context(lambda w, j: TASK.loss(w, batch), start, start)

    @jax.jit
    def objective(w):
        mu = strategy.choose(unravel(w), context).mean
        problem = pfedbred.prox.Problem(lambda v: TASK.loss(v, batch), mu, family, lam)
        return pfedbred.prox.envelope(problem, pfedbred.prox.gradient_steps(0.2, 5000, tol=1e-13), mu)

    step = 1e-4
    numerical = np.array(
        [(objective(vector + step * e) - objective(vector - step * e)) / (2 * step) for e in np.eye(D)]
    )
    found = run(
        mean, federation, 1, 8, R=1, K=5000, tol=1e-13, alpha=0.2, alpha_m=1.0,
        lam=lam, eta_a=eta_a, prior=prior, jacobian="exact", prox_start="mean",
        **({"eta": 0.1} if mean != "fo" else {}),
    )  # fmt: skip
    np.testing.assert_allclose(vector - found[0], numerical, rtol=1e-5, atol=1e-8)


def test_the_exact_jacobian_is_never_a_matrix():
    """Nothing in the program of a local round is as large as d x d."""
    task = pfedbred.Task(pfedbred.models.mclr((200,), 5))
    algorithm = pfedbred.make("mg-meta", task, {"jacobian": "exact", "R": 2})
    weights = task.model.init(jax.random.key(0))
    d = sum(leaf.size for leaf in jax.tree.leaves(weights))
    data = pfedbred.data.minibatches.ClientData(
        pfedbred.data.minibatches.Inputs(jnp.zeros((30, 200))),
        jnp.zeros(30, int),
        jnp.zeros((4, 10), int),
        jnp.int32(0),
        jnp.int32(30),
    )
    program = jax.make_jaxpr(algorithm.client.train)(weights, algorithm.client.init(weights), data)
    assert max(array_sizes(program.jaxpr)) <= 30 * 200 < d * d


def start_case(**settings):
    """One client's round of one step from a global model, a theta and a memory that are all different."""
    algorithm = pfedbred.make("mg", TASK, {"R": 1, "K": 1, "lam": 2.0, "alpha": 0.1, "eta": 0.3, **settings})
    x, y = one_client_full_batch().train.client(0)
    data = pfedbred.data.minibatches.ClientData(
        pfedbred.data.minibatches.Inputs(jnp.asarray(x)),
        jnp.asarray(y),
        jnp.arange(8)[None],
        jnp.int32(0),
        jnp.int32(8),
    )
    batch = data.batch(0)
    models = [TASK.model.init(jax.random.key(seed)) for seed in range(3)]

    def train(w, theta, memory):
        upload, state = algorithm.client.train(w, PersonalState(theta, memory), data)
        return flat(upload), flat(state.theta)

    return train, models, batch


@pytest.mark.parametrize(("start", "place"), [("theta", 1), ("memory", 2)])
def test_w_init_starts_the_local_model_there(start, place):
    train, models, _ = start_case(w_init=start)
    plain, _, _ = start_case()
    expected = plain(models[place], models[1], models[2])
    np.testing.assert_allclose(train(*models), expected, rtol=1e-12)


@pytest.mark.parametrize(("start", "place"), [("global", 0), ("memory", 2)])
def test_theta_init_starts_the_personal_model_there(start, place):
    train, models, _ = start_case(theta_init=start)
    plain, _, _ = start_case()
    np.testing.assert_allclose(train(*models), plain(models[0], models[place], models[2]), rtol=1e-12)


@pytest.mark.parametrize("start", ["local", "theta", "mean"])
def test_the_proximal_steps_start_where_they_are_told(start):
    train, (w, theta, memory), batch = start_case(prox_start=start, eta_a=0.2)
    grad = jax.grad(TASK.loss)
    mean = flat(w) - 0.2 * flat(grad(w, batch)) - 0.3 * (flat(memory) - flat(theta))
    unravel = jax.flatten_util.ravel_pytree(w)[1]
    begin = {"local": flat(w), "theta": flat(theta), "mean": mean}[start]
    expected = begin - 0.1 * (flat(grad(unravel(jnp.asarray(begin)), batch)) + 2.0 * (begin - mean))
    np.testing.assert_allclose(train(w, theta, memory)[1], expected, rtol=1e-11)
