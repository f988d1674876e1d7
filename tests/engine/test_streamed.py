"""The streamed backend: a cohort is loaded for its round and stored again, and nothing else is different."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backends import assert_close, federation, numbers, same, task_for, trained

import pfedbred
from pfedbred import data
from pfedbred.engine import StreamedBackend, selection
from pfedbred.engine.client_store import ClientStore, FileSlots, MemorySlots, choose
from pfedbred.errors import SettingError

SIZES = (7, 12, 5, 20, 9, 3)


def both(name, *, seeds=(0,), rounds=3, **options):
    """The same run with all clients on the device, and with cohorts that come and go."""
    options = {"data": federation(SIZES), "participation": "sample", **options}
    resident = {key: value for key, value in options.items() if key != "store"}
    runs = [trained(name, seeds=seeds, rounds=rounds, **resident)]
    return [*runs, trained(name, seeds=seeds, rounds=rounds, streamed=True, **options)]


# A client's state may be its own models, nothing at all, or a mirror of what the server knows; the server may send to
# all alike or to each its own; and there may be an exchange before training.
@pytest.mark.broad
@pytest.mark.parametrize(
    "name",
    ["mg-meta"]
    + [
        pytest.param(name, marks=pytest.mark.full)
        for name in ("scaffold", "mime", "fedavg", "heurfedamp", "fedrep", "apfl", "fedem", "pfedbayes", "pfedvem")
    ],
)
@pytest.mark.few_cases(2)
@pytest.mark.broad
def test_streamed_clients_are_the_resident_ones(name):
    (resident, expected), (streamed, found) = both(name)
    assert_close((expected.round, expected.server), (found.round, found.server))
    assert_close(resident.models(expected), streamed.models(found))
    assert_close(numbers(resident.evaluate(expected)), numbers(streamed.evaluate(found)))


@pytest.mark.full
def test_every_seed_has_its_own_clients_in_a_file_as_well(tmp_path):
    (resident, expected), (streamed, found) = both("mg-meta", seeds=(3, 8), store="file", rounds=4)
    assert_close(numbers(resident.evaluate(expected)), numbers(streamed.evaluate(found)))
    found = streamed.advance(found, 2)  # goes on where it was
    expected = resident.advance(expected, 2)
    assert_close(resident.models(expected), streamed.models(found))
    for seed in (0, 1):
        assert_close(resident.global_model(expected, seed), streamed.global_model(found, seed))
        assert_close(resident.personal_model(expected, 4, seed), streamed.personal_model(found, 4, seed))
    assert resident.model_bytes() == streamed.model_bytes()


@pytest.mark.full
@pytest.mark.parametrize("plan", [{"executor": "loop"}, {"executor": "vmap"}, {"executor": "vmap", "chunk": 1}])
def test_every_executor_streams(plan):
    (resident, expected), (streamed, found) = both("mg-meta", **plan)
    assert_close(resident.models(expected), streamed.models(found))


@pytest.mark.full
def test_a_client_that_has_not_taken_part_has_the_model_it_would_start_from():
    for backend, states in both("mg-meta", rounds=1, select=1):
        start = backend.global_model(backend.init([0]))
        now = backend.global_model(states)
        personal = [backend.personal_model(states, i) for i in range(len(SIZES))]
        assert sum(same(each, now) for each in personal) == len(SIZES) - 1
        assert not same(now, start)


@pytest.mark.full
def test_only_who_took_part_has_a_record_and_only_the_sample_is_fetched():
    """However large the population: a round asks for the data of its cohort, and stores as many records."""
    asked = []
    for clients in (1_000_000,):
        made = data.population("synthetic", clients=clients)
        calls = []
        counted = data.Population(
            made.name,
            clients,
            made.shape,
            made.classes,
            lambda k, calls=calls, made=made: (calls.append(k), made.client(k))[1],
            made.client_bytes,
            made.seed,
        )
        task = pfedbred.Task(pfedbred.models.mclr(made.shape, made.classes))
        plan = pfedbred.Plan(selection.uniform(10), participation="sample")
        algorithm = pfedbred.make("mg-meta", task, {"R": 1})
        backend = StreamedBackend(algorithm, task, counted, plan, evaluated=20)
        states = backend.init([0])
        assert len(calls) == 20
        assert len(states.clients[0]) == 0
        states = backend.advance(states, 3)
        assert len(states.clients[0]) == len(set(calls[20:])) > 20
        assert backend.participated(states) == [len(set(calls[:20]) & set(calls[20:]))]
        backend.evaluate(states)
        asked.append(len(calls))
    assert asked == [50]


# The store -------------------------------------------------------------------------------------------------


EXAMPLE = {
    "weights": jax.ShapeDtypeStruct((2, 3), np.float64),
    "nothing": jax.ShapeDtypeStruct((0,), np.float32),
    "drawn": jax.ShapeDtypeStruct((), np.uint32),
}


@pytest.mark.parametrize("kind", ["memory", "file"])
@given(st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=5, unique=True), max_size=6), st.integers(0, 99))
def test_a_store_returns_what_was_written_last(kind, cohorts, seed):
    rng = np.random.default_rng(seed)
    store = ClientStore(EXAMPLE, MemorySlots() if kind == "memory" else FileSlots(None))
    last = {}
    for clients in cohorts:
        records = {
            "weights": rng.normal(size=(len(clients), 2, 3)),
            "nothing": np.zeros((len(clients), 0), np.float32),
            "drawn": rng.integers(1, 2**32, len(clients), np.uint32),
        }
        store.write(clients, records)
        last.update({client: (records["weights"][i], records["drawn"][i]) for i, client in enumerate(clients)})
    assert len(store) == len(last)
    unknown = 10**9 + 1
    asked = [*last, unknown]
    found = store.read(asked)
    assert found["nothing"].shape == (len(asked), 0)
    for i, client in enumerate(asked):
        weights, drawn = last.get(client, (np.zeros((2, 3)), 0))
        np.testing.assert_array_equal(found["weights"][i], weights)
        assert found["drawn"][i] == drawn


def test_the_store_is_the_first_with_room():
    def where(store="auto", sampled=True, samples=0, states=0):
        return choose(store, sampled=sampled, samples=samples, states=states, device=100, host=1000)

    assert where(samples=20, states=30) == "device"
    assert where(samples=20, states=31) == "memory"
    assert where(states=500) == "memory"
    assert where(states=501) == "file"
    assert where(sampled=False, states=10**9) == "device"
    assert where("file") == "file"
    with pytest.raises(SettingError, match="participation 'sample'"):
        where("file", sampled=False)


# The data --------------------------------------------------------------------------------------------------


def test_clients_made_on_demand_are_those_of_the_whole():
    whole = pfedbred.load("synthetic(0.5, 2)", clients=8, seed=4)
    made = data.population("synthetic(0.5, 2)", clients=8, seed=4)
    assert (made.clients, made.shape, made.classes) == (whole.clients, whole.shape, whole.classes)
    some = np.array([6, 1])
    for split in ("train", "test"):
        expected, found = getattr(whole.take(some), split), getattr(made.take(some), split)
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    sizes = [len(made.take(np.array([k])).train.y) for k in range(8)]
    np.testing.assert_array_equal(sizes, whole.train.sizes)
    size = np.mean([len(train[1]) + len(test[1]) for train, test in map(made.client, range(300))])
    assert made.client_bytes == pytest.approx(size * 4 * 61, rel=0.3)  # "about"


def test_other_data_is_not_made_on_demand():
    assert data.population("digits") is None
    assert data.population("synthetic", split="iid") is None
    assert data.population("some.fed") is None


# The command line ------------------------------------------------------------------------------------------


SMALL = ("--participation", "sample", "--aggregated", "3", "--rounds", "2", "--set", "R=2")


@pytest.mark.full
def test_the_command_line_runs_a_million_clients(call, tmp_path):
    options = ("--dataset", "synthetic", "--clients", "1000000", *SMALL, "--store", "file", "--store-dir", tmp_path)
    code, out, err = call("run", *options, "--scored-clients", "30", "--out", "run")
    assert code == 0, err
    assert "1,000,000 clients (3 averaged in a round), samples generated on demand" in out
    assert "kept in a file; 30 clients are evaluated" in out
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert np.shape(line["personal"]["test"]["client_accuracy"]) == (1, 30)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["data"]["clients"] == 1_000_000
    assert (summary["scored"]["clients"], summary["scored"]["took_part"]) == (30, [0])  # 6 of 1,000,000 trained
    assert len(set(summary["scored"]["numbers"])) == 30
    assert "0 of the 30 evaluated clients have taken part" in " ".join(out.split())
    assert not (tmp_path / "run" / "models.safetensors").exists()  # 2.4 GB
    assert not [path for path in tmp_path.iterdir() if path.name != "run"]  # the store has no name


@pytest.mark.full
def test_a_streamed_run_is_the_one_on_the_device_and_its_models_can_be_exported(call, tmp_path):
    for store in ("device", "memory"):
        code, _, err = call("run", "--clients", "6", *SMALL, "--store", store, "--out", store)
        assert code == 0, err
    one, other = ((tmp_path / store / "metrics.jsonl").read_text().splitlines()[-1] for store in ("device", "memory"))
    assert json.loads(one)["personal"]["test"] == json.loads(other)["personal"]["test"]
    assert call("export", "memory", "--client", "5")[0] == 0


@pytest.mark.full
def test_held_out_clients_join_what_was_streamed(call):
    for store in ("device", "memory"):
        code, out, err = call("run", "--clients", "6", *SMALL, "--store", store, "--held-out-clients", "0.5")
        assert code == 0, err
        assert "3 more clients held out" in out


REFUSED = {
    ("--store", "memory"): "needs participation 'sample'",
    ("--store", "disk"): "auto, device, memory, file",
    (*SMALL, "--scored-clients", "5"): "on the device all are evaluated",
    (*SMALL, "--store", "file", "--store-dir", "/nowhere"): "/nowhere",
    (*SMALL, "--dataset", "synthetic", "--store", "memory", "--select", "by-data"): "generated on demand",
    (
        *SMALL,
        "--dataset",
        "synthetic",
        "--store",
        "memory",
        "--select",
        "pfedbred.engine.selection:by_data",
    ): "on demand",
    (*SMALL, "--dataset", "synthetic", "--store", "memory", "--held-out-clients", "0.2"): "generated on demand",
}


@pytest.mark.parametrize("options", REFUSED, ids=" ".join)
def test_what_cannot_be_streamed_is_rejected(call, options):
    code, _, err = call("run", *options)
    assert code == 2
    assert REFUSED[options] in err
    assert len(err.splitlines()) == 1


@pytest.mark.full
def test_compared_runs_evaluate_the_same_clients(call, tmp_path, monkeypatch):
    """If the states of one method do not fit, all methods are streamed."""
    room = 2 * pfedbred.load("digits", clients=6).bytes  # for the samples, and no states
    monkeypatch.setattr(pfedbred.engine.devices, "device_memory", lambda: room)
    options = ("--clients", "6", *SMALL, "--algorithms", "fedavg,mg-meta", "--out", "here")
    assert call("compare", *options)[0] == 0
    table = json.loads((tmp_path / "here" / "table.json").read_text())
    assert [each["scored"]["clients"] for each in table] == [6, 6]


def test_a_client_that_reads_no_minibatches_keeps_its_state():
    """It is known by having taken part, not by having read something."""
    data = federation(SIZES)
    client = pfedbred.Client(
        init=lambda message: jnp.zeros(()),
        train=lambda message, state, data: (message, state + 1),
        model=lambda message, state, data: message,
        draws=0,
    )
    algorithm = pfedbred.make("fedavg", task_for(data))._replace(client=client)
    (_, on_device), (_, stored) = both(algorithm, select=len(SIZES))
    for kept in (on_device.clients, stored.clients[0].read([0, 1])):
        np.testing.assert_array_equal(np.ravel(kept.state), 3)


def test_a_server_that_compares_all_clients_rejects_a_million():
    made = data.population("synthetic", clients=1_000_000)
    task = pfedbred.Task(pfedbred.models.mclr(made.shape, made.classes))
    plan = pfedbred.Plan(selection.uniform(10), participation="sample")
    with pytest.raises(SettingError, match="1,000,000 are too many, at most 10,000 are supported"):
        StreamedBackend(pfedbred.make("fedu", task), task, made, plan)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ((np.zeros((2, 3)), np.array([0, 7])), "label 7"),
        ((np.full((2, 3), np.nan), np.array([0, 1])), "not a finite number"),
        ((np.zeros((0, 3)), np.array([], int)), "no training samples"),
        ((np.zeros((2, 4)), np.array([0, 1])), "samples of shape"),
    ],
)
def test_clients_made_on_demand_are_checked(samples, words):
    good = (np.zeros((2, 3)), np.array([0, 1]))
    made = data.Population("own", 5, (3,), 2, lambda k: (samples if k == 3 else good, good), 100, 0)
    made.take(np.arange(3))
    with pytest.raises(SettingError, match=words):
        made.take(np.arange(5))


def test_a_record_whose_write_was_interrupted_does_not_exist():
    class Full(MemorySlots):
        def write(self, slot, row):
            if slot == 1:
                raise KeyboardInterrupt
            super().write(slot, row)

    store = ClientStore(EXAMPLE, Full())
    records = jax.tree.map(lambda leaf: np.ones((3, *leaf.shape), leaf.dtype), EXAMPLE)
    with pytest.raises(KeyboardInterrupt):
        store.write([5, 6, 7], records)
    assert [number in store for number in (5, 6, 7)] == [True, False, False]
    np.testing.assert_array_equal(store.read([5, 6])["drawn"], [1, 0])


def test_a_sweep_is_not_streamed(call):
    code, _, err = call("sweep", *SMALL, "--store", "memory", "--grid", "lam=1,2")
    assert code == 2
    assert "a sweep keeps all clients on the device" in err
