"""Clients that are late, gone, empty or strange, which must not end a run."""

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from support.flower_grid import (
    ALL,
    Loopback,
    assert_close,
    assert_same_models,
    kept,
    lines,
    nodes_of,
    personal,
    run,
    simulate,
    spoil_upload,
    to_nan,
)

from pfedbred.errors import SettingError
from pfedbred.flower import server
from pfedbred.flower.client_home import Home
from pfedbred.io import tensors
from pfedbred.runs import locks, trained_model

# Late and gone ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_late_client_keeps_what_it_has_learned(prepared, tmp_path, capsys):
    """Its second reply is lost: the server averages the others, and the client goes on with its own theta."""
    made, path = prepared

    def lose(node, message, reply):
        late = node == 102 and message.metadata.message_type == "train" and message.metadata.group_id == "2"
        return None if late else reply

    out = tmp_path / "run"
    summary = run(Loopback(nodes_of(path, 3, tmp_path), lose), out, algorithm="pfedme", deadline=0.3, **ALL)
    assert "round 2: no reply within 0.3 s from clinic-2" in capsys.readouterr().out
    assert summary["rejected"] == [{}]
    assert summary["skipped_rounds"] == [0]
    simulated = simulate(made, "pfedme", aggregated=3)
    assert_close(personal(tmp_path, 2).params, kept(tmp_path, 2, made, "pfedme").after.state.theta)
    with pytest.raises(AssertionError):  # G is not that of all three
        assert_close(trained_model.load_model(out / "global.safetensors").params, simulated.global_model())


@pytest.mark.full
def test_a_round_without_replies_is_not_divergence(prepared, tmp_path, capsys):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), loses=lambda node, message: message.metadata.group_id == "2")
    summary = run(grid, tmp_path / "run", algorithm="fedavg", deadline=0.2, **ALL)
    said = capsys.readouterr().out
    assert "round 1: no client has evaluated it" in said
    assert "round 2 is skipped: 0 of 3 uploads are valid" in said
    assert (summary["diverged"], summary["skipped_rounds"]) == (None, [1])
    assert [line["round"] for line in lines(tmp_path / "run")] == [2, 3]
    assert lines(tmp_path / "run")[-1]["skipped_in_row"] == [0]


def test_too_few_clients_are_waited_for(prepared, tmp_path, capsys, monkeypatch):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))
    gone = grid.nodes.pop(102)
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            grid.nodes[102] = gone

    monkeypatch.setattr(time, "sleep", wait)
    run(grid, tmp_path / "run", algorithm="fedavg", rounds=1, min_clients=3, **ALL)
    said = capsys.readouterr().out
    assert said.count("waiting for clients: 2 of at least 3 are connected") == 1
    assert len(waited) >= 3


@pytest.mark.parametrize("algorithm", ["fedavg", pytest.param("mime", marks=pytest.mark.full)])
@pytest.mark.full
def test_selected_clients_are_waited_for(prepared, tmp_path, capsys, monkeypatch, algorithm):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))
    gone = grid.nodes.pop(102)
    monkeypatch.setattr(time, "sleep", lambda seconds: grid.nodes.setdefault(102, gone))
    summary = run(grid, tmp_path / "run", algorithm=algorithm, select=2, clients=3, rounds=1)
    assert capsys.readouterr().out.count("waiting for a client listed in select") == 1
    assert summary["skipped_rounds"] == [0]


@pytest.mark.full
@pytest.mark.parametrize(("algorithm", "valid"), [("scaffold", True), ("pfedme", False)])
@pytest.mark.few_cases
def test_a_lost_request_does_not_change_the_verdict(prepared, tmp_path, algorithm, valid):
    """What the server decided about round 1 holds in round 3, if the request of round 2 never arrived."""
    made, path = prepared
    tamper = (lambda node, message, reply: reply) if valid else spoil_upload(to_nan, round_="1")
    loses = lambda node, message: node == 101 and message.metadata.group_id == "2"  # noqa: E731
    grid = Loopback(nodes_of(path, 3, tmp_path), tamper, loses)
    run(grid, tmp_path / "run", algorithm=algorithm, deadline=0.2, eval_every=3, **ALL)
    found = kept(tmp_path, 1, made, algorithm)
    assert found.round == 3
    assert bool(found.before.participated) == valid
    assert int(found.before.drawn) > 0


@pytest.mark.full
def test_flowers_own_replies_for_a_lost_node_do_not_count(prepared, tmp_path):
    """They are not the client's doing."""
    _, path = prepared

    def gone(node, message, reply):
        lost = node == 101 and message.metadata.group_id == "2"
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message) if lost else reply

    summary = run(Loopback(nodes_of(path, 3, tmp_path), gone), tmp_path / "run", algorithm="fedavg", **ALL)
    assert summary["rejected"] == [{}]


@pytest.mark.parametrize("algorithm", ["fedavg", pytest.param("pfedme", marks=pytest.mark.full)])
@pytest.mark.few_cases
@pytest.mark.full
def test_a_client_comes_back_as_another_node(prepared, tmp_path, capsys, algorithm):
    """Flower may give it another number, and may not know yet that the old node is gone."""
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))

    def move(node, message, reply):
        if message.metadata.group_id == "2" and 301 not in grid.nodes:
            grid.nodes[301] = grid.nodes[101]
        return reply

    grid.tamper = move
    run(grid, tmp_path / "run", algorithm=algorithm, **ALL)
    assert "clinic-1 reconnected under a different node ID" in capsys.readouterr().out
    assert {node for node, message, _ in grid.wire if message.metadata.group_id == "3"} == {100, 301, 102}
    assert_same_models(tmp_path, tmp_path / "run", simulate(made, algorithm, aggregated=3))


# Empty and strange --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_clients_that_cannot_take_part_are_reported_and_left_alone(prepared, tmp_path, capsys):
    _, path = prepared
    (tmp_path / "empty.csv").write_text("a,b,label\n")
    (tmp_path / "other.csv").write_text("a,b,label\n" + "1,2,0\n2,1,1\n" * 5)
    nodes = nodes_of(path, 3, tmp_path)
    own = {name: {"name": name, "home": str(tmp_path / name)} for name in ("empty", "other", "nothing", "twin", "typo")}
    nodes[200] = {**own["empty"], "dataset": str(tmp_path / "empty.csv")}
    nodes[201] = {**own["other"], "dataset": str(tmp_path / "other.csv")}
    nodes[202] = own["nothing"]
    nodes[203] = {**own["twin"], "dataset": str(path), "partition-id": 1}
    nodes[204] = {**own["typo"], "datasett": str(path)}
    grid = Loopback(nodes)
    summary = run(grid, tmp_path / "run", algorithm="fedavg", rounds=2, **ALL)
    said = capsys.readouterr().out
    assert "empty.csv has no rows" in said  # on the client
    assert "empty was refused: it has no data" in said
    assert "other was refused: its data differ from the others'" in said
    assert "nothing was refused: it has no data" in said
    assert "twin was refused: its partition-id 1 is already that of clinic-1" in said
    assert "unknown 'datasett'; did you mean 'dataset'?" in said
    assert summary["federation"]["clients"] == ["clinic-0", "clinic-1", "clinic-2"]
    later = [node for node, message, _ in grid.wire if message.metadata.message_type != "query.meet"]
    assert set(later) == {100, 101, 102}


@pytest.mark.full
def test_a_repaired_client_is_asked_again(prepared, tmp_path, capsys):
    """Under the same number: with node keys, Flower gives it no other."""
    _, path = prepared
    nodes = nodes_of(path, 3, tmp_path)
    right, wrong = nodes[102], {**nodes[102], "dataset": str(tmp_path / "nowhere.fed")}
    grid = Loopback({**nodes, 102: wrong})

    def repair(node, message, reply):
        if message.metadata.group_id == "1":
            grid.nodes.pop(102, None)
        if message.metadata.group_id == "2":
            grid.nodes[102] = right
        return reply

    grid.tamper = repair
    summary = run(grid, tmp_path / "run", algorithm="fedavg", rounds=4, **ALL)
    assert "clinic-2 was refused: its data cannot be used" in capsys.readouterr().out
    assert summary["federation"]["clients"] == ["clinic-0", "clinic-1", "clinic-2"]
    assert summary["data"]["train_samples"] == 47


@pytest.mark.full
def test_a_silent_node_does_not_hold_up_every_round(prepared, tmp_path, capsys):
    _, path = prepared
    asked = []

    def silent(node, message):
        asked.append((node, message.metadata.message_type))
        return node == 999

    nodes = {**nodes_of(path, 3, tmp_path), 999: {}}
    run(Loopback(nodes, loses=silent), tmp_path / "run", algorithm="fedavg", deadline=0.3, **ALL)
    assert asked.count((999, "query.meet")) == 1
    assert "node 999 was refused: no reply within 0.3 s" in capsys.readouterr().out


@pytest.mark.full
def test_clients_with_their_own_files_and_label_names(tmp_path):
    """Two clients that know different labels number them alike, and the server's model has room for all."""
    rng = np.random.default_rng(0)
    for client, known in (("a", ("cat", "dog")), ("b", ("dog", "emu"))):
        rows = [f"{rng.normal():.3f},{rng.normal():.3f},{known[i % 2]}" for i in range(12)]
        (tmp_path / f"{client}.csv").write_text("\n".join(["x,y,label", *rows]) + "\n")
    nodes = {
        number: {"dataset": str(tmp_path / f"{name}.csv"), "name": name, "home": str(tmp_path / f"home-{name}")}
        for number, name in ((1, "a"), (2, "b"))
    }
    run(Loopback(nodes), tmp_path / "run", algorithm="mg-meta", rounds=1, labels="cat,dog,emu", aggregated=2)
    model = trained_model.load_model(next((tmp_path / "home-b").glob("*/personal.safetensors")))
    assert model.about["labels"] == ["cat", "dog", "emu"]
    assert set(model.predict(rng.normal(size=(20, 2)))) <= {"cat", "dog", "emu"}
    assert (model.about["kind"], model.about["client_name"]) == ("personal", "b")


@pytest.mark.full
def test_rejected_from_the_start_where_all_train(prepared, tmp_path):
    """Its state is that of the first message, as in the simulation, and not of the one after it."""
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), spoil_upload(to_nan, round_="1"))
    run(grid, tmp_path / "run", algorithm="pfedme", rounds=2, **ALL)
    first = next(message for node, message, _ in grid.wire if node == 101 and message.metadata.group_id == "1")
    sent = {name: array.numpy() for name, array in first.content["message"].items()}
    for name, array in tensors.named(kept(tmp_path, 1, made, "pfedme").before.state.theta).items():
        np.testing.assert_array_equal(array, sent[name])


# Homes, locks and logs ----------------------------------------------------------------------------------------------


def test_an_identity_is_drawn_once(tmp_path):
    for i in range(5):
        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(lambda _, i=i: Home(tmp_path / str(i)).identity(), range(4)))) == 1
    assert set(json.loads((tmp_path / "0" / "client.json").read_text())) == {"client"}


def test_a_folder_in_use_is_waited_for(tmp_path):
    started = time.monotonic()
    with locks.locked(tmp_path), pytest.raises(locks.InUse), locks.locked(tmp_path, 0.5):
        pass
    assert time.monotonic() - started >= 0.5


def test_a_mistake_is_one_line_in_flowers_log(caplog):
    """And what is not the user's mistake keeps its traceback."""
    logger = logging.getLogger("flwr")
    logger.addFilter(server._in_one_line)
    logger.propagate, before = True, logger.propagate
    try:
        for problem in (SettingError("unknown algorithm 'x'"), ZeroDivisionError("oh")):
            logger.error("ServerApp raised an exception", exc_info=problem)
    finally:
        logger.removeFilter(server._in_one_line)
        logger.propagate = before
    mistake, fault = caplog.records
    assert (mistake.getMessage(), mistake.exc_info) == ("pfedbred: unknown algorithm 'x'", None)
    assert fault.exc_info[0] is ZeroDivisionError
