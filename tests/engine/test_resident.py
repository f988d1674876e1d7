"""The resident backend: executors agree, seeds repeat, nothing is traced twice, and the average is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.backends import assert_close, content, federation, same, task_for, trained

import pfedbred
from pfedbred.engine import ResidentBackend, executors, selection
from pfedbred.experiment.building import build
from pfedbred.tasks import cross_entropy

# Executors, seeds, rounds -----------------------------------------------------------------------------------


@pytest.mark.broad
@pytest.mark.parametrize(
    ("seeds", "options"),
    [
        ((0, 7), {"executor": "vmap"}),
        pytest.param((0, 7), {"executor": "in-turn"}, marks=pytest.mark.full),
        pytest.param((0, 7), {"executor": "vmap", "chunk": 3}, marks=pytest.mark.full),
    ],
)
def test_executors_agree(seeds, options):
    """tests/algorithms says the same of every other algorithm."""
    expected = content(trained(executor="loop", seeds=(0, 7))[1])
    assert_close(content(trained(seeds=seeds, **options)[1]), [leaf[: len(seeds)] for leaf in expected])


@pytest.mark.full
@pytest.mark.parametrize("executor", ["vmap", "in-turn"])
def test_executors_agree_if_only_the_sample_trains(executor):
    expected = content(trained("mg", executor="loop", participation="sample")[1])
    assert_close(content(trained("mg", executor=executor, participation="sample")[1]), expected)


@pytest.mark.parametrize("executor", ["in-turn", pytest.param("vmap", marks=pytest.mark.full)])
def test_the_same_seed_gives_the_same_bits(executor):
    backend, first = trained(executor=executor, dtype=jnp.float32, seeds=(3,))
    assert same(content(first), content(backend.advance(backend.init([3]), 3)))


@pytest.mark.broad
def test_seeds_side_by_side_are_the_seeds_alone():
    """In one backend, which compiles another program for another number of seeds."""
    backend, both = trained(seeds=(0, 7), executor="vmap")
    for place, seed in enumerate((0, 7)):
        alone = backend.advance(backend.init([seed]), 3)
        assert_close([leaf[place] for leaf in content(both)], [leaf[0] for leaf in content(alone)])
    assert all(not np.allclose(leaf[0], leaf[1]) for leaf in jax.tree.leaves(both.server))


def test_rounds_in_one_call_are_the_rounds_one_by_one():
    backend, state = trained(rounds=0)
    for _ in range(4):
        state = backend.advance(state, 1)
    assert_close(content(state), content(backend.advance(backend.init([0]), 4)))
    assert int(state.round[0]) == 4


# Compilation ------------------------------------------------------------------------------------------------


@pytest.mark.broad
@pytest.mark.parametrize("participation", ["sample", pytest.param("all", marks=pytest.mark.full)])
def test_nothing_compiles_after_the_first_round_and_evaluation(participation):
    backend, state = trained(rounds=0, participation=participation)
    backend.evaluate(state)
    state = backend.advance(state, 1)
    np.asarray(state.round)
    compiled = []
    listener = lambda event, duration, **kwargs: compiled.append(event) if "compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        for rounds in (1, 1, 5, 2):
            state = backend.advance(state, rounds)
            backend.evaluate(state)
        assert not compiled
        jax.jit(lambda x: x + 41.5)(jnp.ones(3))  # the counter does count
        assert compiled
    finally:
        jax.monitoring.clear_event_listeners()


def test_the_round_and_the_evaluation_are_traced_once():
    """When the experiment is built, so that it can fail there; the first round and evaluation use those traces."""
    traced = []
    mclr = pfedbred.models.mclr((6,), 3)

    def counting(name, function):
        return lambda *arguments: (traced.append(name), function(*arguments))[1]

    def counted(task, *, R=2):
        fedavg = pfedbred.make("fedavg", task, {"R": R})
        client = fedavg.client._replace(train=counting("train", fedavg.client.train))
        server = fedavg.server._replace(aggregate=counting("aggregate", fedavg.server.aggregate))
        return fedavg._replace(client=client, server=server, predict=counting("predict", fedavg.predict))

    built = build(pfedbred.Experiment(algorithm=counted, model=lambda shape, classes: mclr), federation())
    assert {name: traced.count(name) for name in traced} == {"train": 1, "aggregate": 1, "predict": 4}  # G, P; 2 splits
    state = built.backend.advance(built.backend.init([0]), 2)
    built.backend.evaluate(state)
    assert len(traced) == 6


# Who trains, and the average --------------------------------------------------------------------------------


@pytest.mark.broad
def test_only_the_sample_trains_when_asked():
    backend, before = trained(rounds=0, select=(1, 3), participation="sample")
    old = [np.asarray(leaf) for leaf in jax.tree.leaves(before.clients[:3])]
    after = backend.advance(before, 1)
    assert not np.any(after.clients.rejected)  # the fourth part of a record, which does not change for anyone
    for a, b in zip(old, jax.tree.leaves(after.clients[:3]), strict=True):
        changed = np.any((a != b).reshape(4, -1), axis=1)
        np.testing.assert_array_equal(changed, [False, True, False, True])
    # Trained or not, a client outside the sample does not count in the average.
    _, everyone = trained(rounds=1, select=(1, 3), participation="all")
    assert_close(after.server, everyone.server)
    assert np.all(np.asarray(everyone.clients.drawn) > 0)


@pytest.mark.full
def test_the_average_is_weighted_by_data_or_uniform():
    """One step from a common start: the new global model is the weighted mean of what each client alone gives."""

    def model(**options):
        _, state = trained("fedavg", rounds=1, **options)
        return np.concatenate([np.ravel(leaf[0]) for leaf in jax.tree.leaves(state.server)])

    alone = np.stack([model(select=(i,)) for i in (0, 3)])
    for weights, shares in (("data", np.array([7, 20]) / 27), ("uniform", np.array([0.5, 0.5]))):
        np.testing.assert_allclose(model(select=(0, 3), weights=weights), shares @ alone, rtol=1e-10)


# Bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("select", [selection.uniform(6), selection.fixed([9]), selection.fixed([1, 1])])
def test_selections_that_do_not_fit_the_federation_are_rejected(select):
    with pytest.raises(pfedbred.SettingError, match="selection must be"):
        trained("fedavg", select=select, rounds=0)


def test_models_of_seeds_and_clients_that_do_not_exist_are_rejected():
    backend, state = trained("fedavg", rounds=0)
    for call in (lambda: backend.global_model(state, seed=1), lambda: backend.personal_model(state, 0, seed=-1)):
        with pytest.raises(pfedbred.SettingError, match="there is no seed at position"):
            call()
    for client in (99, np.int64(4), -1):
        with pytest.raises(pfedbred.SettingError, match=f"there is no client {client}; clients are 0 to 3"):
            backend.personal_model(state, client)


def test_auto_suits_the_platform_and_unknown_executors_are_rejected():
    assert executors.choose("auto") == ("in-turn" if jax.default_backend() == "cpu" else "vmap")
    assert executors.choose("auto", chunk=3) == "vmap"
    with pytest.raises(pfedbred.SettingError, match="did you mean 'vmap'"):
        executors.choose("vmpa")


# Training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prior", "solver"),
    [
        pytest.param("gaussian", "mirror", marks=pytest.mark.full),
        *(
            pytest.param(prior, solver, marks=pytest.mark.slow)
            for prior in ("gaussian", "bernoulli", "poisson", "exponential")
            for solver in ("mirror", "gradient")
            if (prior, solver) != ("gaussian", "mirror")
        ),
    ],
)
def test_every_prior_trains_a_network(prior, solver, digits):
    """A DNN whose parameters are unconstrained: personal models beat the start and the global model."""
    task = task_for(digits, "dnn", jnp.float32)
    algorithm = pfedbred.make("mg-meta", task, {"prior": prior, "prox_solver": solver, "R": 10})
    backend = ResidentBackend(algorithm, task, digits, pfedbred.Plan(selection.uniform(10)))
    state = backend.init([0])
    before = backend.evaluate(state)
    state = backend.advance(state, 25)
    after = backend.evaluate(state)
    assert before.personal.test.accuracy[0] < 0.3
    assert after.personal.test.accuracy[0] > 0.75
    assert after.personal.test.accuracy[0] > after.global_.test.accuracy[0]
    assert all(np.all(np.isfinite(leaf)) for leaf in content(state))


def test_the_loss_is_the_cross_entropy():
    """Also where a logit says that a label is impossible, and in the gradient."""
    logits = jnp.array([[1.0, -2.0, 0.5], [3.0, -jnp.inf, 0.0], [1000.0, 0.0, -1000.0]])
    labels = jnp.array([2, 0, 1])
    with np.errstate(over="ignore"):
        z = np.exp(np.array([[1.0, -2.0, 0.5], [3.0, -np.inf, 0.0]]))
    expected = [-np.log(z[0, 2] / z[0].sum()), -np.log(z[1, 0] / z[1].sum()), 1000.0]
    np.testing.assert_allclose(cross_entropy(logits, labels), expected, rtol=1e-12)
    slope = jax.jit(jax.grad(lambda logits: jnp.sum(cross_entropy(logits, labels))))(logits)
    softmax = np.stack([*(z / z.sum(1, keepdims=True)), [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(slope, softmax - np.eye(3)[labels], atol=1e-12)
