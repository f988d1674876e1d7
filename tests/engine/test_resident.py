"""The compiled round: executors agree, seeds repeat, nothing recompiles, evaluation counts right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from conftest import small_federation

import pfedbred
from pfedbred.algorithms.base import cross_entropy
from pfedbred.engine import evaluation, executors, selection


def task_for(federation, model="mclr", dtype=jnp.float64):
    return pfedbred.Task(pfedbred.models.MODELS[model](federation.shape, federation.classes, dtype=dtype))


def simulate(
    name="mg-meta",
    federation=None,
    *,
    seeds=(0,),
    rounds=3,
    dtype=jnp.float64,
    settings=None,
    count=2,
    **plan,
):
    federation = federation or small_federation()
    task = task_for(federation, dtype=dtype)
    plan = pfedbred.Plan(plan.pop("select", None) or selection.uniform(count), **{"batch_size": 4, **plan})
    simulation = pfedbred.Simulation(pfedbred.make(name, task, {"R": 3, **(settings or {})}), task, federation, plan)
    states = simulation.init(seeds)
    return simulation, simulation.advance(states, rounds) if rounds else states


def weights(states):
    """Everything a run holds, without its key."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves((states.round, states.server, states.clients))]


def assert_close(left, right, **tolerance):
    for a, b in zip(weights(left), weights(right), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def test_executors_agree():
    """Of every other algorithm tests/test_algorithms.py says the same."""
    _, reference = simulate("mg-meta", executor="loop", seeds=[0, 7])
    for options in ({"executor": "vmap"}, {"executor": "vmap", "chunk": 3}, {"executor": "in-turn"}):
        assert_close(simulate("mg-meta", seeds=[0, 7], **options)[1], reference, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("participation", ["all", "sample"])
def test_executors_agree_on_both_participations(participation):
    _, reference = simulate("mg", executor="loop", participation=participation)
    _, vmapped = simulate("mg", executor="vmap", participation=participation)
    assert_close(vmapped, reference, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("executor", ["vmap", "in-turn"])
def test_the_same_seed_gives_the_same_bits(executor):
    first, second = (simulate(executor=executor, dtype=jnp.float32, seeds=[3])[1] for _ in range(2))
    for a, b in zip(weights(first), weights(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_seeds_side_by_side_are_the_seeds_alone():
    _, together = simulate(seeds=[4, 9], executor="vmap")
    for place, seed in enumerate([4, 9]):
        _, alone = simulate(seeds=[seed], executor="vmap")
        for a, b in zip(weights(together), weights(alone), strict=True):
            np.testing.assert_allclose(a[place], b[0], rtol=1e-12)


def test_seeds_differ():
    _, states = simulate(seeds=[0, 1])
    assert all(not np.allclose(leaf[0], leaf[1]) for leaf in jax.tree.leaves(states.server))


def test_rounds_in_one_call_are_the_rounds_one_by_one():
    simulation, states = simulate(rounds=0)
    for _ in range(4):
        states = simulation.advance(states, 1)
    assert_close(states, simulate(rounds=4)[1], rtol=1e-12)
    assert int(states.round[0]) == 4


@pytest.mark.parametrize("participation", ["all", "sample"])
def test_nothing_compiles_after_the_first_round_and_evaluation(participation):
    simulation, states = simulate(rounds=0, participation=participation)
    simulation.evaluate(states)
    states = simulation.advance(states, 1)
    np.asarray(states.round)
    compiled = []
    listener = lambda event, duration, **kwargs: compiled.append(event) if "compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        for rounds in (1, 1, 5, 2):
            states = simulation.advance(states, rounds)
            simulation.evaluate(states)
        assert not compiled
        jax.jit(lambda x: x + 41.5)(jnp.ones(3))  # the counter does count
        assert compiled
    finally:
        jax.monitoring.clear_event_listeners()


def test_only_the_sample_trains_when_asked():
    select = selection.fixed([1, 3])
    simulation, before = simulate(rounds=0, select=select, participation="sample")
    old = [np.asarray(leaf) for leaf in jax.tree.leaves(before.clients[:3])]
    after = simulation.advance(before, 1)
    assert not np.any(after.clients.sick)  # the fourth part of a record, of which nobody's changes
    for a, b in zip(old, jax.tree.leaves(after.clients[:3]), strict=True):
        changed = np.any((a != b).reshape(4, -1), axis=1)
        np.testing.assert_array_equal(changed, [False, True, False, True])
    # Trained or not, who is not in the sample has no say in the average.
    _, everyone = simulate(rounds=1, select=select, participation="all")
    for a, b in zip(jax.tree.leaves(after.server), jax.tree.leaves(everyone.server), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert np.all(np.asarray(everyone.clients.drawn) > 0)


def test_the_average_is_weighted_by_data_or_uniform():
    """One step from a common start: the new global model is the weighted mean of what each client alone gives."""
    alone = [np.concatenate([np.ravel(leaf[0]) for leaf in jax.tree.leaves(simulate("fedavg", rounds=1, select=selection.fixed([i]))[1].server)]) for i in (0, 3)]  # fmt: skip # noqa: E501
    for kind, shares in (("data", np.array([7, 20]) / 27), ("uniform", np.array([0.5, 0.5]))):
        _, states = simulate("fedavg", rounds=1, select=selection.fixed([0, 3]), weights=kind)
        found = np.concatenate([np.ravel(leaf[0]) for leaf in jax.tree.leaves(states.server)])
        np.testing.assert_allclose(found, shares @ np.stack(alone), rtol=1e-10)


def chosen_often(select, sizes, count=20_000):
    keys = jax.random.split(jax.random.key(0), count)
    return np.asarray(jax.vmap(lambda key: select(key, jnp.asarray(sizes)))(keys))


def test_uniform_selection_takes_every_subset_equally_often():
    chosen = np.sort(chosen_often(selection.uniform(2), [5, 1, 1, 9]), axis=1)
    subsets, seen = np.unique(chosen, axis=0, return_counts=True)
    assert len(subsets) == 6
    assert scipy.stats.chisquare(seen).pvalue > 1e-4


def test_selection_by_data_is_proportional():
    sizes = np.array([10, 20, 30, 40])
    seen = np.bincount(chosen_often(selection.by_data(1), sizes)[:, 0], minlength=4)
    assert scipy.stats.chisquare(seen, sizes / sizes.sum() * seen.sum()).pvalue > 1e-4
    pairs = chosen_often(selection.by_data(2), sizes)
    assert np.all(pairs[:, 0] != pairs[:, 1])


@pytest.mark.parametrize("executor", ["vmap", "in-turn", "loop"])
def test_evaluation_against_numpy(executor):
    federation = small_federation(sizes=(40, 3, 17, 90), seed=2)
    simulation, states = simulate("mg", federation, executor=executor, rounds=2, seeds=[0, 1])
    found = simulation.evaluate(states)

    def scores(weights, x, y):
        logits = x @ np.asarray(weights["output"]["weight"]).T + np.asarray(weights["output"]["bias"])
        log_probability = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return logits.argmax(1) == y, -log_probability[np.arange(len(y)), y]

    for seed in (0, 1):
        for split, samples in (("train", federation.train), ("test", federation.test)):
            for model, score in (("global_", found.global_), ("personal", found.personal)):
                got = getattr(score, split)
                each = []
                for i in range(federation.clients):
                    used = (
                        simulation.global_model(states, seed)
                        if model == "global_"
                        else simulation.personal_model(states, i, seed)
                    )
                    each.append(scores(used, *samples.client(i)))
                accuracies = np.array([correct.mean() for correct, _ in each])
                np.testing.assert_allclose(got.client_accuracy[seed], accuracies)
                np.testing.assert_allclose(got.client_loss[seed], [loss.mean() for _, loss in each], rtol=1e-6)
                np.testing.assert_allclose(got.accuracy[seed], np.concatenate([correct for correct, _ in each]).mean())
                np.testing.assert_allclose(got.loss[seed], np.concatenate([loss for _, loss in each]).mean(), rtol=1e-6)
                np.testing.assert_allclose(got.worst_decile[seed], accuracies.min())
                np.testing.assert_allclose(got.client_std[seed], accuracies.std())


def evaluation_needs(samples, seeds=(0,)):
    """Bytes of memory, and the scores."""
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(samples, 50)), rng.integers(0, 3, samples)) for _ in range(4)]
    federation = pfedbred.from_clients(pairs, pairs)
    simulation, states = simulate("fedavg", federation, rounds=0, executor="vmap", seeds=seeds)
    compiled = []
    with pytest.MonkeyPatch.context() as patch:
        compile_ = jax.stages.Lowered.compile
        patch.setattr(jax.stages.Lowered, "compile", lambda *given: compiled.append(compile_(*given)) or compiled[-1])
        scores = simulation.evaluate(states)
    return max(each.memory_analysis().temp_size_in_bytes for each in compiled), scores


def test_evaluation_takes_no_more_memory_for_more_runs():
    """A few of them after others, and the same counts as each alone."""
    alone, _ = evaluation_needs(2_000)
    few, _ = evaluation_needs(2_000, range(8))
    assert few > 2 * alone
    many, scores = evaluation_needs(2_000, range(44))
    assert many < 2 * few  # those left over are a program of their own
    _, last = evaluation_needs(2_000, [43])
    np.testing.assert_array_equal(scores.global_.test.client_accuracy[43:], last.global_.test.client_accuracy)


def test_evaluation_takes_no_more_memory_for_more_samples(monkeypatch):
    """Some blocks of samples after others, and the same counts as all at once."""
    few, _ = evaluation_needs(2_000)
    everything, expected = evaluation_needs(20_000)
    assert everything > 5 * few
    monkeypatch.setattr(evaluation, "_LARGEST", 1_000_000)  # nine blocks of 256 samples with 50 numbers each
    bounded, scores = evaluation_needs(20_000)
    assert bounded < everything / 5
    np.testing.assert_array_equal(scores.global_.test.client_accuracy, expected.global_.test.client_accuracy)
    np.testing.assert_allclose(scores.personal.train.client_loss, expected.personal.train.client_loss, rtol=1e-12)


def test_scores_from_counts():
    """25 clients of 20 samples with different accuracies, and one without samples: a tenth of 25 is 3 clients."""
    correct = np.array([[*range(24, -1, -1), 0]]) * 0.8
    sizes = np.array([20] * 25 + [0])
    scores = evaluation._scores(evaluation.Tally(correct, 2 * correct), sizes)
    accuracies = 0.8 * np.arange(25) / 20
    assert scores.worst_decile[0] == pytest.approx(accuracies[:3].mean())
    assert scores.client_std[0] == pytest.approx(accuracies.std())
    assert scores.accuracy[0] == pytest.approx(accuracies.mean())
    assert scores.loss[0] == pytest.approx(2 * accuracies.mean())
    assert np.isnan(scores.client_accuracy[0, 25])


def test_a_model_that_is_not_a_number_gets_nothing_right():
    simulation, states = simulate("fedavg", rounds=0)
    broken = states._replace(server=jax.tree.map(lambda leaf: leaf + jnp.nan, states.server))
    scores = simulation.evaluate(broken)
    assert scores.global_.test.accuracy[0] == 0
    assert np.isnan(scores.global_.test.loss[0])


@pytest.mark.parametrize("select", [selection.uniform(6), selection.fixed([9]), selection.fixed([1, 1])])
def test_selections_that_do_not_fit_the_federation_are_refused(select):
    with pytest.raises(pfedbred.SettingError, match="selection must be"):
        simulate("fedavg", select=select, rounds=0)


def test_there_is_no_client_99():
    simulation, states = simulate("fedavg", rounds=0)
    with pytest.raises(pfedbred.SettingError, match="clients are 0 to 3"):
        simulation.personal_model(states, 99)


def test_another_number_of_seeds_compiles_another_program():
    simulation, _ = simulate("fedavg", rounds=1)
    assert simulation.advance(simulation.init([0, 1, 2]), 1).round.tolist() == [1, 1, 1]


def test_a_client_without_test_samples_is_left_out_of_the_scores():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(6, 4)), rng.integers(0, 2, 6)) for _ in range(3)]
    nothing = (np.zeros((0, 4)), np.zeros(0, int))
    simulation, states = simulate("pfedme", pfedbred.from_clients(pairs, [pairs[0], nothing, pairs[2]]))
    test = simulation.evaluate(states).personal.test
    assert np.isnan(test.client_accuracy[0, 1])
    assert test.accuracy[0] == pytest.approx(np.mean(test.client_accuracy[0, [0, 2]]))
    assert np.isfinite(test.client_std[0])


@pytest.mark.parametrize(
    ("prior", "solver"),
    [
        ("gaussian", "mirror"),
        pytest.param("poisson", "mirror", marks=pytest.mark.slow),
        pytest.param("exponential", "gradient", marks=pytest.mark.slow),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("gaussian", "gradient"), ("bernoulli", "mirror"), ("poisson", "gradient"))
        ),
        pytest.param("bernoulli", "gradient", marks=pytest.mark.slow),
        pytest.param("exponential", "mirror", marks=pytest.mark.slow),
    ],
)
def test_every_prior_trains_a_network(prior, solver, digits):
    """A DNN whose weights are unconstrained: personal models beat the start and the global model."""
    task = task_for(digits, "dnn", jnp.float32)
    algorithm = pfedbred.make("mg-meta", task, {"prior": prior, "prox_solver": solver, "R": 10})
    simulation = pfedbred.Simulation(algorithm, task, digits, pfedbred.Plan(selection.uniform(10)))
    states = simulation.init([0])
    before = simulation.evaluate(states)
    states = simulation.advance(states, 25)
    after = simulation.evaluate(states)
    assert before.personal.test.accuracy[0] < 0.3
    assert after.personal.test.accuracy[0] > 0.75
    assert after.personal.test.accuracy[0] > after.global_.test.accuracy[0]
    assert all(np.all(np.isfinite(leaf)) for leaf in weights(states))


def test_auto_suits_the_platform_and_unknown_executors_are_named():
    assert executors.choose("auto") == ("in-turn" if jax.default_backend() == "cpu" else "vmap")
    assert executors.choose("auto", chunk=3) == "vmap"
    with pytest.raises(pfedbred.SettingError, match="did you mean 'vmap'"):
        executors.choose("vmpa")


def test_models_of_seeds_and_clients_that_are_not_there_are_refused():
    run = pfedbred.run(federation=small_federation(), rounds=1)
    for call in (lambda: run.global_model(seed=1), lambda: run.personal_model(0, seed=-1)):
        with pytest.raises(pfedbred.SettingError, match="there is no seed at position"):
            call()
    with pytest.raises(pfedbred.SettingError, match="there is no client 4"):
        run.personal_model(np.int64(4))


def test_the_loss_is_the_cross_entropy():
    """Also where a logit says that a label is impossible, and in the gradient."""
    logits = jnp.array([[1.0, -2.0, 0.5], [3.0, -jnp.inf, 0.0], [1000.0, 0.0, -1000.0]])
    labels = jnp.array([2, 0, 1])
    with np.errstate(over="ignore"):
        z = np.exp(np.array([[1.0, -2.0, 0.5], [3.0, -np.inf, 0.0]]))
    expected = [-np.log(z[0, 2] / z[0].sum()), -np.log(z[1, 0] / z[1].sum()), 1000.0]
    np.testing.assert_allclose(cross_entropy(logits, labels), expected, rtol=1e-12)
    slope = jax.grad(lambda logits: jnp.sum(cross_entropy(logits, labels)))(logits)
    softmax = np.stack([*(z / z.sum(1, keepdims=True)), [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(slope, softmax - np.eye(3)[labels], atol=1e-12)
