"""What every algorithm must do, with every wrapper: driven by the table of algorithms."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import array_sizes, small_federation

import pfedbred
from pfedbred import algorithms
from pfedbred.algorithms.base import Batch, Uploads
from pfedbred.algorithms.exchange import costs, exchange
from pfedbred.algorithms.fedu import Upload
from pfedbred.algorithms.wrappers import WRAPPERS
from pfedbred.engine import selection
from pfedbred.experiment.building import build

BASES = sorted(pfedbred.ALGORITHMS)
OWN_SERVERS = ("fedadagrad", "fedadam", "fedamp", "fedavgm", "fedu", "fedyogi", "heurfedamp", "local")
WRAPPED = [f"{base}+{suffix}" for base in BASES for suffix in WRAPPERS if suffix != "server" or base not in OWN_SERVERS]
DOUBLY = [f"{base}+am+ft" for base in BASES]
FEDERATION = small_federation()
FEW = {"R": 2, "K": 2, "R_head": 2, "R_personal": 2, "adapt_steps": 2, "tune_steps": 2}


def make(name, dtype=jnp.float64):
    """The algorithm with few steps, on a network that has a body and a head."""
    model = pfedbred.models.dnn((6,), 3, hidden=4, dtype=dtype)
    task = pfedbred.Task(model._replace(norms=("hidden",)))  # to fedbn any params will do
    known = pfedbred.settings.declared(algorithms.builder(name))
    return algorithms.make(name, task, {key: value for key, value in FEW.items() if key in known}), task


def simulate(name, federation, *, count=2, rounds=3, dtype=jnp.float64, **plan):
    algorithm, task = make(name, dtype)
    plan = pfedbred.Plan(selection.uniform(count), **{"batch_size": 4, "executor": "vmap", **plan})
    backend = pfedbred.ResidentBackend(algorithm, task, federation, plan)
    return backend, backend.advance(backend.init([0]), rounds)


def values(backend, states):
    """A run's whole state, and all models."""
    everyone = range(backend.federation.clients)
    models = [backend.global_model(states), *(backend.personal_model(states, i) for i in everyone)]
    return [np.asarray(leaf) for leaf in jax.tree.leaves((states.server, states.clients, models))]


KIN = ("fo", "mfo", "mg", "mg-meta-literal", "pfedbred", "pfedme")  # of mg-meta: the same code with other constants
ALIKE = (  # to an executor
    *KIN,
    *("fedavg", "fedprox", "reptile", "per-fedavg", "ditto", "mr-mtl", "fedrep", "fedbabu", "heurfedamp", "fedu"),
)


@pytest.mark.parametrize(  # with both wrappers, which runs all of what the bare algorithm runs
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.partition("+")[0] in ALIKE else pytest.mark.full)
        for name in DOUBLY
    ],
)
@pytest.mark.few_cases(2)
def test_batched_is_the_plain_loop_and_nothing_recompiles(name):
    federation = small_federation(sizes=(1, 6, 5))  # one client has a single sample
    backend, states = simulate(name, federation, rounds=1)
    backend.evaluate(states)
    np.asarray(states.round)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **kwargs: compiled.append(event) if "compile" in event else None
    )
    try:
        states = backend.advance(states, 1)
        scores = backend.evaluate(states)
        assert not compiled
    finally:
        jax.monitoring.clear_event_listeners()

    plain, plain_states = simulate(name, federation, rounds=2, executor="loop")
    for batched, looped in zip(values(backend, states), values(plain, plain_states), strict=True):
        assert np.all(np.isfinite(batched))
        np.testing.assert_allclose(batched, looped, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(scores.personal.test.loss, plain.evaluate(plain_states).personal.test.loss, rtol=1e-6)


SMALL = [("heurfedamp", "one client")]  # whose attention is to others


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(*each, marks=[] if each in SMALL else [pytest.mark.full])
        for each in itertools.product(BASES, ("one client", "one sampled"))
    ],
)
@pytest.mark.few_cases
def test_small_and_extreme_federations(name, case):
    """With a single client, all clients are sampled as well."""
    sizes, participation = ((5,), "all") if case == "one client" else ((3, 9, 4), "sample")
    backend, states = simulate(name, small_federation(sizes=sizes), count=1, participation=participation)
    assert all(np.all(np.isfinite(leaf)) for leaf in values(backend, states))


def traced_shapes(name, dtype):
    """In single precision, with both wrappers: that runs all there is."""
    if name in WRAPPED or name.partition("+")[0] in KIN:
        return pytest.param(name, dtype, marks=pytest.mark.slow)
    covered = name in DOUBLY and dtype == jnp.float32
    return pytest.param(name, dtype, marks=[] if covered else [pytest.mark.full])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [traced_shapes(*each) for each in itertools.product(BASES + WRAPPED + DOUBLY, (jnp.float32, jnp.float64))],
)
def test_interface_and_precision(name, dtype):
    """Server and client states keep their shapes and types from round to round, as a loop in XLA requires."""
    algorithm, task = make(name, dtype)
    backend = pfedbred.ResidentBackend(algorithm, task, FEDERATION, pfedbred.Plan(selection.uniform(2)))
    after, _ = backend.trace_shapes()
    before = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], backend._start(jnp.zeros(1, jnp.uint32))))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
    floats = [
        leaf for leaf in jax.tree.leaves((after.server, after.clients)) if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    assert {leaf.dtype for leaf in floats} == {jnp.dtype(dtype)}


@pytest.mark.parametrize("name", BASES)
def test_documentation(name):
    """Equations, arguments, reference, and what G and P are."""
    build = pfedbred.ALGORITHMS[name]
    text = inspect.getdoc(build)
    assert build.about.paper
    assert "G is" in text or "G and P are" in text or "G here" in text
    if name != "local":
        assert "References:" in text
    if "Settings as in" not in text:
        assert all(f"{setting}:" in text for setting in pfedbred.settings.declared(build))


def test_costs():
    """Uploads are what the method's paper says, in multiples of the model."""
    expected = {"fedavg": (1, 1, 0), "pfedme": (1, 1, 1), "mg": (1, 1, 2), "scaffold": (2, 2, 1), "mime": (3, 2, 0)}
    expected |= {"fedamp": (1, 1, 1), "fedu": (1, 1, 0), "local": (1, 0, 1), "ditto": (1, 1, 1), "fedprox": (1, 1, 0)}
    expected |= {"mr-mtl": (1, 1, 1), "pfedbayes": (2, 2, 2)}
    sample = Batch(jnp.zeros((1, 6)), jnp.zeros(1, int))
    for name, (download, upload, state) in expected.items():
        assert costs(*make(name), sample) == (download, upload, state), name
    body, head = 6 * 4 + 4, 4 * 3 + 3
    fedper = costs(*make("fedper"), sample)
    assert fedper.upload == pytest.approx(body / (body + head))
    assert fedper.state == pytest.approx(head / (body + head))
    assert costs(*make("fedem"), sample).upload == 3


@pytest.mark.parametrize("name", [name for name in BASES if name != "local"])  # which uploads nothing
def test_updates_can_be_measured(name):
    """What is screened of an upload has the shapes of one that training has not changed; else it has no direction."""
    algorithm, task = make(name)
    found = exchange(algorithm, task, Batch(jnp.zeros((1, 6)), jnp.zeros(1, int)))
    sent, start = jax.eval_shape(
        lambda message, upload: (algorithm.client.screened(upload), algorithm.client.unchanged(message)),
        found.message,
        found.upload[1],
    )
    assert [leaf.shape for leaf in jax.tree.leaves(sent)] == [leaf.shape for leaf in jax.tree.leaves(start)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedavg+fast", r"unknown suffix '\+fast'"),
        ("fedavg+am+am", "a suffix appears twice"),
        ("fedagv+am", "did you mean 'fedavg'"),
        ("fedavg+", "unknown suffix"),
    ],
)
def test_names_are_checked(name, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        algorithms.builder(name)


@pytest.mark.parametrize("base", OWN_SERVERS)
def test_only_servers_that_average_take_a_server_optimizer(base):
    """Not those that mix models pairwise or have such an optimizer already."""
    with pytest.raises(pfedbred.SettingError, match=r"needs a server that averages|already has beta_1"):
        make(f"{base}+server")


def test_settings_of_wrappers_are_known_under_the_wrapped_name():
    known = pfedbred.settings.declared(algorithms.builder("pfedme+ft+am"))
    assert {"lam", "ft_alpha", "am_beta"} <= set(known)
    assert "ft_alpha" not in pfedbred.settings.declared(algorithms.builder("pfedme+am"))


def traced(algorithm, task):
    plan = pfedbred.Plan(selection.uniform(2))
    return pfedbred.ResidentBackend(algorithm, task, FEDERATION, plan).trace_shapes()


def test_methods_with_heads_need_one():
    model = pfedbred.models.Model(lambda key: {"w": jnp.ones((3, 6))}, lambda w, x: x @ w["w"].T)
    task = pfedbred.Task(model)
    with pytest.raises(pfedbred.SettingError, match="names its head"):
        traced(pfedbred.make("fedper", task), task)


def test_fedamp_rejects_a_step_that_is_no_average():
    task = pfedbred.Task(pfedbred.models.mclr((6,), 3))
    with pytest.raises(pfedbred.SettingError, match=r"at most sigma / clients = 2\.5"):
        traced(pfedbred.make("fedamp", task, {"alpha_k": 3.0}), task)


@pytest.mark.parametrize(("clients", "step"), [(4, 0.1), (100, 0.1), (101, 10 / 101), (500, 0.02)])
def test_fedamps_default_suits_any_number_of_clients(clients, step):
    federation = small_federation((2,) * clients)
    for name in ("fedamp", "fedamp+am"):
        built = build(pfedbred.Experiment(algorithm=name, aggregated=2), federation)  # traces a round
        assert built.experiment.settings["alpha_k"] == pytest.approx(step)


@pytest.mark.parametrize("name", ["fedamp", "heurfedamp", "fedu"])
def test_mixing_pairs_of_clients_needs_no_array_of_pairs_times_params(name):
    """At 60 clients: nothing in the server's step is larger than clients x clients or clients x params."""
    clients = 60
    algorithm, _ = make(name)
    state = jax.eval_shape(lambda: algorithm.server.init(jax.random.key(0), clients))
    d = sum(leaf.size for leaf in jax.tree.leaves(state.model)) // clients

    def aggregate(state, upload):
        weight, valid = jnp.full(clients, 1 / clients), jnp.ones(clients, bool)
        return algorithm.server.aggregate(state, Uploads(upload, jnp.arange(clients), weight, valid, jax.random.key(0)))

    upload = Upload(state.model, None) if name == "fedu" else state.model
    program = jax.make_jaxpr(aggregate)(state, upload)
    assert max(array_sizes(program.jaxpr)) <= max(clients * clients, clients * d) < clients * clients * d
