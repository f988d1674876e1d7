"""What data a federation has is decided by most of its first clients, not by the first one."""

import time

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import FACTS, Loopback, nodes_of, run

from pfedbred.flower.roster import Roster
from pfedbred.flower.run_config import parse


def told(name, **facts):
    return {**FACTS, "client": name, "name": name, **facts}


@pytest.fixture
def said():
    return []


def names(roster):
    return [member.name for member in roster.members.values()]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("min_clients", [1, 2])
@pytest.mark.few_cases
def test_an_odd_client_that_comes_first_turns_nobody_away(prepared, tmp_path, capsys, monkeypatch, min_clients, leaves):
    """The others come one by one, whether it is still there or not."""
    (tmp_path / "odd.csv").write_text("a,b,label\n" + "1,2,0\n2,1,1\n" * 6)
    odd = {"dataset": str(tmp_path / "odd.csv"), "name": "odd", "home": str(tmp_path / "odd")}
    grid, coming = Loopback({900: odd}), list(nodes_of(prepared[1], 3, tmp_path).items())
    waits, sleep = [], time.sleep

    def wait(seconds):
        if seconds < 1:  # for a reply, which a busy machine may take long to give
            sleep(seconds)
            return
        waits.append(seconds)
        assert len(waits) < 100, "the server waits for ever"
        if leaves:
            grid.nodes.pop(900, None)
        if coming:
            node, config = coming.pop(0)
            grid.nodes[node] = config

    monkeypatch.setattr(time, "sleep", wait)
    summary = run(
        grid, tmp_path / "run", algorithm="fedavg", rounds=4, clients=3, min_clients=min_clients, aggregated=1
    )
    assert summary["federation"]["clients"] == ["clinic-0", "clinic-1", "clinic-2"][: 3 - len(coming)]
    assert len(summary["federation"]["clients"]) >= 2
    assert summary["data"]["classes"] == prepared[0].classes
    printed = capsys.readouterr().out
    assert "waiting for clients: 1 of at least 2 are connected" in printed
    if not leaves:
        assert "odd was refused: its data differ from the others': shape [2], not" in printed


def test_a_tie_is_waited_out_and_the_log_names_who_differs(said):
    roster = Roster(None, said.append, agreeing=2)
    roster.admit({1: told("a"), 2: told("b", classes=9)})
    assert not roster.members
    assert roster.progress([1, 2], 2) == (
        "2 of at least 2 are connected; the data of b does not match that of a: classes 9, not 2; "
        "set classes= or labels= in the run config"
    )
    roster.admit({3: told("c", classes=9), 4: told("d")})
    assert not roster.members  # two of each
    assert roster.unknown([1, 2, 3, 4]) == []
    assert roster.unknown([1, 3, 4]) == []  # one leaves
    roster.admit({})
    assert names(roster) == ["a", "d"]
    assert said == [
        "c was refused: its data differ from the others': classes 9, not 2; set classes= or labels= in the run config"
    ]


def test_a_client_that_reconnects_is_not_two(said):
    """Flower may not know yet that its old node is gone."""
    roster = Roster(None, said.append, agreeing=2)
    roster.admit({1: told("odd", classes=9)})
    roster.admit({2: told("odd", classes=9)})
    assert not roster.members
    roster.admit({3: told("a"), 4: told("b")})
    assert names(roster) == ["a", "b"]
    assert len(said) == 1


def test_one_client_is_enough_only_for_a_federation_of_one(said):
    def agreeing(**config):
        return parse({"out": "run", **{name.replace("_", "-"): value for name, value in config.items()}})[0].agreeing

    assert agreeing(clients=1) == 1
    assert agreeing(min_clients=1) == 2
    assert agreeing(min_clients=1, clients=10) == 2
    assert agreeing(clients=10) == 10
    roster = Roster(None, said.append, agreeing=2)
    roster.admit({1: told("a")})
    assert roster.progress([1], 1) == "1 of at least 2 are connected; a federation of one needs clients=1"


# Clients with few samples -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_client_with_too_few_samples_is_refused_in_both_logs(prepared, tmp_path, capsys):
    nodes = nodes_of(prepared[1], 3, tmp_path)  # the first has 7 training samples
    summary = run(Loopback(nodes), tmp_path / "run", algorithm="fedavg", rounds=1, clients=3, min_samples=8)
    printed = capsys.readouterr().out.splitlines()
    why = "it has 7 training samples, but min-samples is 8"
    assert printed.count(f"pfedbred: {why}") == 1  # the client's log
    assert printed.count(f"pfedbred: clinic-0 was refused: {why}") == 1
    assert summary["federation"]["clients"] == ["clinic-1", "clinic-2"]
    assert not (tmp_path / "home-0" / "client.json").exists()


def test_the_server_counts_samples_itself(said):
    """A client of an earlier version does not know of a minimum."""
    roster = Roster(None, said.append, min_samples=parse({"out": "run"})[0].min_samples)
    roster.admit({1: told("tiny", train=4), 2: told("small", train=5)})
    assert names(roster) == ["small"]
    assert said == ["tiny was refused: it has 4 training samples, but min-samples is 5"]
