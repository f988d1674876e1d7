"""Tables with gaps and texts on a federation: the clients agree on the columns."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import Loopback, personal, run

from pfedbred.errors import SettingError
from pfedbred.flower import client_data
from pfedbred.flower.introductions import difference

FULL = "age,colour,label\n" + "".join(f"{i},{'red' if i % 2 else 'blue'},{i % 2}\n" for i in range(12))
GAPS = "colour,age,label\n" + "".join(f"green,{'' if i % 3 else i},{i % 2}\n" for i in range(12))


@pytest.fixture
def nodes(tmp_path, call):
    (tmp_path / "a.csv").write_text(FULL)
    (tmp_path / "b.csv").write_text(GAPS)
    (tmp_path / "both.csv").write_text(FULL + "".join(f"{i},green,0\n,blue,1\n" for i in range(8)))
    code, out, err = call("data", "columns", "both.csv", "--split", "iid", "--clients", "2", "--out", "columns.json")
    assert code == 0, err
    assert "columns: columns.json, 2 of them as 5 inputs" in out
    shared = {"columns": str(tmp_path / "columns.json")}
    names = ("a", "b")
    return {
        100 + i: {"dataset": str(tmp_path / f"{x}.csv"), "name": x, "home": str(tmp_path / f"home-{i}"), **shared}
        for i, x in enumerate(names)
    }


def test_clients_with_the_same_columns_have_the_same_inputs(nodes, tmp_path):
    one, other = (client_data.load(client_data.node(each, 1), tmp_path)[0] for each in nodes.values())
    assert one.features == other.features
    assert one.features == ("age", "age missing", "colour=blue", "colour=green", "colour=red")
    np.testing.assert_array_equal(other.train.x[:, 2:], np.tile([0, 1, 0], (len(other.train.y), 1)))
    assert other.train.x[:, 1].any()
    assert not one.train.x[:, 1].any()
    files = [{"dataset": each["dataset"]} for each in nodes.values()]
    alone = [client_data.load(client_data.node(each, 1), tmp_path)[0] for each in files]
    facts = [
        {"dataset": "d", "shape": [1], "classes": 2, "labels": None, "features": list(each.features), "words": None}
        | {"vocabulary": None, "task": "classification"}
        for each in alone
    ]
    assert "if they have gaps or texts, give all clients the same columns=" in difference(*facts)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "must name each column exactly once"),
        ([{"name": "age", "categories": None, "indicator": False}] * 2, "must name each column exactly once"),
        ([{"name": "age"}], "has no 'categories'"),
        (
            [{"name": "height", "categories": None, "indicator": False}],
            "has no column 'height', only age, colour",
        ),
        ([{"name": "colour", "categories": None, "indicator": False}], "'colour' must be a number, not 'blue'"),
    ],
)
def test_columns_that_do_not_fit_are_one_line(content, words, nodes, tmp_path):
    (tmp_path / "columns.json").write_text(json.dumps(content))
    with pytest.raises(SettingError, match=words):
        client_data.load(client_data.node(nodes[100], 1), tmp_path)


@pytest.mark.full
def test_a_client_predicts_from_raw_columns(nodes, tmp_path):
    run(Loopback(nodes), tmp_path / "run", algorithm="local", rounds=1, clients=2, settings="R=2")
    own = personal(tmp_path, 1)
    ages = [float(line.split(",")[1]) for line in GAPS.splitlines()[1:] if line.split(",")[1]]
    mean = own.encoding.own.fill[0, 0]
    assert min(ages) <= mean <= max(ages)
    marked = own.logits([[None, "green"]]) - own.logits([[mean, "green"]])
    np.testing.assert_allclose(marked, np.asarray(own.params["output"]["weight"])[None, :, 1], rtol=1e-4)
