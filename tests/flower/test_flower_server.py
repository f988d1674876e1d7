"""Clients that are late, gone, empty or strange; and a server that is killed and goes on."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import Loopback, assert_close, assert_same_models, kept, nodes_of, personal, run, simulate

from pfedbred.errors import SettingError
from pfedbred.flower import server
from pfedbred.flower.roster import Roster
from pfedbred.flower.run_config import understood
from pfedbred.io import tensors
from pfedbred.runs import checkpoints, locks, saved_models

ALL = {"clients": 3, "aggregated": 3}
FACTS = {
    "dataset": "d",
    "shape": [2],
    "classes": 2,
    "labels": None,
    "features": None,
    "words": None,
    "vocabulary": None,
}
FACTS |= {"train": 3, "test": 1}


class Killed(BaseException):
    """The server's process is gone."""


def models(tmp_path, out):
    """All weights of G and of every P, by name."""
    files = {"G": out / "global.safetensors"}
    named = {name: tensors.named(saved_models.load_model(path).weights) for name, path in files.items()}
    return {**named, **{f"P{i}": tensors.named(personal(tmp_path, i).weights) for i in range(3)}}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for model, arrays in one.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(np.asarray(array), np.asarray(other[model][name]))


def lines(out):
    """metrics.jsonl but for the time."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


@pytest.mark.parametrize(("algorithm", "dies"), [("mg-meta", 5), pytest.param("scaffold", 8, marks=pytest.mark.slow)])
def test_a_server_that_is_killed_goes_on_with_the_same_bits(prepared, tmp_path, algorithm, dies):
    """It dies in the middle of a round, when ``dies`` training messages have been answered and not been heard."""
    _, path = prepared
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(Loopback(nodes_of(path, 3, whole)), whole / "run", algorithm=algorithm, **ALL)

    answered = []

    def die(node, message, reply):
        answered.append(message.metadata.message_type)
        if answered.count("train") == dies and answered[-1] == "train":
            raise Killed
        return reply

    with pytest.raises(Killed):
        run(Loopback(nodes_of(path, 3, broken), die), broken / "run", algorithm=algorithm, **ALL)
    assert not (broken / "run" / "summary.json").exists()
    again = {node + 100: config for node, config in nodes_of(path, 3, broken).items()}  # Flower gives them new numbers
    run(Loopback(again), broken / "run", algorithm=algorithm, **ALL)
    assert_same_bits(models(whole, whole / "run"), models(broken, broken / "run"))
    assert lines(whole / "run") == lines(broken / "run")


def test_killed_before_the_last_evaluation(prepared, tmp_path):
    _, path = prepared

    def die(node, message, reply):
        if message.metadata.message_type == "evaluate":
            raise Killed
        return reply

    out = tmp_path / "run"
    with pytest.raises(Killed):
        run(Loopback(nodes_of(path, 3, tmp_path), die), out, algorithm="fedavg", **ALL)
    assert [line["round"] for line in lines(out)] == [1, 2]
    run(Loopback(nodes_of(path, 3, tmp_path)), out, algorithm="fedavg", **ALL)
    assert [line["round"] for line in lines(out)] == [1, 2, 3]


def test_a_run_goes_on_with_its_own_settings_only(prepared, tmp_path):
    _, path = prepared
    out = tmp_path / "run"
    grid = Loopback(nodes_of(path, 3, tmp_path))
    run(grid, out, algorithm="fedavg", rounds=1, **ALL)
    with pytest.raises(SettingError, match="holds a finished run"):
        run(grid, out, algorithm="fedavg", rounds=1, **ALL)
    (out / "summary.json").unlink()
    with pytest.raises(SettingError, match="algorithm 'fedavg', now 'pfedme'"):
        run(grid, out, algorithm="pfedme", rounds=1, **ALL)
    # A checkpoint from before columns had names.
    _, round_, facts, arrays = checkpoints.read(checkpoints.files(out)[0])
    del facts["roster"]["schema"]["features"]
    checkpoints.write(out, round_, facts, {name: np.array(array) for name, array in arrays.items()})
    assert run(grid, out, algorithm="fedavg", rounds=1, **ALL)["rounds"] == 1


@pytest.mark.slow
def test_a_damaged_checkpoint_is_told_of_and_the_one_before_is_used(prepared, tmp_path, capsys):
    _, path = prepared
    whole, out = tmp_path / "whole" / "run", tmp_path / "run"
    run(Loopback(nodes_of(path, 3, tmp_path / "whole")), whole, algorithm="fedavg", rounds=2, **ALL)
    run(Loopback(nodes_of(path, 3, tmp_path)), out, algorithm="fedavg", rounds=2, **ALL)
    (out / "summary.json").unlink()
    newest = checkpoints.files(out)[0]
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    run(Loopback(nodes_of(path, 3, tmp_path)), out, algorithm="fedavg", rounds=2, **ALL)
    assert "looking for the one before" in capsys.readouterr().out
    assert lines(whole) == lines(out)


def test_a_late_client_is_waited_for_until_the_deadline_and_goes_on_with_its_theta(
    prepared,
    tmp_path,
    capsys,
):
    """Its second round is lost on the way: the others' average is the server's, and what it learnt stays with it."""
    made, path = prepared

    def lose(node, message, reply):
        late = node == 102 and message.metadata.message_type == "train" and message.metadata.group_id == "2"
        return None if late else reply

    grid = Loopback(nodes_of(path, 3, tmp_path), lose)
    out = tmp_path / "run"
    summary = run(grid, out, algorithm="pfedme", deadline=0.3, **ALL)
    assert "round 2: no answer within 0.3 s from clinic-2" in capsys.readouterr().out
    assert summary["left_out"] == [{}]
    assert summary["skipped_rounds"] == [0]
    simulated = simulate(made, "pfedme", aggregated=3)
    assert_close(personal(tmp_path, 2).weights, kept(tmp_path, 2, made, "pfedme").after.state.theta)
    with pytest.raises(AssertionError):  # G is another than with all three
        assert_close(saved_models.load_model(out / "global.safetensors").weights, simulated.global_model())


def test_too_few_clients_are_waited_for(prepared, tmp_path, capsys, monkeypatch):
    _, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))
    gone = grid.nodes.pop(102)
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            grid.nodes[102] = gone

    monkeypatch.setattr(server.time, "sleep", wait)
    run(grid, tmp_path / "run", algorithm="fedavg", rounds=1, min_clients=3, **ALL)
    said = capsys.readouterr().out
    assert said.count("waiting for clients: 2 of at least 3 are here") == 1
    assert len(waited) >= 3


def test_clients_that_cannot_take_part_are_told_of_and_left_alone(prepared, tmp_path, capsys):
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
    assert "empty does not take part: it has no data" in said
    assert "other does not take part: its data are not like the others'" in said
    assert "nothing does not take part: it has no data" in said
    assert "twin does not take part: its partition-id 1 is that of clinic-1" in said
    assert "unknown 'datasett'; did you mean 'dataset'?" in said
    assert summary["federation"]["clients"] == ["clinic-0", "clinic-1", "clinic-2"]
    later = [node for node, message, _ in grid.wire if message.metadata.message_type != "query.meet"]
    assert set(later) == {100, 101, 102}


def test_files_of_ones_own_with_names_for_labels(tmp_path):
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
    model = saved_models.load_model(next((tmp_path / "home-b").glob("*/personal.safetensors")))
    assert model.about["labels"] == ["cat", "dog", "emu"]
    assert set(model.predict(rng.normal(size=(20, 2)))) <= {"cat", "dog", "emu"}
    assert (model.about["kind"], model.about["client_name"]) == ("personal", "b")


def test_a_client_comes_back_under_another_node(prepared, tmp_path, capsys):
    """Flower may give it another number, and may not know yet that the old node is gone."""
    made, path = prepared
    grid = Loopback(nodes_of(path, 3, tmp_path))

    def move(node, message, reply):
        if message.metadata.group_id == "2" and 301 not in grid.nodes:
            grid.nodes[301] = grid.nodes[101]
        return reply

    grid.tamper = move
    run(grid, tmp_path / "run", algorithm="pfedme", **ALL)
    assert "clinic-1 is back, as another node" in capsys.readouterr().out
    assert {node for node, message, _ in grid.wire if message.metadata.group_id == "3"} == {100, 301, 102}
    assert_same_models(tmp_path, tmp_path / "run", simulate(made, "pfedme", aggregated=3))


def test_numbers_are_given_once():
    said = []
    roster = Roster(None, said.append)
    facts = FACTS
    one, two = ({**facts, "client": each, "name": each, "number": None} for each in "ab")
    roster.welcome({7: two, 9: one})
    assert [roster.members[i].name for i in (0, 1)] == ["a", "b"]  # by name, not by node
    roster.close()
    assert roster.clients == 2
    roster.welcome({11: {**one, "client": "c", "name": "c"}})
    assert said == ["c does not take part: the federation has its 2 clients"]
    again = Roster(None, said.append)
    again.restore(json.loads(json.dumps(roster.facts())))
    again.welcome({21: one})
    assert again.nodes == {0: 21}
    assert again.present([21, 22]) == [0]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({}, "the run config needs out"),
        ({"out": "x", "algoritm": "fedavg"}, "did you mean 'algorithm'"),
        ({"out": "x", "clients": 2, "min-clients": 3}, "min-clients must be at most clients, 2"),
        ({"out": "x", "deadline": -1.0}, "deadline must be a number > 0"),
        ({"out": "x", "settings": "lam"}, "NAME=VALUE"),
        ({"out": "x", "labels": "cat,cat"}, "labels must be different names"),
        ({"out": "x", "labels": "cat,dog", "classes": 5}, "as many as classes says"),
        ({"out": "x", "deadline": 0}, "deadline must be a number > 0"),
    ],
)
def test_a_run_config_that_cannot_work_is_refused(config, complaint):
    with pytest.raises(SettingError, match=complaint):
        understood(config)


def test_the_run_config_names_the_experiment():
    options, fields = understood(
        {"out": "~/x", "algorithm": "pfedme", "settings": "lam=30 R=5", "batch-size": 7, "aggregated": 0, "seed": 0}
        | {"outliers": 0.0, "select": 3, "labels": "cat, dog"}
    )
    assert options.labels == ["cat", "dog"]
    assert fields == {
        "algorithm": "pfedme",
        "batch_size": 7,
        "seed": 0,
        "outliers": 0.0,
        "select": "3",
        "settings": {"lam": 30, "R": 5},
    }
    assert options.min_clients == 2
    assert options.clients is None


def test_a_server_names_no_file_on_a_client(prepared, tmp_path):
    _, path = prepared
    np.save(tmp_path / "sigma.npy", np.eye(21))
    settings = f"sigma={tmp_path / 'sigma.npy'} prior=gaussian"
    with pytest.raises(SettingError, match="clients do not have that file"):
        run(Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "run", algorithm="pfedbred", settings=settings, **ALL)


def test_what_a_client_says_of_itself_has_limits():
    facts = {**FACTS, "client": "a", "name": "a", "number": None}
    for wrong in (
        *({"shape": [2**20, 2**20]}, {"shape": [2**62] * 20}, {"shape": []}, {"classes": 10**9}, {"classes": 0}),
        *({"words": 10**12}, {"words": 0}, {"train": 2**40}, {"train": 0}, {"number": 10**9}, {"client": "a" * 101}),
        {"labels": ["one"]},
    ):
        said = []
        roster = Roster(None, said.append)
        roster.welcome({1: {**facts, **wrong}})
        assert not roster.members
        assert "a does not take part" in said[0]


def test_a_folder_in_use_is_waited_for(tmp_path):
    begun = server.time.monotonic()
    with locks.locked(tmp_path), pytest.raises(locks.InUse), locks.locked(tmp_path, 0.5):
        pass
    assert 0.5 <= server.time.monotonic() - begun < 5


def test_personal_models_are_not_the_servers_to_export(prepared, tmp_path):
    _, path = prepared
    run(Loopback(nodes_of(path, 3, tmp_path)), tmp_path / "run", algorithm="fedavg", rounds=1, **ALL)
    with pytest.raises(SettingError, match=r"personal models are with their clients, and G is .*global\.safetensors"):
        saved_models.export(tmp_path / "run", client=1)
