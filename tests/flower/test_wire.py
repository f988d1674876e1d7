"""What messages hold, and what is refused of what arrives."""

import dataclasses
import json
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from conftest import small_federation
from flwr.app import Array, ArrayRecord, Error, Message
from support.flower_grid import (
    ALL,
    Killed,
    Loopback,
    assert_close,
    exchanged,
    facts_in,
    kept,
    lines,
    nodes_of,
    run,
    spoil_upload,
    to_nan,
    with_facts,
    with_tally,
)
from support.poison import POISONS, poisoned

import pfedbred
from pfedbred.data import prepared as prepared_file
from pfedbred.flower.backend import DeployedBackend
from pfedbred.io import tensors
from pfedbred.runs import trained_model

REPLIED = {"seconds", "update_norm", "reference_norm", "info"}
INTRODUCED = {"protocol", "client", "name", "number", "dataset", "shape", "classes", "labels", "features", "words"}
INTRODUCED |= {"vocabulary", "train", "test", "task", "target"}


def uploads_of(wire, federation, algorithm):
    """How many uploads there were; checks that clients sent nothing but those, statistics and a few facts."""
    before, after = exchanged(federation, algorithm).upload
    uploads = 0
    for _, message, reply in wire:
        kind = message.metadata.message_type
        assert set(reply.content) <= {"facts", "upload", "tallies"}
        assert set(facts_in(reply)) <= (INTRODUCED if kind == "query.meet" else REPLIED)
        if "upload" in reply.content:
            uploads += 1
            sent = {name: (array.shape, array.dtype) for name, array in reply.content["upload"].items()}
            expected = tensors.named(before if kind == "query.prepare" else after)
            assert sent == {name: (leaf.shape, str(leaf.dtype)) for name, leaf in expected.items()}
    return uploads


# Uploads that are refused -------------------------------------------------------------------------------------------


def _replace(change):
    return lambda record, name, array: record.__setitem__(name, Array(change(array)))


def _bytes(data):
    def change(record, name, array):
        record[name] = Array(str(array.dtype), array.shape, "numpy.ndarray", data(array))

    return change


def _one_nan(array):
    array = array.copy()
    array.flat[0] = np.nan
    return array


def _huge(array):
    return Array(array).data.replace(b"'shape': (", b"'shape': (99999999999, ", 1)


SPOILT = {
    "shape": (_replace(lambda array: array[:-1]), "shape"),
    "dtype": (_replace(lambda array: array.astype(np.float64)), "float64"),
    "one array more": (lambda record, name, array: record.__setitem__("more", Array(array)), "another tree"),
    "one array less": (lambda record, name, array: record.pop(name), "another tree"),
    "size": (_replace(lambda array: np.zeros(10**6, np.float32)), "too large"),
    "not finite": (_replace(_one_nan), "not finite"),
    "infinite": (_replace(lambda array: np.full_like(array, np.inf)), "not finite"),
    "no array": (_bytes(lambda array: b"x" * 100), "NumPy's format"),
    "cut off": (_bytes(lambda array: Array(array).data[:-4]), "too short"),
    "trailing bytes": (_bytes(lambda array: Array(array).data + b"more"), "extra bytes after the array"),
    "a header that promises terabytes": (_bytes(_huge), "cannot read"),
}


def test_bad_uploads_are_rejected_and_the_rounds_continue(prepared, tmp_path, capsys):
    """In each round the second client's upload is spoilt in another way."""
    _, path = prepared
    ways = [how for how, _ in SPOILT.values()]

    def spoil(node, message, reply):
        if node == 101 and "upload" in reply.content:
            record = reply.content["upload"]
            name = next(iter(record))
            ways[int(message.metadata.group_id) - 1](record, name, record[name].numpy())
        return reply

    grid = Loopback(nodes_of(path, 3, tmp_path), spoil)
    rounds = len(SPOILT)
    summary = run(grid, tmp_path / "run", algorithm="fedavg", rounds=rounds, eval_every=rounds, **ALL)
    said = capsys.readouterr().out.splitlines()
    for number, (what, (_, why)) in enumerate(SPOILT.items(), 1):
        (line,) = [each for each in said if f"round {number}: the update of clinic-1 is rejected" in each]
        assert why in line, what
    assert summary["rejected"] == [{"clinic-1": rounds}]
    assert summary["skipped_rounds"] == [0]


@pytest.mark.full
def test_the_valid_uploads_are_averaged_in_their_proportions(prepared, tmp_path):
    """By hand, from what they sent."""
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), spoil_upload(to_nan))
    run(grid, tmp_path / "run", algorithm="fedavg", rounds=1, **ALL)
    sent = {
        node: {name: array.numpy() for name, array in reply.content["upload"].items()}
        for node, _, reply in grid.wire
        if "upload" in reply.content
    }
    weights = {100: 7 / 27, 102: 20 / 27}
    model = tensors.named(trained_model.load_model(tmp_path / "run" / "global.safetensors").params)
    for name, array in model.items():
        expected = sum(weight * sent[node][name] for node, weight in weights.items())
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)


def test_an_update_far_out_of_line_is_rejected(prepared, tmp_path, capsys):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), spoil_upload(lambda array: array + np.float32(1e6)))
    summary = run(grid, tmp_path / "run", algorithm="fedavg", rounds=2, **ALL)
    assert "the update of clinic-1 is rejected: it is far longer than the others'" in capsys.readouterr().out
    assert summary["rejected"] == [{"clinic-1": 2}]


@pytest.mark.full
def test_updates_are_compared_with_the_others_and_weights_bounded(tmp_path, capsys):
    """Of seven clients one reverses its update, one copies another's, and one claims to have 2^24 samples."""
    made = small_federation((8,) * 7)
    path = tmp_path / "seven.fed"
    prepared_file.save(made, path)
    rng = np.random.default_rng(0)

    def tamper(node, message, reply):
        if message.metadata.message_type == "query.meet" and node == 106:
            return with_facts(reply, train=2**24)
        if "upload" in reply.content:
            record, start = reply.content["upload"], message.content["message"]
            for name, array in start.items():
                sent = array.numpy()
                if node == 105:
                    record[name] = Array(uploads[104][name])
                    continue
                update = np.linspace(0.01, 0.02, sent.size).reshape(sent.shape) + 0.004 * rng.normal(size=sent.shape)
                record[name] = Array((sent + (-update if node == 103 else update)).astype(sent.dtype))
            uploads[node] = {name: array.numpy() for name, array in record.items()}
        return reply

    uploads = {}
    grid = Loopback(nodes_of(path, 7, tmp_path), tamper)
    summary = run(grid, tmp_path / "run", algorithm="fedavg", rounds=1, **{**ALL, "clients": 7, "aggregated": 7})
    said = capsys.readouterr().out
    copy = "clinic-4" if "clinic-4" in summary["rejected"][0] else "clinic-5"  # whichever was selected second
    assert summary["rejected"] == [{"clinic-3": 1, copy: 1}]
    reasons = {"clinic-3": "it points against the other updates", copy: "it is a copy of another client's"}
    for clinic, why in reasons.items():
        assert f"the update of {clinic} is rejected: {why}" in said
    assert "clinic-6 claims 16,777,216 samples; its weight in the average is that of 28" in said  # 0.7 * 5 * 8
    model = tensors.named(trained_model.load_model(tmp_path / "run" / "global.safetensors").params)
    weights = {100: 8 / 60, 101: 8 / 60, 102: 8 / 60, 104: 8 / 60, 106: 28 / 60}
    for name, array in model.items():
        expected = sum(weight * uploads[node][name] for node, weight in weights.items())
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_the_weight_of_one_of_three_clients_is_bounded(prepared, tmp_path, capsys):
    """Three times the median of the others', which hold 7 and 20 samples."""
    _, path = prepared
    uploads = {}

    def tamper(node, message, reply):
        if message.metadata.message_type == "query.meet" and node == 102:
            return with_facts(reply, train=2**24)
        if "upload" in reply.content:
            uploads[node] = {name: array.numpy() for name, array in reply.content["upload"].items()}
        return reply

    run(Loopback(nodes_of(path, 3, tmp_path), tamper), tmp_path / "run", algorithm="fedavg", rounds=1, **ALL)
    assert "clinic-2 claims 16,777,216 samples; its weight in the average is that of 40" in capsys.readouterr().out
    model = tensors.named(trained_model.load_model(tmp_path / "run" / "global.safetensors").params)
    weights = {100: 7 / 67.5, 101: 20 / 67.5, 102: 40.5 / 67.5}
    for name, array in model.items():
        expected = sum(weight * uploads[node][name] for node, weight in weights.items())
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_a_reversed_client_is_found_as_in_the_simulation(tmp_path):
    """By its responses: they outlast a restart of the server, and what the server does not know yet it does not use."""
    made = small_federation((8, 9, 10, 11, 12, 13, 14, 15, 16))
    made = dataclasses.replace(made, train=made.train._replace(x=made.train.x.astype(np.float32)))
    path = tmp_path / "nine.fed"
    prepared_file.save(made, path)

    def tamper(node, message, reply):
        if node == 104 and "upload" in reply.content:
            record = reply.content["upload"]
            for name, start in message.content["message"].items():
                record[name] = Array(2 * start.numpy() - record[name].numpy())
        return reply

    options = {"algorithm": "fedavg", "clients": 9, "aggregated": 9, "rounds": 8}
    grid = Loopback(nodes_of(path, 9, tmp_path), tamper)
    with mock.patch.object(DeployedBackend, "_round", killed_after(5)), pytest.raises(Killed):
        run(grid, tmp_path / "run", **options)
    summary = run(grid, tmp_path / "run", **options)
    task = pfedbred.Task(pfedbred.models.mclr(made.shape, made.classes))
    reversed_ = poisoned(pfedbred.make("fedavg", task), [4], POISONS["flipped"])
    simulated = pfedbred.run(federation=made, algorithm=reversed_, rounds=8, aggregated=9, batch_size=4)
    (found,) = simulated.rejections.rejected
    assert summary["rejected"] == [{f"clinic-{name}": times for name, times in found.items()}]
    assert found["4"] >= 6
    assert_close(
        trained_model.load_model(tmp_path / "run" / "global.safetensors").params, simulated.global_model(), 1e-4
    )


def killed_after(rounds):
    """A round of the server that is not begun after so many."""
    usual = DeployedBackend._round

    def round_(self, state):
        if state.round == rounds:
            raise Killed
        usual(self, state)

    return round_


@pytest.mark.parametrize("algorithm", ["fedavg", pytest.param("mg-meta", marks=pytest.mark.full)])
@pytest.mark.few_cases
@pytest.mark.full
def test_a_rejected_clients_state_is_restored(prepared, tmp_path, algorithm):
    """And it reads other minibatches the next time, as in the simulation."""
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), spoil_upload(to_nan))
    run(grid, tmp_path / "run", algorithm=algorithm, **ALL)
    rejected, valid = (kept(tmp_path, i, made, algorithm) for i in (1, 0))
    assert not rejected.before.participated
    assert int(rejected.before.drawn) > 0
    assert bool(valid.before.participated)


# Statistics and facts that are refused ------------------------------------------------------------------------------


@pytest.mark.full
def test_errors_and_impossible_statistics_are_refused(prepared, tmp_path, capsys):
    _, path = prepared

    def lie(node, message, reply):
        number = message.metadata.group_id
        if node == 102 and message.metadata.message_type == "train" and number == "1":
            return Message(Error(0, "it broke"), reply_to=message)
        if node == 102 and "update_norm" in facts_in(reply) and number != "1":
            return with_facts(reply, update_norm=-1.0, seconds=1e200)
        if node == 100 and number == "2":
            return with_tally(reply, "global_test.accuracy.total", 10**6)
        if node == 100 and number == "3":
            return with_tally(reply, "global_test.accuracy.total", -1)
        if node == 101 and number == "2":
            return with_tally(reply, "personal_test.loss.samples", 10**6)
        if node == 101 and number == "3" and "tallies" in reply.content:
            del reply.content["tallies"]["global_train.loss.total"]
        return reply

    out = tmp_path / "run"
    summary = run(Loopback(nodes_of(path, 3, tmp_path), lie), out, algorithm="fedavg", **ALL)
    said = capsys.readouterr().out
    for line in (
        "round 1: the update of clinic-2 is rejected: it broke",
        "round 2: the update of clinic-2 is rejected: it reports a norm or a time below zero",
        "round 1: no evaluation from clinic-0: 'global_test.accuracy.total' cannot be 1000000: it has 2 test samples",
        "round 2: no evaluation from clinic-0: 'global_test.accuracy.total' cannot be -1: it has 2 test samples",
        "round 1: no evaluation from clinic-1: it evaluated 1000000 test samples, but introduced itself with 6",
        "round 2: no evaluation from clinic-1: the message of clinic-1 holds another tree",
    ):
        assert line in said
    assert summary["rejected"] == [{"clinic-2": 3}]
    first, last = lines(out)[0], lines(out)[-1]
    assert [value is None for value in first["global"]["test"]["client_accuracy"][0]] == [True, True, False]
    assert None not in last["global"]["test"]["client_accuracy"][0]


@pytest.mark.full
def test_one_clients_infinite_loss_does_not_count(prepared, tmp_path, capsys):
    _, path = prepared

    def lose(node, message, reply):
        return with_tally(reply, "personal_train.loss.total", np.nan) if node == 101 else reply

    summary = run(Loopback(nodes_of(path, 3, tmp_path), lose), tmp_path / "run", algorithm="fedavg", **ALL)
    assert "no evaluation from clinic-1: its losses are not finite" in capsys.readouterr().out
    assert summary["diverged"] is None
    last = lines(tmp_path / "run")[-1]["personal"]["test"]["client_accuracy"][0]
    assert [each is None for each in last] == [False, True, False]


@pytest.mark.full
def test_if_no_loss_is_finite_the_run_has_diverged(prepared, tmp_path, capsys):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), lambda *args: with_tally(args[2], "personal_train.loss.total", np.nan))
    summary = run(grid, tmp_path / "run", algorithm="fedavg", **ALL)
    assert summary["diverged"] == 1
    assert "fedavg diverged: its loss is not finite; stopped at round 1" in capsys.readouterr().out


# What clients refuse ------------------------------------------------------------------------------------------------


@pytest.fixture
def spoiling():
    """A grid that changes what is sent to the second client."""

    class Spoiling(Loopback):
        def push_messages(self, messages):
            for message in messages:
                if message.metadata.dst_node_id == 101 and "message" in message.content:
                    self.change(message.content)
            return super().push_messages(messages)

    return Spoiling


def _order(**changed):
    """Changes options of the experiment that the server sends; None removes one."""

    def change(content):
        facts = json.loads(content["facts"]["json"])
        options = {**facts["experiment"], **changed}
        facts["experiment"] = {name: value for name, value in options.items() if changed.get(name, "") is not None}
        content["facts"]["json"] = json.dumps(facts)

    return change


def _other_tree(content):
    content["message"] = ArrayRecord({"other": Array(np.zeros(3, np.float32))})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_other_tree, "the message of the server holds another tree"),
        # An older server does not send the metrics.
        (
            _order(metrics=None),
            "the message of the server is damaged, or of another version: 'experiment' has no 'metrics'",
        ),
        (_order(metrics=["accuracy", "bleu"]), "unknown metric 'bleu'"),
        (_order(model="os:getcwd"), "model must be given by name on a federation, not as an import path"),
        (_order(settings={"sigma": "/etc/passwd"}), "sigma cannot be a file on a federation: a server may not name"),
    ],
)
@pytest.mark.few_cases
@pytest.mark.full
def test_a_client_refuses_a_bad_request_in_one_line(prepared, tmp_path, capsys, spoiling, change, why):
    _, path = prepared
    grid = spoiling(nodes_of(path, 3, tmp_path))
    grid.change = change
    run(grid, tmp_path / "run", algorithm="fedavg", rounds=1, **ALL)
    said = capsys.readouterr().out
    assert f"round 1: the update of clinic-1 is rejected: {why}" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "home-1").glob("*/record.safetensors"))
