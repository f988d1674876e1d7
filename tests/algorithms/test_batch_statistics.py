"""Batch statistics over any algorithm, and FedBN, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from support import normalised, small_rounds

import pfedbred
from pfedbred.algorithms.base import Uploads
from pfedbred.algorithms.batch_statistics import with_statistics
from pfedbred.data.minibatches import Batch, ClientData, Inputs
from pfedbred.engine import selection
from pfedbred.errors import SettingError
from pfedbred.models import WithStatistics

FEDERATION = small_federation((8, 12, 5))
MODEL = normalised.tiny(FEDERATION.shape, FEDERATION.classes)
TASK = pfedbred.Task(MODEL)
DRAWS, SIZE = 24, 4
ROWS = np.random.default_rng(3).integers(0, 8, (DRAWS, SIZE))


def make(name, batch_norm="local", task=TASK, **settings):
    return with_statistics(pfedbred.make(name, task, {"alpha": 0.1, **settings}), task, batch_norm)


def data(rows=ROWS, i=0):
    """Client i, whose minibatches have these rows of its own samples."""
    train = FEDERATION.train
    offset, size = int(train.offsets[i]), int(train.sizes[i])
    given = jnp.asarray(offset + rows % size)
    return ClientData(Inputs(jnp.asarray(train.x)), jnp.asarray(train.y), given, jnp.int32(offset), jnp.int32(size))


def inputs(found):
    return np.asarray(found.x.x)[np.asarray(found.rows)]


def assert_same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), b, rtol=1e-10, atol=1e-12), found, expected)


NETWORK = {  # whose hidden layer an upload contains
    "fedavg": lambda upload: upload,
    "scaffold": lambda upload: upload.w,
    "fedper": lambda upload: upload,
    "pfedbayes": lambda upload: upload.mean,
}


@pytest.mark.parametrize("name", NETWORK)
def test_uploads_have_the_statistics_of_the_uploaded_network(name):
    """On the round's minibatches, the first 20 if there are more; of those it had in training there is no trace."""
    for draws in (3, DRAWS):
        algorithm = make(name, R=draws)
        state = algorithm.server.init(jax.random.key(0), 3)
        message, own = algorithm.server.send(state, jnp.int32(0)), data(ROWS[:draws])
        upload = jax.jit(algorithm.client.train)(message, algorithm.client.init(message), own)[0]
        hidden = np.asarray(NETWORK[name](upload.own)["hidden"])
        assert not np.allclose(hidden, algorithm.server.model(state).params["hidden"])
        assert_same(upload.statistics, normalised.statistics(hidden, inputs(own)[:20]))


def test_mixed_networks_have_their_own_statistics():
    algorithm = make("fedem", M=2, R=2)
    state = algorithm.server.init(jax.random.key(0), 3)
    message, own = algorithm.server.send(state, jnp.int32(0)), data(ROWS[:2])
    upload = jax.jit(algorithm.client.train)(message, algorithm.client.init(message), own)[0]
    each = [normalised.statistics(np.asarray(one), inputs(own)) for one in upload.own["hidden"]]
    assert_same(upload.statistics, {name: np.stack([one[name] for one in each]) for name in ("mean", "var")})
    model = algorithm.server.model(state)
    logits = [
        normalised.logits(jax.tree.map(lambda leaf, m=m: leaf[m], model.components), inputs(own)[0]) for m in (0, 1)
    ]
    chances = np.mean([np.exp(each) / np.exp(each).sum(-1, keepdims=True) for each in logits], 0)
    found = np.asarray(algorithm.predict(model, jnp.asarray(inputs(own)[0])))
    assert_same(np.exp(found) / np.exp(found).sum(-1, keepdims=True), chances)


def test_the_server_averages_statistics_as_it_averages_params():
    algorithm = make("fedavg", R=3)
    server, client = algorithm.server, algorithm.client
    state = server.init(jax.random.key(0), 3)
    message = server.send(state, jnp.int32(0))
    uploads = [client.train(message, (), data(ROWS[:3], i))[0] for i in range(3)]
    weight = np.array([0.5, 0.2, 0.3])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *uploads)
    gathered = Uploads(stacked, jnp.arange(3), jnp.asarray(weight), jnp.ones(3, bool), jax.random.key(0))
    after = server.aggregate(state, gathered)
    expected = jax.tree.map(lambda leaf: np.tensordot(weight, np.asarray(leaf), 1), stacked)
    assert_same(server.model(after), WithStatistics(expected.own, expected.statistics))
    x = inputs(data())[0]
    assert_same(algorithm.predict(server.model(after), jnp.asarray(x)), normalised.logits(server.model(after), x))
    # What screening compares are the params alone, but a statistic that is not finite is noticed.
    assert_same(client.screened(uploads[0]), uploads[0].own)
    assert jax.tree.structure(client.unchanged(message)) == jax.tree.structure(uploads[0].own)


@pytest.mark.parametrize("name", ["ditto", "fedavg+ft", "fedbabu"])
def test_personal_models_have_their_own_statistics_or_the_average(name):
    tuning = {"fedbabu": {"tune_steps": 2}}.get(name, {})
    local, average = make(name, R=2, **tuning), make(name, "average", R=2, **tuning)
    used = average.client.model_draws
    assert local.client.model_draws == used + 20
    state = local.server.init(jax.random.key(0), 3)
    message, own = local.server.send(state, jnp.int32(0)), data()
    _, kept, *_ = local.client.train(message, local.client.init(message), own)
    (mine, shared) = (jax.jit(each.client.model)(message, kept, own) for each in (local, average))
    assert_same(mine.params, shared.params)
    assert_same(shared.statistics, message.statistics)
    assert_same(
        mine.statistics, normalised.statistics(np.asarray(mine.params["hidden"]), inputs(own)[used : used + 20])
    )


def test_the_full_gradient_and_the_loss_agree():
    """Normalised by the minibatch's own statistics; pieces of up to 64 samples, padding apart from real ones."""
    params, own = MODEL.init(jax.random.key(1)), data()
    rows = slice(0, 8)
    x, y = own.x.x[rows], own.y[rows]
    assert_same(TASK.full_gradient(params, own), jax.grad(TASK.loss)(params, Batch(x, y)))
    h = np.asarray(x) @ np.asarray(params["hidden"])
    expected = normalised.logits(WithStatistics(params, {"mean": h.mean(0), "var": h.var(0)}), np.asarray(x))
    assert_same(TASK.outputs(params, Batch(x, y)), expected)
    assert TASK.first_layer(Batch(x, y)) is None


def test_an_algorithm_must_say_where_its_network_is():
    inner = pfedbred.make("fedavg", TASK)
    odd = inner._replace(server=inner.server._replace(model=lambda state: {"odd": state.model}))
    made = with_statistics(odd, TASK)
    with pytest.raises(
        SettingError, match=r"does not say where the network with batch norm is .* use batch_norm group"
    ):
        jax.eval_shape(lambda key: made.server.model(made.server.init(key, 2)), jax.random.key(0))
    plain = pfedbred.Task(pfedbred.models.mclr((6,), 3))
    inner = pfedbred.make("fedavg", plain)
    assert with_statistics(inner, plain) is inner
    with pytest.raises(SettingError, match=r"^\+ft does not train mixtures of networks"):
        pfedbred.make("fedem+ft", TASK)


# Random numbers -----------------------------------------------------------------------------------------------------

DROPPING = pfedbred.Task(normalised.dropping(FEDERATION.shape, FEDERATION.classes))


def trained(name, rounds=2, task=DROPPING, participation="all", seeds=(0,), backend=pfedbred.ResidentBackend, **plan):
    settings = {"R": 3, "R_personal": 2, "K": 2} | ({"alpha": 0.1} if name != "mg-meta" else {})
    known = pfedbred.settings.declared(pfedbred.algorithms.builder(name))
    inner = pfedbred.make(name, task, {key: value for key, value in settings.items() if key in known})
    plan = pfedbred.Plan(selection.uniform(2), batch_size=4, participation=participation, **plan)
    made = backend(with_statistics(inner, task), task, FEDERATION, plan)
    return made, made.advance(made.init(list(seeds)), rounds)


@pytest.mark.parametrize(
    "name",
    ["fedavg", *(pytest.param(name, marks=pytest.mark.full) for name in ("ditto", "mg-meta", "scaffold", "fedper"))],
)
@pytest.mark.few_cases
@pytest.mark.full
def test_executors_draw_the_same_numbers(name):
    (one, states), (other, same) = (trained(name, executor=executor) for executor in ("vmap", "loop"))
    found, expected = (each.models(state) for each, state in ((one, states), (other, same)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), found, expected)


@pytest.mark.full
def test_streamed_clients_draw_the_same_numbers():
    options = {"participation": "sample", "seeds": (3, 4), "executor": "vmap"}
    one, states = trained("ditto", **options)
    other, same = trained("ditto", backend=pfedbred.engine.StreamedBackend, **options)
    found, expected = one.models(states), other.models(same)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), found, expected)


@pytest.mark.broad
def test_every_client_round_and_minibatch_has_its_own_key():
    """Clients with the same samples that read them in one piece: only dropout tells them apart."""
    seen = []

    def train(params, x, key):
        jax.debug.callback(lambda *key: seen.append(tuple(map(int, key))), *jax.random.key_data(key))
        return x @ params

    model = pfedbred.models.Model(lambda key: jnp.zeros((6, 3)), lambda params, x: x @ params, train=train)
    task = pfedbred.Task(model)
    plan = pfedbred.Plan(selection.uniform(2), batch_size=4, executor="loop")
    backend = pfedbred.ResidentBackend(pfedbred.make("ditto", task, {"R": 3, "R_personal": 2}), task, FEDERATION, plan)
    backend.advance(backend.init([0]), 2)
    jax.effects_barrier()
    assert len(seen) == len(set(seen)) == 3 * 2 * (3 + 2)
    before, seen[:] = sorted(seen), []
    backend.advance(backend.init([0]), 2)
    jax.effects_barrier()
    assert sorted(seen) == before
    backend.evaluate(backend.init([0]))
    jax.effects_barrier()
    assert len(seen) == len(before)  # evaluation trains nothing


def test_statistics_that_are_not_finite_are_rejected():
    train = FEDERATION.train
    theirs = jnp.asarray(train.x[train.offsets[1] : train.offsets[2], 0])

    def of(params, x):
        return jax.tree.map(lambda leaf: jnp.where(jnp.isin(x[:, 0], theirs).any(), jnp.nan, leaf), known(params, x))

    known = MODEL.statistics.of
    spoilt = pfedbred.Task(MODEL._replace(statistics=MODEL.statistics._replace(of=of)))
    backend, states = trained("fedavg", task=spoilt, rounds=3, executor="vmap")
    assert backend.rejections(states).rejected == [{"1": 3}]
    assert np.isfinite(backend.global_model(states).statistics["mean"]).all()


# FedBN --------------------------------------------------------------------------------------------------------------


def test_fedbn_keeps_normalisation_layers():
    """In a plain loop: what is averaged is used by all, but for scale and shift."""
    rounds, R, alpha = 3, 2, 0.2
    batches = small_rounds.minibatches(FEDERATION, rounds=rounds, draws=R, batch_size=4)
    play = jax.jit(lambda: small_rounds.play(pfedbred.make("fedbn", TASK, {"alpha": alpha, "R": R}), batches))
    found, personal = play()
    gradient = jax.jit(jax.grad(TASK.loss))
    w = MODEL.init(jax.random.key(0))
    own, weights = [w["norm"]] * 3, np.asarray(FEDERATION.train.sizes) / 25
    for t in range(rounds):
        uploads = []
        for i in range(3):
            v = {**w, "norm": own[i]}
            for r in range(R):
                rows = batches.rows[t, i, r]
                v = jax.tree.map(lambda a, g: a - alpha * g, v, gradient(v, Batch(batches.x[rows], batches.y[rows])))
            own[i] = v["norm"]
            uploads.append(v)
        w = jax.tree.map(lambda *each: jnp.tensordot(weights, jnp.stack(each), 1), *uploads)
    assert_same(found, w)
    for i in range(3):
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], personal), {**w, "norm": own[i]})
    assert not np.allclose(own[0]["scale"], own[1]["scale"])


def test_fedbn_needs_normalisation_layers():
    with pytest.raises(SettingError, match=r"^fedbn needs a model that names its normalisation layers"):
        pfedbred.make("fedbn", pfedbred.Task(pfedbred.models.mclr((6,), 3)))
