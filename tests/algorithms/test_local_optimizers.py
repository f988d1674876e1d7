"""Local optimizers: against hand-written ones, kept from round to round or not, and plain SGD as a reduction."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_reference as common
from support import numpy_reference as reference

import pfedbred
from pfedbred.algorithms import local_optimizers
from pfedbred.engine import selection
from pfedbred.experiment.building import build

federation, task = common.federation, common.task
R, ROUNDS, EVERYONE = 3, 2, range(len(common.SIZES))


def train(federation: pfedbred.Federation, task: pfedbred.Task, name: str, optimizer: Any, **settings: Any) -> list:
    """All models after two rounds, as arrays."""
    plan = pfedbred.Plan(
        selection.fixed(common.FIXED), batch_size=common.BATCH, optimizer=local_optimizers.get(optimizer)
    )
    backend = pfedbred.ResidentBackend(pfedbred.make(name, task, settings), task, federation, plan)
    states = backend.advance(backend.init([common.SEED]), ROUNDS)
    models = [backend.global_model(states), *(backend.personal_model(states, i) for i in EVERYONE)]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(models)]


@pytest.mark.parametrize("keep", [False, True])
def test_momentum_weight_decay_and_clipping_are_those_written_by_hand(federation, task, keep):
    """Heavy ball as in PyTorch: g <- clip(g) + decay w; m <- 0.9 m + g; w <- w - alpha m."""
    model = pfedbred.Model(task.model.init, task.model.apply)
    experiment = pfedbred.Experiment(
        algorithm="local",
        model=model,
        settings={"alpha": 0.1, "R": R},
        local_optimizer={"name": "sgd", "momentum": 0.9, "clip": 1.0, "weight_decay": 0.03},
        keep_optimizer=keep,
        batch_size=common.BATCH,
        seed=common.SEED,
        aggregated=1,
    )
    backend = build(experiment, federation).backend
    states = backend.init([common.SEED])
    start = common.as_vector(backend.personal_model(states, 0))
    states = backend.advance(states, ROUNDS)
    batches, clipped = common.sequences(federation, common.SEED), 0
    for i in EVERYONE:
        w, m = start, np.zeros_like(start)
        for number in range(ROUNDS * R):
            if number % R == 0 and not keep:
                m = np.zeros_like(start)
            g = reference.gradient(w, batches[i][number])
            norm = np.linalg.norm(g)
            clipped += norm > 1.0
            m = 0.9 * m + g * min(1, 1.0 / norm) + 0.03 * w
            w = w - 0.1 * m
        np.testing.assert_allclose(common.as_vector(backend.personal_model(states, i)), w, **common.TOLERANCE)
    assert 0 < clipped < len(EVERYONE) * ROUNDS * R  # some gradients are clipped, and some are not


def test_adam_takes_the_steps_of_the_method(federation, task):
    """FedProx's gradient, proximal term included, goes through Adam."""
    mu, alpha = 0.9, 0.05
    ours = train(federation, task, "fedprox", "adam(b1=0.8)", mu=mu, alpha=alpha, R=R)
    backend = pfedbred.ResidentBackend(
        pfedbred.make("fedprox", task), task, federation, pfedbred.Plan(selection.fixed(common.FIXED))
    )
    w = common.as_vector(backend.global_model(backend.init([common.SEED])))
    batches = common.sequences(federation, common.SEED)
    for t in range(ROUNDS):
        uploads = []
        for i in common.FIXED:
            v, m, s = w, np.zeros_like(w), np.zeros_like(w)
            for r in range(R):
                g = reference.gradient(v, batches[i][t * R + r]) + mu * (v - w)
                m, s = 0.8 * m + 0.2 * g, 0.999 * s + 0.001 * g**2
                v = v - alpha * (m / (1 - 0.8 ** (r + 1))) / (np.sqrt(s / (1 - 0.999 ** (r + 1))) + 1e-8)
            uploads.append(v)
        w = np.average(uploads, axis=0, weights=[common.SIZES[i] for i in common.FIXED])
    bias, weight = ours[:2]
    np.testing.assert_allclose(reference.pack(weight, bias), w, **common.TOLERANCE)


METHODS = sorted(set(pfedbred.ALGORITHMS) - {"fedadam", "fedadagrad", "fedyogi", "fedavgm", "fedbn"})


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in ("mg-meta", "scaffold") else pytest.mark.full) for each in METHODS]
)
@pytest.mark.few_cases
@pytest.mark.broad
def test_plain_sgd_as_an_optax_object_is_the_method_itself(federation, task, name):
    """Every method's own steps, corrections and control variates go through the optimizer."""
    plain = train(federation, task, name, "sgd")
    through_optax = train(federation, task, name, optax.sgd)
    for ours, other in zip(plain, through_optax, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-9, atol=1e-12)
    momentum = train(federation, task, name, "sgd(momentum=0.9)")
    assert any(not np.allclose(ours, other) for ours, other in zip(plain, momentum, strict=True))


def test_optax_s_optimizers_are_all_there():
    """Those that are made from others, too; not parts of optimizers, nor those that need more than a gradient."""
    found = local_optimizers.names()
    assert {"sgd", "adam", "nadam", "nadamw", "adadelta", "adafactor", "lion", "muon", "adopt"} < set(found)
    assert not [name for name in found if name.startswith(("_", "scale_by"))]
    assert not {"lbfgs", "sophia", "momo", "schedule_free_sgd", "dpsgd", "inject_hyperparams", "noisy_sgd"} & set(found)


@pytest.mark.filterwarnings("ignore:.optimistic_adam. is deprecated")
@pytest.mark.filterwarnings("ignore::UserWarning:optax")
@pytest.mark.parametrize("name", local_optimizers.names())
def test_every_optimizer_takes_steps_of_a_traced_size(name):
    params = {"w": jnp.ones((3, 4), jnp.float32), "b": jnp.ones(4, jnp.float32)}
    build = local_optimizers.get({"name": name, "clip": 1.0})

    def steps(alpha):
        optimizer = build(alpha)

        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(params, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), length=2)[0][0]

    assert jax.eval_shape(jax.vmap(steps), jnp.ones(5, jnp.float32))["w"].shape == (5, 3, 4)


@pytest.mark.full
def test_an_optimizer_whose_step_size_is_optional_takes_the_method_s(federation, task):
    one, other = (train(federation, task, "fedavg", "adadelta", alpha=alpha, R=R) for alpha in (0.1, 0.2))
    assert any(not np.allclose(a, b, atol=0) for a, b in zip(one, other, strict=True))
    given = train(federation, task, "fedavg", "nadam(b1=0.8)", alpha=0.1, R=R)
    expected = train(federation, task, "fedavg", lambda alpha: optax.nadam(alpha, b1=0.8), alpha=0.1, R=R)
    for ours, theirs in zip(given, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("scale_by_rprop", "unknown local_optimizer 'scale_by_rprop'"),
        ("sdg", "unknown local_optimizer 'sdg'.*did you mean 'sgd'"),
        ("sgd(momentun=0.9)", "sgd has no setting 'momentun'.*did you mean 'momentum'"),
        ("sgd(momentum=high)", "sgd's momentum must be a number, true or false, not 'high'"),
        ("adam(learning_rate=0.1)", "adam has no setting 'learning_rate'"),
        ("adamw(mask=1)", "adamw has no setting 'mask'"),
        ("sgd(clip=-1)", "sgd's clip must be a number >= 0"),
        ({"momentum": 0.9}, "unknown local_optimizer None"),
    ],
)
def test_wrong_optimizers_are_one_line(given, message):
    with pytest.raises(pfedbred.SettingError, match=message):
        pfedbred.Experiment.from_mapping({"local_optimizer": given})


def test_a_mapping_is_recorded_as_text():
    given = {"name": "adam", "b1": 0.8, "clip": 1.0}
    experiment = pfedbred.Experiment.from_mapping({"local_optimizer": given})
    assert experiment.plain()["local_optimizer"] == "adam(b1=0.8, clip=1.0)"
    assert local_optimizers.parse("adam(b1=0.8, clip=1.0)") == ("adam", {"b1": 0.8, "clip": 1.0})


def test_plain_sgd_has_no_state_to_keep(federation):
    with pytest.raises(pfedbred.SettingError, match="keep_optimizer needs a local_optimizer that has a state"):
        pfedbred.run(federation=federation, algorithm="fedavg", keep_optimizer=True, rounds=1)
