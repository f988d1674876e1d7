"""Methods that are special cases of each other, as equalities; and Algorithm 1 by hand where it is short."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import array_sizes, small_federation
from support import small_rounds

import pfedbred
from pfedbred import algorithms, means, priors, settings
from pfedbred.algorithms.pfedbred import PersonalState

FEATURES, CLASSES = 6, 3
TASK = pfedbred.Task(pfedbred.models.mclr((FEATURES,), CLASSES, dtype=jnp.float64))
D = CLASSES * (FEATURES + 1)
full = pytest.mark.full


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


ROUNDS, STEPS = 3, {"R": 3, "K": 2}
BATCHES = small_rounds.minibatches(small_federation(), rounds=ROUNDS, draws=2 * STEPS["R"], batch_size=4)
_PROGRAMS = {}


def run(name, batches=BATCHES, **given):
    """G and the personal models after a few rounds, as rows.

    Numbers are inputs of the program, which is compiled once for all their values; it is most of the time.
    """
    build = algorithms.builder(name)
    known = settings.declared(build)
    chosen = {**{key: value for key, value in STEPS.items() if key in known}, **given}
    numbers = {"eta", "eta_a", "beta", "lam", "alpha", "alpha_m"} & known.keys()
    numbers = {key: float(chosen.pop(key, known[key].default)) for key in sorted(numbers)}
    program = (name, batches.rows.shape, *sorted(f"{key}={value!r}" for key, value in chosen.items()))
    if program not in _PROGRAMS:
        settings.resolve(build, {**chosen, **numbers})

        @jax.jit
        def compiled(batches, numbers):
            global_, personal = small_rounds.play(build(TASK, **chosen, **numbers), batches)
            ravel = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]  # noqa: E731
            return jnp.concatenate([ravel(global_)[None], jax.vmap(ravel)(personal)])

        _PROGRAMS[program] = compiled
    return np.asarray(_PROGRAMS[program](batches, numbers))


GAUSSIAN_FROM_G = priors.from_log_partition(lambda s: sum(jnp.sum(leaf**2) / 2 for leaf in jax.tree.leaves(s)))
REDUCTIONS = {
    "identity + spherical = pFedMe": (("pfedbred", {"mean": "identity"}), ("pfedme", {})),
    "mfo with eta = 0 = pFedMe": (("mfo", {"eta": 0.0}), ("pfedme", {})),
    "mg with eta = 0, from the mean = fo": (("mg", {"eta": 0.0, "prox_start": "mean"}), ("fo", {})),
    "mg with eta = 0 = fo from the local model": (("mg", {"eta": 0.0}), ("fo", {"prox_start": "local"})),
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
        ("pfedbred", {"mean": means.from_phi(lambda w, context: context.loss(w, 0), eta=0.3), "prox_start": "mean"}),
        ("fo", {"eta_a": 0.3}),
    ),
    "Phi = 0 is pFedMe": (
        ("pfedbred", {"mean": means.from_phi(lambda w, context: 0.0 * context.loss(w, 0), eta=1.0)}),
        ("pfedme", {}),
    ),
    "the Gaussian from its g alone": (("mg", {"prior": GAUSSIAN_FROM_G}), ("mg", {})),
}
REPEATED = {  # by the tests of families and solvers, or by other reductions
    "Sigma = 1 = spherical",
    "full Sigma = I = spherical",
    "spherical: mirror = gradient",
    "optax sgd = gradient",
    "diagonal Sigma = I = spherical",
    "Phi = 0 is pFedMe",
    "the Gaussian from its g alone",
}


def cases(table, repeated):
    return [pytest.param(*sides, id=name, marks=[full] if name in repeated else []) for name, sides in table.items()]


@pytest.mark.parametrize(("left", "right"), cases(REDUCTIONS, REPEATED))
def test_reduction(left, right):
    (left_name, left_settings), (right_name, right_settings) = left, right
    found, expected = run(left_name, **left_settings), run(right_name, **right_settings)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


DIFFERENCES = {
    "mg is not fo": (("mg", {}), ("fo", {})),
    "fo starts its proximal steps at the mean": (("fo", {}), ("fo", {"prox_start": "local"})),
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
SHORT = {"fo starts its proximal steps at the mean", "mg is not fo", "mg is not mfo", "beta"}


@pytest.mark.parametrize(("left", "right"), cases(DIFFERENCES, DIFFERENCES.keys() - SHORT))
def test_parts_that_should_matter_do(left, right):
    """A setting that is never read would make the reductions above hold for the wrong reason."""
    (left_name, left_settings), (right_name, right_settings) = left, right
    difference = np.abs(run(left_name, **left_settings) - run(right_name, **right_settings))
    assert np.max(difference) > 1e-6


def softmax_gradient(params, x, y):
    """Of mean cross-entropy, for W (classes x features) and b, by hand."""
    weight, bias = params
    logits = x @ weight.T + bias
    probability = np.exp(logits - logits.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    probability[np.arange(len(y)), y] -= 1
    return probability.T @ x / len(y), probability.mean(0)


def one_client():
    """Eight samples."""
    return small_federation(sizes=(8,))


WHOLE = small_rounds.minibatches(one_client(), rounds=1, draws=6)  # every minibatch is all of them, so no order matters


def initial_params():
    output = TASK.model.init(jax.random.key(0))["output"]
    return np.asarray(output["weight"]), np.asarray(output["bias"])


def joined(weight, bias):
    return np.concatenate([bias, weight.ravel()])


def test_one_client_one_step_by_hand():
    """N = 1, R = 1, K = 2, mg: the mean is w - eta_a grad f(w), since memory and theta are both w at the start."""
    x, y = one_client().train.client(0)
    w = initial_params()
    lam, alpha, alpha_m, eta_a = 4.0, 0.1, 0.05, 0.2

    mu = [a - eta_a * g for a, g in zip(w, softmax_gradient(w, x, y), strict=True)]
    theta = list(w)
    for _ in range(2):
        gradient = softmax_gradient(theta, x, y)
        theta = [t - alpha * (g + lam * (t - m)) for t, g, m in zip(theta, gradient, mu, strict=True)]
    expected_w = [a - alpha_m * lam * (m - t) for a, m, t in zip(w, mu, theta, strict=True)]

    found = run("mg", WHOLE, R=1, K=2, lam=lam, alpha=alpha, alpha_m=alpha_m, eta_a=eta_a, eta=0.7)
    np.testing.assert_allclose(found, [joined(*expected_w), joined(*theta)], rtol=1e-10)


def test_fedavg_with_one_client_is_gradient_descent():
    x, y = one_client().train.client(0)
    w = initial_params()
    for _ in range(6):
        w = [a - 0.1 * g for a, g in zip(w, softmax_gradient(w, x, y), strict=True)]
    two_rounds = WHOLE._replace(rows=jnp.concatenate([WHOLE.rows, WHOLE.rows]))
    found = run("fedavg", two_rounds, R=3, alpha=0.1)
    np.testing.assert_allclose(found[0], joined(*w), rtol=1e-10)
    np.testing.assert_array_equal(found[0], found[1])  # fedavg's P is its G


GRADIENTS = [("exponential", "fo")]


@pytest.mark.parametrize(
    ("prior", "mean"),
    [
        pytest.param(prior, mean, marks=[] if (prior, mean) in GRADIENTS else [full])
        for prior in priors.PRIORS
        for mean in ("fo", "mg-meta-literal")
    ],
)
def test_the_exact_gradient_of_the_main_problem_against_finite_differences(prior, mean):
    """With R = 1, alpha_m = 1 and a converged proximal map, the round moves w by exactly -grad F(w)."""
    x, y = one_client().train.client(0)
    batch = pfedbred.Batch(jnp.asarray(x), jnp.asarray(y))
    start = TASK.model.init(jax.random.key(0))
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
        mean, WHOLE, R=1, K=5000, tol=1e-13, alpha=0.2, alpha_m=1.0,
        lam=lam, eta_a=eta_a, prior=prior, jacobian="exact", prox_start="mean",
        **({"eta": 0.1} if mean != "fo" else {}),
    )  # fmt: skip
    np.testing.assert_allclose(vector - found[0], numerical, rtol=1e-5, atol=1e-8)


def test_the_exact_jacobian_is_never_a_matrix():
    """Nothing in the program of a local round is as large as d x d."""
    task = pfedbred.Task(pfedbred.models.mclr((200,), 5))
    algorithm = pfedbred.make("mg-meta", task, {"jacobian": "exact", "R": 2})
    params = task.model.init(jax.random.key(0))
    d = sum(leaf.size for leaf in jax.tree.leaves(params))
    data = pfedbred.data.minibatches.ClientData(
        pfedbred.data.minibatches.Inputs(jnp.zeros((30, 200))),
        jnp.zeros(30, int),
        jnp.zeros((4, 10), int),
        jnp.int32(0),
        jnp.int32(30),
    )
    program = jax.make_jaxpr(algorithm.client.train)(params, algorithm.client.init(params), data)
    assert max(array_sizes(program.jaxpr)) <= 30 * 200 < d * d


def local_data():
    """A client's samples, all in one minibatch."""
    x, y = one_client().train.client(0)
    return pfedbred.data.minibatches.ClientData(
        pfedbred.data.minibatches.Inputs(jnp.asarray(x)),
        jnp.asarray(y),
        jnp.arange(8)[None],
        jnp.int32(0),
        jnp.int32(8),
    )


@functools.cache
def start_case(**settings):
    """One client's round of one step from a global model, a theta and a memory that are all different."""
    algorithm = pfedbred.make(
        "mg", TASK, {"R": 1, "K": 1, "lam": 2.0, "alpha": 0.1, "eta": 0.3, "eta_a": 0.2, **settings}
    )
    data = local_data()
    models = [TASK.model.init(jax.random.key(seed)) for seed in range(3)]

    @jax.jit
    def trained(w, theta, memory):
        upload, state = algorithm.client.train(w, PersonalState(theta, memory), data)[:2]
        return upload, state.theta

    def train(*models):
        return [flat(each) for each in trained(*models)]

    return train, models, data.batch(0)


@pytest.mark.parametrize(("start", "place"), [("theta", 1), pytest.param("memory", 2, marks=full)])
def test_w_init_starts_the_local_model_there(start, place):
    train, models, _ = start_case(w_init=start)
    plain, _, _ = start_case()
    expected = plain(models[place], models[1], models[2])
    np.testing.assert_allclose(train(*models), expected, rtol=1e-12)


@pytest.mark.parametrize(("start", "place"), [pytest.param("global", 0, marks=full), ("memory", 2)])
def test_theta_init_starts_the_personal_model_there(start, place):
    train, models, _ = start_case(theta_init=start)
    plain, _, _ = start_case()
    np.testing.assert_allclose(train(*models), plain(models[0], models[place], models[2]), rtol=1e-12)


def test_a_shifted_theta_starts_as_far_from_the_global_model_as_it_ended_from_the_last_one():
    """theta - seen is kept, whatever the global model is now."""
    algorithm = pfedbred.make("mg", TASK, {"R": 1, "lam": 2.0, "theta_init": "shifted"})
    plain = pfedbred.make("mg", TASK, {"R": 1, "lam": 2.0})
    _, (w, theta, memory), _ = start_case()
    seen = TASK.model.init(jax.random.key(3))
    data = local_data()
    upload, state = algorithm.client.train(w, PersonalState(theta, memory, seen=seen), data)[:2]
    moved = jax.tree.map(lambda v, new, old: v + new - old, theta, w, seen)
    expected = plain.client.train(w, PersonalState(moved, memory), data)
    np.testing.assert_allclose(flat(upload), flat(expected[0]), rtol=1e-12)
    np.testing.assert_allclose(flat(state.theta), flat(expected[1].theta), rtol=1e-12)
    np.testing.assert_array_equal(flat(state.seen), flat(w))  # for the next round


def test_a_theta_that_is_not_shifted_keeps_no_model_for_it():
    w = TASK.model.init(jax.random.key(0))
    assert pfedbred.make("mg", TASK, {}).client.init(w).seen is None
    assert pfedbred.make("mg", TASK, {"theta_init": "shifted"}).client.init(w).seen is w


@pytest.mark.parametrize("start", ["local", "theta", "mean"])
def test_the_proximal_steps_start_where_they_are_told(start):
    train, (w, theta, memory), batch = start_case() if start == "local" else start_case(prox_start=start)
    vector, unravel = jax.flatten_util.ravel_pytree(w)
    gradient = jax.jit(jax.grad(lambda v: TASK.loss(unravel(v), batch)))
    mean = flat(w) - 0.2 * gradient(vector) - 0.3 * (flat(memory) - flat(theta))
    begin = {"local": flat(w), "theta": flat(theta), "mean": mean}[start]
    expected = begin - 0.1 * (gradient(jnp.asarray(begin)) + 2.0 * (begin - mean))
    np.testing.assert_allclose(train(w, theta, memory)[1], expected, rtol=1e-11)
