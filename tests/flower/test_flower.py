"""The same algorithms on Flower: what its messages hold, and that the result is the simulation's."""

import json

import jax
import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from flwr.app import Array, ArrayRecord, Error, Message
from support.flower_grid import Loopback, assert_same_models, exchanged, kept, nodes_of, personal, run, simulate

import pfedbred
from pfedbred.io import tensors
from pfedbred.runs import saved_models

DIFFERENT = ("mg-meta+am", "mime", "per-fedavg+ft", "scaffold")
"""Of the algorithms, those whose messages differ most from what test_federation.py sends through real processes."""


SAID = {"seconds", "moved", "size", "scores"}
INTRODUCED = {"client", "name", "number", "dataset", "shape", "classes", "labels", "features", "words"}
INTRODUCED |= {"vocabulary", "train", "test"}


def assert_only_what_is_declared(wire, federation, algorithm):
    """Every message that a client has sent: nothing but the algorithm's upload, and counts."""
    before, after = exchanged(federation, algorithm).upload
    uploads = 0
    for _, message, reply in wire:
        facts = json.loads(reply.content.config_records["facts"]["json"])
        kind = message.metadata.message_type
        assert set(reply.content) <= {"facts", "upload"}
        assert set(facts) <= (INTRODUCED if kind == "query.meet" else SAID)
        if "upload" in reply.content:
            uploads += 1
            sent = {name: (array.shape, array.dtype) for name, array in reply.content["upload"].items()}
            expected = tensors.named(before if kind == "query.prepare" else after)
            assert sent == {name: (leaf.shape, str(leaf.dtype)) for name, leaf in expected.items()}
    return uploads


# Parity -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [
        *DIFFERENT,
        *(pytest.param(name, marks=pytest.mark.slow) for name in pfedbred.ALGORITHMS if name not in DIFFERENT),
    ],
)
def test_same_models_and_scores_as_the_simulation(prepared, tmp_path, algorithm):
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))
    summary = run(grid, tmp_path / "run", algorithm=algorithm, clients=3, aggregated=2)
    simulated = simulate(made, algorithm)
    assert_same_models(tmp_path, tmp_path / "run", simulated)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line, point in zip(lines, simulated.points, strict=True):
        for model, scores in (("global", point.scores.global_), ("personal", point.scores.personal)):
            np.testing.assert_allclose(line[model]["test"]["accuracy"], scores.test.accuracy)
            np.testing.assert_allclose(line[model]["train"]["loss"], scores.train.loss, rtol=1e-4)
    assert summary["data"]["train_samples"] == len(made.train.y)
    uploads = assert_only_what_is_declared(grid.wire, made, algorithm)
    assert uploads == 2 * 3 * (2 if algorithm == "mime" else 1)  # two clients in three rounds; the third sends none


@pytest.mark.parametrize(
    "algorithm", ["scaffold", *(pytest.param(each, marks=pytest.mark.slow) for each in ("mg-meta", "fedamp"))]
)
def test_a_sample_of_the_clients(prepared, tmp_path, algorithm):
    made, path = prepared
    options = {"participation": "sample", "aggregated": 2, "rounds": 4}
    run(Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "run", algorithm=algorithm, clients=3, **options)
    assert_same_models(tmp_path, tmp_path / "run", simulate(made, algorithm, store="device", **options))


def test_robust_averages_and_equal_weights(prepared, tmp_path):
    made, path = prepared
    options = {"aggregate": "trimmed", "outliers": 0.3, "weights": "uniform", "aggregated": 3}
    config = {"clients": 3, "algorithm": "fedavg", **options}
    run(Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "run", **config)
    assert_same_models(tmp_path, tmp_path / "run", simulate(made, "fedavg", **options))


# What leaves a client -----------------------------------------------------------------------------------------------


def test_neither_theta_nor_a_sample_crosses_the_wire(prepared, tmp_path):
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))
    run(grid, tmp_path / "run", algorithm="mg-meta", clients=3, aggregated=3)
    own = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(personal(tmp_path, i).weights)]) for i in range(3)]
    numbers = set(np.concatenate([*own, made.train.x.ravel()]).tolist()) - {0.0}
    for _, _, reply in grid.wire:
        for record in reply.content.array_records.values():
            for array in record.values():
                assert not numbers & set(array.numpy().ravel().tolist())


# Uploads that are refused -------------------------------------------------------------------------------------------


def _spoilt(*ways):
    """The second client's uploads are spoilt, in each round in the next of these ways."""

    def spoil(node, message, reply):
        if node == 101 and "upload" in reply.content:
            record = reply.content["upload"]
            name = next(iter(record))
            ways[(int(message.metadata.group_id) - 1) % len(ways)](record, name, record[name].numpy())
        return reply

    return spoil


def _replace(change):
    return lambda record, name, array: record.__setitem__(name, Array(change(array)))


def _bytes(data):
    def change(record, name, array):
        record[name] = Array(str(array.dtype), array.shape, "numpy.ndarray", data(array))

    return change


def _nan(array):
    array = array.copy()
    array.flat[0] = np.nan
    return array


def _promising(array):
    return Array(array).data.replace(b"'shape': (", b"'shape': (99999999999, ", 1)


SPOILT = {
    "shape": (_replace(lambda array: array[:-1]), "shape"),
    "dtype": (_replace(lambda array: array.astype(np.float64)), "float64"),
    "another tree": (lambda record, name, array: record.__setitem__("more", Array(array)), "another tree"),
    "a part missing": (lambda record, name, array: record.pop(name), "another tree"),
    "size": (_replace(lambda array: np.zeros(10**6, np.float32)), "too large"),
    "not finite": (_replace(_nan), "not finite"),
    "infinite": (_replace(lambda array: np.full_like(array, np.inf)), "not finite"),
    "no array": (_bytes(lambda array: b"x" * 100), "NumPy's format"),
    "cut off": (_bytes(lambda array: Array(array).data[:-4]), "too short"),
    "something behind it": (_bytes(lambda array: Array(array).data + b"more"), "something follows"),
    "a promise of terabytes": (_bytes(_promising), "cannot read"),
}


def test_bad_uploads_are_refused_and_the_rounds_go_on(prepared, tmp_path, capsys):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), _spoilt(*(how for how, _ in SPOILT.values())))
    rounds = len(SPOILT)
    summary = run(grid, tmp_path / "run", algorithm="fedavg", clients=3, aggregated=3, rounds=rounds, eval_every=rounds)
    said = capsys.readouterr().out.splitlines()
    for number, (what, (_, why)) in enumerate(SPOILT.items(), 1):
        (line,) = [each for each in said if f"round {number}: clinic-1 is left out" in each]
        assert why in line, what
    assert summary["left_out"] == [{"clinic-1": rounds}]
    assert summary["skipped_rounds"] == [0]
    assert summary["federation"]["clients"] == ["clinic-0", "clinic-1", "clinic-2"]


def test_the_round_goes_on_as_if_the_bad_one_had_been_sick(prepared, tmp_path):
    """The rest are averaged in their proportions: by hand, from what they sent."""
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), _spoilt(_replace(_nan)))
    run(grid, tmp_path / "run", algorithm="fedavg", clients=3, aggregated=3, rounds=1)
    sent = {
        node: {name: array.numpy() for name, array in reply.content["upload"].items()}
        for node, _, reply in grid.wire
        if "upload" in reply.content
    }
    weights = {100: 7 / 27, 102: 20 / 27}
    model = tensors.named(saved_models.load_model(tmp_path / "run" / "global.safetensors").weights)
    for name, array in model.items():
        expected = sum(weight * sent[node][name] for node, weight in weights.items())
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)


def test_an_update_far_out_of_line_is_left_out(prepared, tmp_path, capsys):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), _spoilt(_replace(lambda array: array + np.float32(1e6))))
    summary = run(grid, tmp_path / "run", algorithm="pfedme", clients=3, aggregated=3, rounds=2)
    assert "clinic-1 is left out: its update is not finite or far too long" in capsys.readouterr().out
    assert summary["left_out"] == [{"clinic-1": 2}]


def test_a_client_that_is_left_out_goes_back_to_where_it_was(prepared, tmp_path):
    """And reads other minibatches the next time, as in the simulation."""
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), _spoilt(_replace(_nan)))
    run(grid, tmp_path / "run", algorithm="mg-meta", clients=3, aggregated=3, rounds=3)
    sick, sound = (kept(tmp_path, i, made, "mg-meta") for i in (1, 0))
    assert not sick.before.met
    assert int(sick.before.drawn) > 0
    assert bool(sound.before.met)


def test_errors_and_scores_that_cannot_be_are_not_believed(prepared, tmp_path, capsys):
    _, path = prepared

    def lie(node, message, reply):
        facts = reply.content.config_records["facts"]
        if node == 102 and message.metadata.message_type == "train":
            return Message(Error(0, "it broke"), reply_to=message)
        if node == 100 and '"scores"' in facts["json"]:
            said = json.loads(facts["json"])
            said["scores"]["global_test"]["correct"] = 10**6
            facts["json"] = json.dumps(said)
        return reply

    run(Loopback(nodes_of(path, 3, tmp_path), lie), tmp_path / "run", algorithm="fedavg", clients=3, aggregated=3)
    said = capsys.readouterr().out
    assert "round 1: clinic-2 is left out: it broke" in said
    assert "no scores of clinic-0: more of its predictions are right than it has samples" in said


def test_a_client_refuses_what_is_not_a_message_of_the_algorithm(prepared, tmp_path, capsys):
    """A server that was tampered with gets one line, not a traceback; and the client keeps what it has."""
    _, path = prepared

    class Spoiling(Loopback):
        def push_messages(self, messages):
            for message in messages:
                if message.metadata.dst_node_id == 101 and "message" in message.content:
                    message.content["message"] = ArrayRecord({"other": Array(np.zeros(3, np.float32))})
            return super().push_messages(messages)

    run(Spoiling(nodes_of(path, 3, tmp_path)), tmp_path / "run", algorithm="fedavg", clients=3, aggregated=3)
    assert "clinic-1 is left out: what the server sent is another tree" in capsys.readouterr().out
    assert not list((tmp_path / "home-1").glob("*/record.safetensors"))
