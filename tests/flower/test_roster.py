"""Who takes part: numbers, and data that fit together."""

import json

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import FACTS, Loopback, nodes_of

from pfedbred.flower.gathering import Gathering
from pfedbred.flower.roster import Roster
from pfedbred.flower.run_config import parse
from pfedbred.flower.wire import PROTOCOL


def told(name, **facts):
    return {**FACTS, "client": name, "name": name, **facts}


@pytest.fixture
def said():
    return []


@pytest.fixture
def roster(said):
    return Roster(None, said.append)


def names(roster):
    return [member.name for member in roster.members.values()]


def introduced(nodes, folder):
    """The roster after these nodes have introduced themselves."""
    options, _ = parse({"out": str(folder / "run"), "min-clients": 1})
    grid, roster = Loopback(nodes), Roster(None, lambda line: print(line))
    Gathering(grid, options, roster).introduce(list(nodes))
    return roster, grid


def test_numbers_are_given_once(roster, said):
    roster.admit({7: told("b"), 9: told("a")})
    assert [roster.members[i].name for i in (0, 1)] == ["a", "b"]  # by name, not by node
    roster.close()
    assert roster.clients == 2
    roster.admit({11: told("c")})
    assert said == ["c was refused: the federation is complete with 2 clients"]
    again = Roster(None, said.append)
    again.restore(json.loads(json.dumps(roster.facts())))
    again.admit({21: told("a")})
    assert again.nodes == {0: 21}
    assert again.present([21, 22]) == [0]


def test_a_server_may_be_there_before_its_clients():
    roster = Roster(None, print, agreeing=2)
    assert roster.progress([], 2) == "0 of at least 2 are connected"


def test_what_a_client_tells_of_itself_has_limits(said):
    for wrong in (
        *({"shape": [2**20, 2**20]}, {"shape": [2**62] * 20}, {"shape": []}, {"classes": 10**9}, {"classes": 0}),
        *({"words": 10**12}, {"words": 0}, {"train": 2**40}, {"train": 0}, {"number": 10**9}, {"client": "a" * 101}),
        {"labels": ["one"]},
    ):
        said.clear()
        roster = Roster(None, said.append)
        roster.admit({1: told("a", **wrong)})
        assert not roster.members
        assert "a was refused" in said[0]


def test_other_versions_are_refused(roster, said):
    older, newer = told("old"), told("new", protocol=PROTOCOL + 1)
    del older["protocol"]
    roster.admit({1: older, 2: newer, 3: told("same")})
    assert names(roster) == ["same"]
    ours = f"not {PROTOCOL}"
    assert said == [
        f"new was refused: its pfedbred is newer than the server's: protocol version {PROTOCOL + 1}, {ours}",
        f"old was refused: its pfedbred is older than the server's: protocol version 1, {ours}",
    ]


@pytest.mark.parametrize("version", ["x", None, [2], 2.5])
def test_a_version_that_is_no_number_is_refused(roster, said, version):
    roster.admit({1: told("odd", protocol=version), 2: told("same")})
    assert names(roster) == ["same"]
    assert "odd was refused: its protocol version must be a number" in said[0]


def test_who_has_taken_part_still_may_though_the_limit_is_higher_now(roster, said):
    roster.admit({1: told("a", train=2), 2: told("b", train=9)})
    again = Roster(None, said.append, min_samples=5)
    again.restore(json.loads(json.dumps(roster.facts())))
    again.admit({3: told("a", train=2), 4: told("b", train=9)})
    assert again.nodes == {0: 3, 1: 4}


def test_a_dataset_is_never_taken_for_an_import_path(roster):
    roster.admit({1: told("a", dataset="os:getcwd")})
    roster.close()
    assert roster.description().name == "os-getcwd"


def test_the_kind_of_data_that_most_clients_have_counts(roster, said):
    roster.admit({1: told("a", classes=9), 2: told("b"), 3: told("c")})
    assert names(roster) == ["b", "c"]
    assert "classes 9, not 2; set classes= or labels= in the run config" in said[0]


def test_columns_in_another_order_are_noticed(roster, said):
    """Models know columns by their places. Arrays, whose columns have no names, fit any table."""
    orders = {"a": ["age", "dose"], "b": ["dose", "age"], "c": ["age", "dose"], "d": None, "e": ["a", "b", "c"]}
    roster.admit({node: told(name, features=own) for node, (name, own) in enumerate(orders.items())})
    assert names(roster) == ["a", "c", "d"]
    assert "column 0 dose, not age; give the columns in the others' order with features=" in said[0]
    assert len(said) == 2
    roster.close()
    assert roster.description().features == ("age", "dose")


def test_the_first_table_names_the_columns(roster, said):
    """Where the first clients had arrays."""
    orders = {"array": None, "a": ["age", "dose"], "b": ["dose", "age"]}
    for node, (name, own) in enumerate(orders.items()):
        roster.admit({node: told(name, features=own)})
    assert names(roster) == ["array", "a"]
    assert "b was refused" in said[0]


def test_names_of_single_columns_do_not_matter(roster):
    roster.admit({i: told(each, shape=[28, 28], features=[each]) for i, each in enumerate("ab")})
    assert len(roster.members) == 2


def test_two_nodes_cannot_share_a_home(prepared, tmp_path, capsys):
    nodes = nodes_of(prepared[1], 3, tmp_path)
    nodes[102]["home"] = nodes[101]["home"]
    roster, _ = introduced(nodes, tmp_path)
    assert "clinic-2 was refused: it uses the same home folder as clinic-1; give each node" in capsys.readouterr().out
    assert names(roster) == ["clinic-0", "clinic-1"]


def test_texts_need_one_vocabulary(tmp_path, capsys):
    for client, words in (("a", "apple pear plum fig"), ("b", "apple pear plum fig"), ("c", "dog cat cow emu")):
        rows = [f"{word} {word},{i % 2}" for i, word in enumerate(words.split() * 3)]
        (tmp_path / f"{client}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    nodes = {
        i: {"dataset": str(tmp_path / f"{name}.csv"), "name": name, "home": str(tmp_path / f"home-{name}")}
        for i, name in enumerate("abc")
    }
    roster, _ = introduced(nodes, tmp_path)
    assert "c was refused: its data differ from the others': vocabulary" in capsys.readouterr().out
    assert names(roster) == ["a", "b"]


def test_problems_with_a_clients_files_stay_in_its_own_log(tmp_path):
    (tmp_path / "p.csv").write_text("secret,label\n" + "".join(f"{1.7e9 + i},{i % 2}\n" for i in range(12)))
    _, grid = introduced(
        {1: {"dataset": str(tmp_path / "p.csv"), "name": "a", "home": str(tmp_path / "home")}}, tmp_path
    )
    ((_, _, reply),) = grid.wire
    assert json.loads(reply.content["facts"]["json"]) == {
        "problem": "its data cannot be used: see its own log",
        "name": "a",
    }
