"""Runs that start from given params, and runs that train only parts of a network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from conftest import small_federation
from support.normalised import tiny

import pfedbred
from pfedbred.experiment.building import build
from pfedbred.experiment.command import command
from pfedbred.experiment.resume import check_unchanged
from pfedbred.io import tensors
from pfedbred.models import WithStatistics
from pfedbred.types import tree_bytes

pytestmark = pytest.mark.full

FEDERATION = small_federation()
OPTIONS = {"model": "dnn", "algorithm": "fedavg", "rounds": 1, "settings": {"R": 2}}


def run(federation=FEDERATION, **options):
    return pfedbred.run(federation=federation, **{**OPTIONS, **options})


def built(**options):
    return build(pfedbred.Experiment(**{"dataset": FEDERATION, **OPTIONS, **options}))


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def started(result):
    """G before the first round, by seed."""
    backend = result.backend
    state = backend.init([3, 4])
    return [backend.global_model(state, seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A finished run in a folder."""
    return run(out=tmp_path_factory.mktemp("runs") / "earlier", rounds=2, algorithm="mg-meta")


def test_a_run_starts_from_a_file_a_folder_or_params(earlier, tmp_path):
    file, g = pfedbred.export(earlier.folder, out=tmp_path / "g.safetensors"), earlier.global_model()
    given = {"file": file, "run": earlier.folder, "tree": g}
    found = {name: built(start_from=each) for name, each in given.items()}
    for each in found.values():
        assert all(same(start, g) for start in started(each))  # whatever the seed
    recorded = {name: each.experiment.plain()["start_from"] for name, each in found.items()}
    hashes = {text.partition("sha256=")[2][:64] for text in recorded.values()}
    assert len(hashes) == 1
    assert recorded["file"] == f"{file.resolve()}#sha256={hashes.pop()}"
    assert recorded["tree"].startswith("<params sha256=")


@pytest.mark.parametrize(("dtype", "metadata"), [("float32", {}), ("bfloat16", {"format": "pt"}), ("float16", {})])
def test_a_run_starts_from_a_file_of_params_that_is_not_ours(dtype, metadata, earlier, tmp_path):
    g = jax.tree.map(lambda leaf: np.asarray(leaf.astype(dtype)), earlier.global_model())
    tensors.write(tmp_path / "theirs.safetensors", tensors.named(g), metadata)
    first = built(start_from=tmp_path / "theirs.safetensors")
    assert all(same(start, jax.tree.map(lambda leaf: leaf.astype(np.float32), g)) for start in started(first))
    assert same(started(built(start_from=g))[0], started(first)[0])
    again = built(start_from=first.experiment.plain()["start_from"])
    assert same(started(first)[0], started(again)[0])


def changed(**arrays):
    """An array of that name in place of another, or none."""
    return lambda g: {name: array for name, array in {**g, **arrays}.items() if array is not None}


@pytest.mark.parametrize(
    ("change", "metadata", "says"),
    [
        (changed(**{"hidden.bias": None}), {}, "does not fit the model: hidden.bias is missing"),
        (changed(more=np.ones(3)), {}, "does not fit the model: more is not in the model"),
        (changed(**{"hidden.bias": np.ones(7)}), {}, r"hidden.bias has shape \(7,\), not \(100,\)"),
        (changed(**{"hidden.bias": np.full(100, np.nan)}), {}, "hidden.bias has numbers that are not finite"),
        (changed(**{"hidden.bias": np.full(100, 1e300)}), {}, "hidden.bias has numbers that are not finite"),
        (changed(**{"hidden.bias": np.ones(100, int)}), {}, "'hidden.bias' is of type I64, not F64, F32, F16, BF16"),
        (changed(), {"format": "pfedbred models 1"}, "is not a pfedbred model file"),
        (lambda g: {}, {}, "does not fit the model"),
    ],
)
def test_a_file_of_other_params_is_refused_in_one_line(change, metadata, says, earlier, tmp_path):
    g = {name: np.asarray(leaf) for name, leaf in tensors.named(earlier.global_model()).items()}
    path = tmp_path / "theirs.safetensors"
    tensors.write(path, change(g), metadata)
    with pytest.raises(pfedbred.SettingError, match=says) as caught:
        built(start_from=path)
    assert "\n" not in str(caught.value)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(
        pfedbred.SettingError, match=r"^[^\n]*theirs.safetensors is not a safetensors file, or it is damaged$"
    ):
        built(start_from=path)


def test_a_client_s_model_can_be_started_from_and_a_streamed_run_too(earlier, tmp_path):
    file = pfedbred.export(earlier.folder, client=1, out=tmp_path / "p.safetensors")
    streamed = built(start_from=str(file), algorithm="pfedme", participation="sample", aggregated=2, store="memory")
    assert all(same(each, earlier.personal_model(1)) for each in started(streamed))


@pytest.mark.parametrize("posterior", ["laplace", pytest.param("sgld", marks=pytest.mark.broad)])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_client_s_model_with_a_posterior_can_be_started_from(posterior, frozen, earlier, tmp_path):
    """Without its posterior, which is that of this client's data."""
    if posterior == "sgld":
        pytest.importorskip("blackjax", reason="BlackJAX is not installed")
    only = {"start_from": earlier.global_model(), "train_only": "output"} if frozen else {}
    first = run(posterior=posterior, out=tmp_path / "run", **only)
    file = pfedbred.export(tmp_path / "run", client=1, out=tmp_path / "p.safetensors")
    p = first.personal_model(1)
    assert hasattr(p, "model")
    expected = first.backend.task.model.whole(p.model)
    assert same(started(built(start_from=file))[0], expected)
    if not frozen:
        assert same(started(built(start_from=p))[0], expected)


@pytest.mark.parametrize(
    ("options", "client", "says"),
    [
        ({"algorithm": "fedem"}, 1, "it is a mixture of several networks, as fedem trains it"),
        ({"algorithm": "fedem"}, None, "it is a mixture of several networks, as fedem trains it"),
        ({"posterior": "ensemble", "seeds": 2}, 1, "it is an ensemble, with a network of each seed"),
    ],
    ids=str,
)
def test_what_is_not_one_network_is_not_started_from(options, client, says, tmp_path):
    first = run(**options, out=tmp_path / "run")
    file = pfedbred.export(tmp_path / "run", client=client, out=tmp_path / "it.safetensors")
    given = [file, tmp_path / "run"] if client is None else [file]
    if "posterior" not in options:
        given.append(first.global_model() if client is None else first.personal_model(client))
    for each in given:
        with pytest.raises(pfedbred.SettingError, match=f"cannot be started from: {says}") as caught:
            built(start_from=each)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parts", [None, "hidden,output"])
def test_several_networks_do_not_start_alike(parts, earlier):
    """From the same params they would be trained alike."""
    given = {"start_from": earlier.global_model(), "start_parts": parts}
    with pytest.raises(pfedbred.SettingError, match="fedem trains 3 networks, and those that start from the same"):
        built(algorithm="fedem", **given)
    with pytest.raises(pfedbred.SettingError, match="fedem trains 3 networks"):
        built(algorithm="fedem", **given, train_only="output")
    assert started(built(algorithm="fedem", settings={"R": 2, "M": 1}, **given))
    drawn = started(built(algorithm="fedem", **given | {"start_parts": "hidden"}))[0].components
    assert same(drawn["hidden"]["weight"][0], drawn["hidden"]["weight"][2])
    assert not same(drawn["output"]["weight"][0], drawn["output"]["weight"][2])


def test_a_sweep_starts_from_given_params(earlier):
    options = {**OPTIONS, "start_from": str(earlier.folder), "dataset": FEDERATION}
    swept = pfedbred.sweep(pfedbred.Experiment(**options), {"alpha": [0.01, 1e-9]}, choose_on_test=True)
    before = earlier.points[-1].scores.global_.test.accuracy[0]
    assert np.isclose(swept.global_[1, -1, 0], before)  # with steps that change nothing


def test_the_record_reproduces_the_run_and_notices_another_file(earlier, tmp_path):
    file = pfedbred.export(earlier.folder, out=tmp_path / "g.safetensors")
    first = run(start_from=str(file), out=tmp_path / "first")
    config = yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())
    assert "sha256=" in command(first.record().summary["experiment"])
    again = built(start_from=config["start_from"])
    assert same(started(first)[0], started(again)[0])
    check_unchanged(tmp_path / "first", again.experiment.plain())
    pfedbred.export(earlier.folder, client=0, out=file)
    with pytest.raises(pfedbred.SettingError, match=r"g.safetensors has changed: its params had sha256 .*, and now"):
        built(start_from=config["start_from"])
    other = built(start_from=str(file))
    with pytest.raises(pfedbred.SettingError, match="start_from"):
        check_unchanged(tmp_path / "first", other.experiment.plain())


def test_the_command_line_says_where_it_starts(call, tmp_path):
    small = ("--model", "dnn", "--algorithm", "local", "--rounds", 1, "--clients", 5, "--set", "R=1")
    call("run", *small, "--out", tmp_path / "a")
    start = ("--start-from", tmp_path / "a", "--start-parts", "hidden", "--train-only", "output")
    code, out, _ = call("run", *small, *start, "--precision", "bfloat16", "--out", tmp_path / "b")
    assert code == 0
    parts = "(hidden; other parts are drawn at random), only output trained"
    assert f"dnn: products in bfloat16, starts from {tmp_path / 'a'} {parts}\n" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start_from": "nowhere.safetensors"}, "there is no file .*nowhere.safetensors.*pfedbred export"),
        ({"start_from": {}}, "start_from must be a file, a run's folder or params"),
        ({"start_from": {"hidden": ["a"]}}, "start_from must be a file, a run's folder or params"),
        ({"start_parts": "hidden"}, "start_parts needs start_from"),
        ({"train_only": "output"}, "train_only needs start_from"),
        ({"start_from": "RUN", "train_only": ["output", 5]}, "train_only must be names of parts"),
        ({"start_from": "RUN", "model": "mclr"}, r"does not fit the model: output.weight has shape \(3, 100\), not"),
        ({"start_from": "RUN", "start_parts": "body"}, "no part 'body'"),
        ({"start_from": "RUN", "train_only": "hidden,output"}, "train_only names all parts"),
    ],
)
def test_what_cannot_be_started_from_is_one_line(options, says, earlier):
    given = {name: str(earlier.folder) if value == "RUN" else value for name, value in options.items()}
    with pytest.raises(pfedbred.SettingError, match=says) as caught:
        run(**given)
    assert "\n" not in str(caught.value)


def test_a_frozen_part_must_be_given(earlier):
    whole = run(start_from=earlier.global_model(), start_parts="hidden", train_only=["output"])
    assert same(whole.global_model()["hidden"], earlier.global_model()["hidden"])
    with pytest.raises(pfedbred.SettingError, match="hidden is neither taken from start_from nor trained"):
        run(start_from=earlier.global_model(), start_parts="output", train_only="output")


@pytest.mark.parametrize("method", ["mg-meta", pytest.param("fedem", marks=pytest.mark.full)])
def test_an_exported_model_is_the_whole_network(method, earlier, tmp_path):
    g, out = earlier.global_model(), tmp_path / "run"
    only = {"train_only": "output", "start_parts": "hidden" if method == "fedem" else None}
    result = run(algorithm=method, start_from=str(earlier.folder), **only, out=out, precision="bfloat16")
    trained = pfedbred.load_model(pfedbred.export(out, client=2))
    inputs = FEDERATION.inputs(FEDERATION.test).take(jnp.arange(5))
    personal = result.backend.personal_model(result.state, 2)
    expected = result.backend.algorithm.predict(personal, inputs)
    assert np.array_equal(trained.logits(np.asarray(FEDERATION.test.x[:5])), expected)
    if method == "mg-meta":
        assert list(personal) == ["output"]
        assert same(result.global_model()["hidden"], g["hidden"])
        assert not same(result.personal_model(2)["output"], g["output"])
        for given in (pfedbred.export(out), out):  # and on from there
            assert same(started(built(start_from=given))[0], result.global_model())


def three_parts():
    """x A tanh(B), by which C gives logits, as one would write it."""

    def init(key):
        shapes = {"body": (6, 5), "middle": (5, 4), "output": (4, 3)}
        keys = jax.random.split(key, 3)
        return {name: jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def apply(params, x):
        return jnp.tanh(jnp.tanh(x @ params["body"]) @ params["middle"]) @ params["output"]

    return pfedbred.Model(init, apply, head=("output",))


def test_personal_heads_on_a_shared_middle_and_a_frozen_body():
    model = three_parts()
    given = model.init(jax.random.key(9))
    result = run(model=model, algorithm="fedper", start_from=given, train_only="middle,output")
    first, second = (result.personal_model(client) for client in (0, 1))
    assert same(first["body"], given["body"])
    assert same(first["middle"], second["middle"])
    assert not same(first["middle"], given["middle"])
    assert not same(first["output"], second["output"])
    with pytest.raises(pfedbred.SettingError, match="head"):
        run(model=model, algorithm="fedper", start_from=given, train_only="middle")


def test_batch_statistics_are_measured_anew(tmp_path):
    """A start takes the params of a model alone; what is exported has the whole network and its statistics."""
    first = run(model=tiny, out=tmp_path / "first")
    assert isinstance(first.global_model(), WithStatistics)
    options = {"model": tiny, "train_only": "output", "out": tmp_path / "second"}
    second = run(start_from=tmp_path / "first", **options)
    before, after = first.global_model().params, second.personal_model(1).params
    assert same(before["hidden"], after["hidden"])
    assert not same(before["output"], after["output"])
    file = pfedbred.export(tmp_path / "second", client=1, out=tmp_path / "p.safetensors")
    loaded = pfedbred.load_model(file, model=tiny)
    x = np.random.default_rng(0).normal(size=(3, *FEDERATION.shape))
    expected = tiny(FEDERATION.shape, FEDERATION.classes).apply(second.personal_model(1), jnp.asarray(x))
    assert np.allclose(loaded.logits(x), expected, atol=1e-5)
    third = built(model=tiny, start_from=file)
    assert all(same(start.params, second.personal_model(1).params) for start in started(third))


def wide(clients, hidden, trained):
    """A backend for a network whose first layer is that wide, of which that part is trained."""
    federation = small_federation((8,) * clients, features=64)
    model = pfedbred.models.dnn((64,), 3, hidden=hidden)
    params = model.init(jax.random.key(0))
    options = {"model": model, "algorithm": "fedavg", "rounds": 1, "settings": {"R": 1}, "train_only": trained}
    options |= {"start_from": params, "executor": "vmap", "batch_size": 4, "screening": "norms"}
    experiment = pfedbred.Experiment(dataset=federation, **options)
    return build(experiment, federation).backend, params


def test_a_frozen_body_takes_the_memory_of_one():
    """State and program, of few and of many clients: what grows with the clients is the trained part alone."""
    arguments, temporary = {}, {}
    for clients in (4, 20):
        backend, params = wide(clients, 5_000, ["output"])
        body, head = tree_bytes(params["hidden"]), tree_bytes(params["output"])
        assert body > 2**20
        assert backend.state_bytes() < (clients + 2) * head + 100 * clients
        states = jax.eval_shape(backend._start, jnp.zeros(1, jnp.uint32))
        traced = backend._advance._traced[1]
        stats = traced.stage.lower().compile().memory_analysis()
        arguments[clients], temporary[clients] = stats.argument_size_in_bytes, stats.temp_size_in_bytes
        assert tree_bytes(traced.constants) == tree_bytes(params["hidden"]["weight"])
        samples = tree_bytes((backend.shards, states.clients, states.server))
        assert arguments[clients] < samples + body + 2**16
    grown = arguments[20] - arguments[4]
    assert grown < 16 * (head + 2**12)  # of 16 more clients: heads and samples
    assert temporary[20] - temporary[4] < 16 * body / 2


@pytest.mark.full
@pytest.mark.parametrize("executor", ["in-turn", pytest.param("vmap", marks=pytest.mark.slow)])
def test_200_clients_on_a_frozen_resnet_take_the_memory_of_one(executor):
    """ResNet-18 with personal heads, compiled and not run: heads and samples grow with the clients, bodies do not."""
    params = pfedbred.models.resnet18((8, 8, 3), 3).init(jax.random.key(0))
    head, body = tree_bytes(params["output"]), tree_bytes(params) - tree_bytes(params["output"])
    options = {"model": "resnet18", "algorithm": "fedper", "start_from": params, "train_only": "output"}
    few, many = 10, 200
    arguments, temporary = {}, {}
    for clients in (few, many):
        samples = [(np.ones((2, 8, 8, 3), np.float32), np.array([0, 2]))] * clients
        backend = built(
            **options, dataset=pfedbred.from_clients(samples, samples), executor=executor, batch_size=2
        ).backend
        assert clients * head <= backend.state_bytes() < (clients + 10) * (head + 100)
        traced = backend._advance._traced[1]
        stats = traced.stage.lower().compile().memory_analysis()
        arguments[clients], temporary[clients] = stats.argument_size_in_bytes, stats.temp_size_in_bytes
        assert 0.9 * body < tree_bytes(traced.constants) <= body  # the rest is small, and part of the program
        assert arguments[clients] < body + clients * (head + tree_bytes(samples[0]) + 2**10)
    assert arguments[many] - arguments[few] < (many - few) * body / 1000
    assert temporary[many] < 4 * body
    assert temporary[many] - temporary[few] < (many - few) * body / 100  # what layers pass on
