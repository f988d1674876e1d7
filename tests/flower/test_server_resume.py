"""A server that was killed is resumed, also from a folder of an earlier version."""

import json

import numpy as np
import pytest
import yaml

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import ALL, Killed, Loopback, assert_same_run, lines, nodes_of, run

from pfedbred.errors import SettingError
from pfedbred.flower import client_home
from pfedbred.io import tensors
from pfedbred.runs import checkpoints


def dying(after):
    """A tamper function: the server dies when so many training replies have been sent, before it has seen the last."""
    left = [after]

    def die(node, message, reply):
        left[0] -= message.metadata.message_type == "train"
        if not left[0]:
            raise Killed
        return reply

    return die


@pytest.fixture(scope="module")
def whole(prepared, tmp_path_factory):
    """An uninterrupted run of fedavg."""
    folder = tmp_path_factory.mktemp("whole")
    run(Loopback(nodes_of(prepared[1], 3, folder)), folder / "run", algorithm="fedavg", **ALL)
    return folder


def killed(path, folder, after, **options):
    with pytest.raises(Killed):
        run(Loopback(nodes_of(path, 3, folder), dying(after)), folder / "run", **options, **ALL)
    assert not (folder / "run" / "summary.json").exists()


def resumed(path, folder, **options):
    nodes = {node + 100: config for node, config in nodes_of(path, 3, folder).items()}  # Flower gives them new numbers
    return run(Loopback(nodes), folder / "run", **options, **ALL)


def run_id(folder):
    return checkpoints.read(checkpoints.files(folder / "run")[0]).facts["run"]


def test_a_killed_server_resumes_with_the_same_bits(prepared, tmp_path, whole, capsys):
    """It dies in the middle of the second round."""
    killed(prepared[1], tmp_path, 5, algorithm="fedavg")
    resumed(prepared[1], tmp_path, algorithm="fedavg")
    assert "resuming after round 1" in capsys.readouterr().out
    assert_same_run(whole, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("algorithm", "after"), [("mg-meta", 5), ("scaffold", 8)])
@pytest.mark.few_cases
def test_a_killed_server_resumes_methods_with_state(prepared, tmp_path, algorithm, after):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(Loopback(nodes_of(prepared[1], 3, whole)), whole / "run", algorithm=algorithm, **ALL)
    killed(prepared[1], broken, after, algorithm=algorithm)
    resumed(prepared[1], broken, algorithm=algorithm)
    assert_same_run(whole, broken)


@pytest.mark.full
def test_killed_in_the_first_round(prepared, tmp_path, whole):
    """The run keeps its id, by which clients know that they have trained in that round already."""
    killed(prepared[1], tmp_path, 2, algorithm="fedavg")
    before = run_id(tmp_path)
    resumed(prepared[1], tmp_path, algorithm="fedavg")
    assert run_id(tmp_path) == before
    assert [each.name for each in (tmp_path / "home-0").iterdir() if each.is_dir()] == [before]
    assert_same_run(whole, tmp_path)


def killed_before_the_last_evaluation(path, folder):
    def die(node, message, reply):
        if message.metadata.message_type == "evaluate":
            raise Killed
        return reply

    with pytest.raises(Killed):
        run(Loopback(nodes_of(path, 3, folder), die), folder / "run", algorithm="fedavg", **ALL)
    assert [line["round"] for line in lines(folder / "run")] == [1, 2]


@pytest.mark.full
def test_killed_before_the_last_evaluation(prepared, tmp_path, whole):
    killed_before_the_last_evaluation(prepared[1], tmp_path)
    resumed(prepared[1], tmp_path, algorithm="fedavg")
    assert_same_run(whole, tmp_path)


@pytest.mark.full
def test_skipped_rounds_are_saved(prepared, tmp_path):
    """Else a client whose update was rejected would not learn of it from a server that was killed then."""
    path = prepared[1]

    def spoil(node, message, reply):
        if "upload" in reply.content:
            del reply.content["upload"]
        if message.metadata.group_id == "3":
            raise Killed
        return reply

    with pytest.raises(Killed):
        run(Loopback(nodes_of(path, 3, tmp_path), spoil), tmp_path / "run", algorithm="fedavg", **ALL)
    saved = checkpoints.read(checkpoints.files(tmp_path / "run")[0])
    assert (saved.round, saved.facts["skipped"], saved.facts["in_row"]) == (2, 2, 2)
    assert saved.facts["verdicts"] == {str(i): [2, False] for i in range(3)}


@pytest.mark.full
def test_a_client_that_comes_when_the_run_is_resumed(prepared, tmp_path):
    """The data of the run may grow: it is not taken for another run."""
    nodes = nodes_of(prepared[1], 3, tmp_path)
    late = nodes.pop(102)
    with pytest.raises(Killed):
        run(Loopback(nodes, dying(4)), tmp_path / "run", algorithm="fedavg", **ALL)
    summary = run(Loopback({**nodes, 102: late}), tmp_path / "run", algorithm="fedavg", **ALL)
    assert summary["federation"]["clients"] == ["clinic-0", "clinic-1", "clinic-2"]
    assert summary["data"]["train_samples"] == 47


@pytest.mark.full
def test_a_run_is_resumed_with_its_own_settings_only(prepared, tmp_path):
    grid, out = Loopback(nodes_of(prepared[1], 3, tmp_path)), tmp_path / "run"
    run(grid, out, algorithm="fedavg", rounds=1, **ALL)
    with pytest.raises(SettingError, match="holds a finished run"):
        run(grid, out, algorithm="fedavg", rounds=1, **ALL)
    (out / "summary.json").unlink()
    with pytest.raises(SettingError, match="algorithm 'fedavg', now 'pfedme'"):
        run(grid, out, algorithm="pfedme", rounds=1, **ALL)
    with pytest.raises(SettingError, match="was run with other settings: clients 3, now 5"):
        run(grid, out, algorithm="fedavg", rounds=1, clients=5, aggregated=3)
    assert run(grid, out, algorithm="fedavg", rounds=1, **ALL)["rounds"] == 1


def test_other_files_are_left_alone(prepared, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(SettingError, match="not empty and holds no run: choose another folder for out"):
        run(Loopback(nodes_of(prepared[1], 3, tmp_path)), tmp_path / "full", algorithm="fedavg", rounds=1, **ALL)


@pytest.mark.full
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(prepared, tmp_path, whole, capsys):
    killed_before_the_last_evaluation(prepared[1], tmp_path)
    newest = checkpoints.files(tmp_path / "run")[0]
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    resumed(prepared[1], tmp_path, algorithm="fedavg")
    said = capsys.readouterr().out
    assert said.count("trying the one before") == 1
    assert "resuming after round 2" in said
    assert_same_run(whole, tmp_path)


# Folders of version 1 -----------------------------------------------------------------------------------------------


def _made_old(folder):
    """Rewrites a run folder and its clients' homes as version 1 wrote them."""
    out = folder / "run"
    config = yaml.safe_load((out / "config.yaml").read_text())
    new_options = ("metrics", "diagnostics")
    (out / "config.yaml").write_text(yaml.safe_dump({k: v for k, v in config.items() if k not in new_options}))
    old_lines = []
    for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()):
        del line["schema"]
        line["left_out"] = line.pop("rejected")
        old_lines.append(json.dumps(line) + "\n")
    (out / "metrics.jsonl").write_text("".join(old_lines))
    for number, path in enumerate(checkpoints.files(out)):
        _, round_, facts, arrays = checkpoints.read(path)
        old = {name: facts[name] for name in ("run", "given", "roster", "skipped", "in_row", "verdicts")}
        old["left_out"] = facts["rejected"]
        del old["roster"]["schema"]["features"]  # and the first of all had no names for columns
        for i, member in old["roster"]["members"].items():  # it kept the clients' identities
            del member["fingerprint"]
            member |= json.loads((folder / f"home-{i}" / "client.json").read_text())
        old |= {
            "experiment": {k: v for k, v in facts["experiment"].items() if k not in new_options},
            "client_seconds": facts["client_seconds"],
            "round_seconds": [1.5] * round_,
            "seconds": 9.0,
            "metrics": sum(map(len, old_lines[: max(len(old_lines) - number, 0)])),
        }
        checkpoints.write(out, round_, old, {name: np.array(array) for name, array in arrays.items()})
    for path in folder.glob("home-*/*/record.safetensors"):
        facts, arrays = tensors.load(client_home._KIND, path)
        names = {name: name.replace(".rejected", ".sick").replace(".participated", ".met") for name in arrays}
        old_arrays = {names[name]: np.array(array) for name, array in arrays.items()}
        assert old_arrays.keys() != arrays.keys()
        tensors.save(client_home._KIND, path, facts, old_arrays)


@pytest.mark.full
def test_a_run_of_version_1_is_resumed(prepared, tmp_path, whole):
    killed(prepared[1], tmp_path, 8, algorithm="fedavg")
    _made_old(tmp_path)
    before = run_id(tmp_path)
    summary = resumed(prepared[1], tmp_path, algorithm="fedavg")
    assert summary["federation"]["run"] == before
    assert summary["seconds"]["total"] > 9.0
    for found, expected in zip(lines(tmp_path / "run"), lines(whole / "run"), strict=True):
        found.pop("left_out", None)
        assert {name: expected[name] for name in found} == found
    # All but the lines, of which the first is as version 1 wrote it.
    (tmp_path / "run" / "metrics.jsonl").write_text((whole / "run" / "metrics.jsonl").read_text())
    assert_same_run(whole, tmp_path)
