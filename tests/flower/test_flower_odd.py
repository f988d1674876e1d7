"""What clients, networks and run configs can do wrong, and what must not end a run."""

import json
import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from flwr.app import Array, Error, Message
from flwr.common.constant import ErrorCode
from support.flower_grid import Loopback, kept, nodes_of, run
from test_flower_server import ALL, FACTS, lines

from pfedbred.errors import SettingError
from pfedbred.flower import server
from pfedbred.flower.client_home import Home
from pfedbred.flower.roster import Roster
from pfedbred.flower.run_config import understood
from pfedbred.io import tensors


def test_a_round_that_nobody_answers_is_not_divergence(prepared, tmp_path, capsys):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), loses=lambda node, message: message.metadata.group_id == "2")
    summary = run(grid, tmp_path / "run", algorithm="fedavg", deadline=0.2, **ALL)
    said = capsys.readouterr().out
    assert "round 1: nobody has scored it" in said
    assert "round 2 is skipped: 0 of 3 uploads can be used" in said
    assert (summary["diverged"], summary["skipped_rounds"]) == (None, [1])
    assert [line["round"] for line in lines(tmp_path / "run")] == [2, 3]
    assert lines(tmp_path / "run")[-1]["skipped_in_row"] == [0]


def _losing(clients):
    def lie(node, message, reply):
        facts = reply.content.config_records["facts"]
        if node in clients and '"scores"' in facts["json"]:
            said = json.loads(facts["json"])
            said["scores"]["personal_train"]["loss"] = None
            facts["json"] = json.dumps(said)
        return reply

    return lie


def test_one_clients_loss_is_not_everybodys(prepared, tmp_path, capsys):
    _, path = prepared
    summary = run(Loopback(nodes_of(path, 3, tmp_path), _losing([101])), tmp_path / "run", algorithm="fedavg", **ALL)
    assert "no scores of clinic-1: its losses are not finite" in capsys.readouterr().out
    assert summary["diverged"] is None
    last = lines(tmp_path / "run")[-1]["personal"]["test"]["client_accuracy"][0]
    assert [each is None for each in last] == [False, True, False]


def test_if_all_losses_are_lost_the_run_has_diverged(prepared, tmp_path, capsys):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path), _losing([100, 101, 102]))
    summary = run(grid, tmp_path / "run", algorithm="fedavg", **ALL)
    assert summary["diverged"] == 1
    assert "fedavg diverged: its loss is not finite; stopped at round 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("algorithm", "sound"), [("scaffold", True), pytest.param("pfedme", False, marks=pytest.mark.slow)]
)
def test_a_message_that_is_lost_undoes_nothing_and_mends_nothing(prepared, tmp_path, algorithm, sound):
    """What the server said of round 1 holds in round 3, if the client never heard of round 2."""
    made, path = prepared

    def spoil(node, message, reply):
        if not sound and node == 101 and message.metadata.group_id == "1" and "upload" in reply.content:
            record = reply.content["upload"]
            name = next(iter(record))
            record[name] = Array(np.full_like(record[name].numpy(), np.nan))
        return reply

    loses = lambda node, message: node == 101 and message.metadata.group_id == "2"  # noqa: E731
    grid = Loopback(nodes_of(path, 3, tmp_path), spoil, loses)
    run(grid, tmp_path / "run", algorithm=algorithm, deadline=0.2, eval_every=3, **ALL)
    found = kept(tmp_path, 1, made, algorithm)
    assert found.round == 3
    assert bool(found.before.met) == sound
    assert int(found.before.drawn) > 0


def test_floating_answers_of_flowers_own_are_no_answers(prepared, tmp_path):
    """It says so itself when a node is gone: that is not the client's doing."""
    _, path = prepared

    def gone(node, message, reply):
        lost = node == 101 and message.metadata.group_id == "2"
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message) if lost else reply

    summary = run(Loopback(nodes_of(path, 3, tmp_path), gone), tmp_path / "run", algorithm="fedavg", **ALL)
    assert summary["left_out"] == [{}]


def test_who_is_repaired_is_asked_again(prepared, tmp_path, capsys):
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
    assert "clinic-2 does not take part: its data cannot be used" in capsys.readouterr().out
    assert summary["federation"]["clients"] == ["clinic-0", "clinic-1", "clinic-2"]
    assert summary["data"]["train_samples"] == 39


def test_a_silent_node_is_told_of_and_does_not_hold_up_every_round(prepared, tmp_path, capsys):
    _, path = prepared
    asked = []

    def silent(node, message):
        asked.append((node, message.metadata.message_type))
        return node == 999

    nodes = {**nodes_of(path, 3, tmp_path), 999: {}}
    run(Loopback(nodes, loses=silent), tmp_path / "run", algorithm="fedavg", deadline=0.3, **ALL)
    assert asked.count((999, "query.meet")) == 1
    assert "node 999 does not take part: it does not answer within 0.3 s" in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", [pytest.param("fedavg", marks=pytest.mark.slow), "mime"])
def test_the_clients_that_are_selected_are_waited_for(prepared, tmp_path, capsys, monkeypatch, algorithm):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))
    gone = grid.nodes.pop(102)
    monkeypatch.setattr(server.time, "sleep", lambda seconds: grid.nodes.setdefault(102, gone))
    summary = run(grid, tmp_path / "run", algorithm=algorithm, select=2, clients=3, rounds=1)
    assert capsys.readouterr().out.count("waiting for one of the clients that select names") == 1
    assert summary["skipped_rounds"] == [0]


def test_two_nodes_with_one_home_are_one_too_many(prepared, tmp_path, capsys):
    _, path = prepared
    nodes = nodes_of(path, 3, tmp_path)
    nodes[102]["home"] = nodes[101]["home"]
    coordinator = server.Coordinator(Loopback(nodes), *understood({"out": str(tmp_path / "run")}))
    coordinator._meet(list(nodes))
    assert "clinic-2 does not take part: it has the home of clinic-1: give each node" in capsys.readouterr().out
    assert [member.name for member in coordinator._roster.members.values()] == ["clinic-0", "clinic-1"]


def test_an_identity_is_made_once(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    for i in range(5):
        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(lambda _, i=i: Home(tmp_path / str(i)).identity(), range(4)))) == 1


def test_what_most_clients_data_are_like_counts(capsys):
    said = []
    roster = Roster(None, said.append)
    facts = [{**FACTS, "client": each, "name": each, "number": None} for each in "abc"]
    facts[0]["classes"] = 9
    roster.welcome(dict(enumerate(facts)))
    assert [member.name for member in roster.members.values()] == ["b", "c"]
    assert "classes 9, not 2; set classes= or labels= in the run config" in said[0]


def test_columns_in_another_order_are_noticed():
    """Models know columns by their places. Arrays, whose columns have no names, are taken at their word."""
    said = []
    roster = Roster(None, said.append)
    orders = {"a": ["age", "dose"], "b": ["dose", "age"], "c": ["age", "dose"], "d": None, "e": ["a", "b", "c"]}
    facts = [{**FACTS, "client": name, "name": name, "number": None, "features": own} for name, own in orders.items()]
    roster.welcome(dict(enumerate(facts)))
    assert [member.name for member in roster.members.values()] == ["a", "c", "d"]
    assert "column 0 dose, not age; name the columns in the others' order with features=" in said[0]
    assert len(said) == 2
    roster.close()
    assert roster.description().features == ("age", "dose")


def test_the_first_table_names_the_columns():
    """Where those who came first had arrays."""
    said = []
    roster = Roster(None, said.append)
    orders = {"array": None, "a": ["age", "dose"], "b": ["dose", "age"]}
    for node, (name, own) in enumerate(orders.items()):
        roster.welcome({node: {**FACTS, "client": name, "name": name, "number": None, "features": own}})
    assert [member.name for member in roster.members.values()] == ["array", "a"]
    assert "b does not take part" in said[0]


def test_names_of_single_columns_do_not_matter():
    said = []
    roster = Roster(None, said.append)
    facts = {**FACTS, "shape": [28, 28], "number": None}
    roster.welcome({i: {**facts, "client": each, "name": each, "features": [each]} for i, each in enumerate("ab")})
    assert len(roster.members) == 2


def test_texts_need_one_vocabulary(tmp_path, capsys):
    for client, words in (("a", "apple pear plum fig"), ("b", "apple pear plum fig"), ("c", "dog cat cow emu")):
        rows = [f"{word} {word},{i % 2}" for i, word in enumerate(words.split() * 3)]
        (tmp_path / f"{client}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    nodes = {
        i: {"dataset": str(tmp_path / f"{name}.csv"), "name": name, "home": str(tmp_path / f"home-{name}")}
        for i, name in enumerate("abc")
    }
    coordinator = server.Coordinator(Loopback(nodes), *understood({"out": str(tmp_path / "run")}))
    coordinator._meet(list(nodes))
    assert "c does not take part: its data are not like the others': vocabulary" in capsys.readouterr().out
    assert [member.name for member in coordinator._roster.members.values()] == ["a", "b"]


def test_what_goes_wrong_with_a_clients_files_stays_in_its_own_log(tmp_path):
    (tmp_path / "p.csv").write_text("secret,label\n" + "".join(f"{1.7e9 + i},{i % 2}\n" for i in range(12)))
    grid = Loopback({1: {"dataset": str(tmp_path / "p.csv"), "name": "a", "home": str(tmp_path / "home")}})
    coordinator = server.Coordinator(grid, *understood({"out": str(tmp_path / "run"), "min-clients": 1}))
    coordinator._meet([1])
    ((_, _, reply),) = grid.wire
    assert json.loads(reply.content["facts"]["json"]) == {
        "problem": "its data cannot be used: its own log says more",
        "name": "a",
    }


def test_a_run_goes_on_with_the_clients_it_was_begun_with(prepared, tmp_path):
    _, path = prepared
    out = tmp_path / "run"
    run(Loopback(nodes_of(path, 3, tmp_path)), out, algorithm="fedavg", rounds=1, **ALL)
    (out / "summary.json").unlink()
    with pytest.raises(SettingError, match="begun with other settings: clients 3, now 5"):
        run(Loopback(nodes_of(path, 3, tmp_path)), out, algorithm="fedavg", rounds=1, clients=5, aggregated=3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(SettingError, match="not empty, and holds no run: choose another folder for out"):
        run(Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "full", algorithm="fedavg", rounds=1, **ALL)


def test_counts_are_held_to_what_was_said_before(prepared, tmp_path, capsys):
    _, path = prepared

    def lie(node, message, reply):
        facts = reply.content.config_records["facts"]
        said = json.loads(facts["json"])
        if node == 101 and "scores" in said:
            said["scores"]["test"] = 10**18
        if node == 102 and "moved" in said:
            said |= {"moved": -1.0, "seconds": 1e200}
        facts["json"] = json.dumps(said)
        return reply

    summary = run(Loopback(nodes_of(path, 3, tmp_path), lie), tmp_path / "run", algorithm="fedavg", **ALL)
    said = capsys.readouterr().out
    assert "no scores of clinic-1: it has another number of samples than it said" in said
    assert "clinic-2 is left out: what clinic-2 sent has a length or a time below zero" in said
    assert summary["left_out"] == [{"clinic-2": 3}]


def test_sick_from_the_start_where_all_train(prepared, tmp_path):
    """Its state is that of the first message, as in the simulation, and not of the one after it."""
    made, path = prepared

    def spoil(node, message, reply):
        if node == 101 and message.metadata.group_id == "1" and "upload" in reply.content:
            record = reply.content["upload"]
            name = next(iter(record))
            record[name] = Array(np.full_like(record[name].numpy(), np.nan))
        return reply

    grid = Loopback(nodes_of(path, 3, tmp_path), spoil)
    run(grid, tmp_path / "run", algorithm="pfedme", rounds=2, **ALL)
    first = next(message for node, message, _ in grid.wire if node == 101 and message.metadata.group_id == "1")
    sent = {name: array.numpy() for name, array in first.content["message"].items()}
    for name, array in tensors.named(kept(tmp_path, 1, made, "pfedme").before.state.theta).items():
        np.testing.assert_array_equal(array, sent[name])


def test_a_mistake_is_one_line_in_flowers_log(caplog):
    """And what is no mistake of the user's keeps its traceback."""
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
