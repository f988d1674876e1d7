"""Regression on a federation whose clients have a CSV file each: the same as the simulation."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import Loopback, assert_same_models, facts_in, lines, personal, run, simulate

import pfedbred
from pfedbred.errors import SettingError
from pfedbred.flower import client_data
from pfedbred.flower.roster import Member, Roster, _pooled
from pfedbred.flower.run_config import parse
from pfedbred.flower.server import Coordinator
from pfedbred.tasks import Target

SETTINGS = {"alpha": 0.2, "R": 3}


def write(folder, sizes=(16, 12, 12)):
    rng = np.random.default_rng(0)
    nodes = {}
    for i, size in enumerate(sizes):
        x = rng.normal(i, 1 + i, (size, 2))
        y = 500 * i + 40 * x[:, 0] - 10 * x[:, 1] + rng.normal(size=size)
        rows = [f"{a},{b},{z}" for (a, b), z in zip(x, y, strict=True)]
        (folder / f"{i}.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
        home = str(folder / f"home-{i}")
        nodes[100 + i] = {"dataset": str(folder / f"{i}.csv"), "name": f"clinic-{i}", "home": home}
    return nodes


def together(nodes, folder):
    """The clients' samples as a simulation has them: each standardised by its own client, labels as they are."""
    parts = [client_data.load(client_data.node(config, 1), folder, "regression")[0] for config in nodes.values()]
    pairs = [
        [(np.asarray(each.inputs(split).take(np.arange(len(split.y)))), split.y) for split in (each.train, each.test)]
        for each in parts
    ]
    return pfedbred.from_clients(*zip(*pairs, strict=True), task="regression")


@pytest.mark.full
def test_the_same_models_and_numbers_as_in_a_simulation(tmp_path):
    nodes = write(tmp_path)
    settings = " ".join(f"{name}={value}" for name, value in SETTINGS.items())
    grid = Loopback(nodes)
    options = {"algorithm": "fedavg", "task": "regression", "settings": settings, "clients": 3, "aggregated": 2}
    summary = run(grid, tmp_path / "run", **options)
    federation = together(nodes, tmp_path)
    simulated = simulate(federation, "fedavg", settings=SETTINGS)
    assert_same_models(tmp_path, tmp_path / "run", simulated)
    for line, point in zip(lines(tmp_path / "run"), simulated.points, strict=True):
        for name in ("rmse", "mae", "r2"):
            found, expected = line["personal"]["test"][name], point.scores.personal.test.values[name]
            np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert summary["data"]["classes"] == 1
    # One standardisation for all, from the mean and the deviation that each client tells.
    told = [
        facts_in(reply)["target"] for _, message, reply in grid.wire if message.metadata.message_type == "query.meet"
    ]
    assert [each["mean"] for each in told] == pytest.approx([np.mean(federation.train.client(i)[1]) for i in range(3)])
    target = simulated.backend.task.target
    model = pfedbred.load_model(tmp_path / "run" / "global.safetensors")
    assert model.about["target"] == pytest.approx({"mean": target.mean, "std": target.std}, rel=1e-6)
    # A client's own model predicts numbers in the units of its labels, from columns as they are in its file.
    own = personal(tmp_path, 2)
    raw = np.genfromtxt(tmp_path / "2.csv", delimiter=",", skip_header=1)
    x = (raw[:, :2] - np.asarray(own._shift)) * np.asarray(own._scale)
    layer = simulated.personal_model(2)["output"]
    expected = target.mean + target.std * (x @ np.asarray(layer["weight"])[0] + np.asarray(layer["bias"])[0])
    np.testing.assert_allclose(own.predict(raw[:, :2]), expected, rtol=1e-3)


def test_statistics_of_clients_are_those_of_all_samples():
    rng = np.random.default_rng(0)
    parts = [rng.normal(i, 1 + i, 5 + 3 * i) for i in range(4)]
    members = [Member("f", "n", len(y), 0, {"mean": y.mean(), "std": y.std()}) for y in parts]
    everyone = np.concatenate(parts)
    assert _pooled(members) == pytest.approx(Target(everyone.mean(), everyone.std()))


@pytest.mark.full
def test_a_client_with_labels_of_another_kind_is_refused(tmp_path, capsys):
    nodes = write(tmp_path)
    (tmp_path / "odd.csv").write_text("a,b,y\n" + "1,2,yes\n2,1,no\n" * 6)
    nodes[900] = {"dataset": str(tmp_path / "odd.csv"), "name": "odd", "home": str(tmp_path / "odd")}
    run(Loopback(nodes), tmp_path / "run", algorithm="local", task="regression", rounds=1, clients=3)
    assert "odd was refused: its data cannot be used: see its own log" in capsys.readouterr().out


def test_impossible_statistics_are_refused():
    from test_agreement import told

    said = []
    roster = Roster(None, said.append)
    for number, wrong in enumerate(({"task": "juggling"}, {"task": "regression"}, {"target": {"mean": 0, "std": 1}})):
        roster.admit({number: told("a", **wrong)})
    roster.admit({9: told("a", task="regression", target={"mean": 1e40, "std": 1})})
    assert not roster.members
    assert len(said) == 4


def test_labels_are_not_counted_on_a_federation(tmp_path):
    with pytest.raises(SettingError, match="class-weights must be numbers on a federation, such as 1,5"):
        Coordinator(None, *parse({"out": str(tmp_path), "class-weights": "balanced"}))
