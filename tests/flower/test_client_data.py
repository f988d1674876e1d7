"""A client's data, by its node config."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

import pfedbred
from pfedbred.errors import SettingError
from pfedbred.flower import client_data


def test_a_node_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = client_data.node({"dataset": "x.fed", "name": "St. Mary's/../etc"}, 7)
    assert found.home.parent == tmp_path / "pfedbred" / "clients"
    assert client_data.node({}, 7).name == "node-7"
    with pytest.raises(SettingError, match="partition-id must be int, not 'one'"):
        client_data.node({"partition-id": "one"}, 7)


def test_a_clients_part_of_a_dataset_is_kept(tmp_path):
    node = client_data.node({"dataset": "synthetic", "clients": 5, "partition-id": 3, "home": str(tmp_path)}, 1)
    own, place = client_data.load(node, tmp_path)
    again, _ = client_data.load(node, tmp_path)
    whole = pfedbred.load("synthetic", clients=5)
    assert place == 3
    np.testing.assert_array_equal(own.train.x, whole.train.client(3)[0])
    np.testing.assert_array_equal(again.train.x, own.train.x)
    assert len(list(tmp_path.glob("data-*.fed"))) == 1
    for wrong, why in (({"partition-id": 5}, "partition-id is from 0 to 4"), ({}, "needs partition-id=NUMBER")):
        with pytest.raises(SettingError, match=why):
            client_data.load(client_data.node({"dataset": "synthetic", "clients": 5, **wrong}, 1), tmp_path)


def test_labels_are_numbered_as_the_federation_does(tmp_path):
    (tmp_path / "a.csv").write_text("x,z,label\n1,2,dog\n2,1,emu\n3,1,dog\n1,1,emu\n")
    own, _ = client_data.load(client_data.node({"dataset": str(tmp_path / "a.csv")}, 1), tmp_path)
    same = client_data.relabelled(own, 3, ["cat", "dog", "emu"])
    names = [same.labels[i] for i in same.train.y]
    assert names == [own.labels[i] for i in own.train.y]
    assert same.classes == 3
    with pytest.raises(SettingError, match="the label 'emu' is not one of the federation's"):
        client_data.relabelled(own, 2, ["cat", "dog"])
    with pytest.raises(SettingError, match="there is a label 1, but the federation's are 0 to 0"):
        client_data.relabelled(own, 1, None)


def test_a_node_may_order_its_columns(tmp_path):
    (tmp_path / "a.csv").write_text("x,z,label\n1,2,0\n2,1,1\n3,1,0\n1,1,1\n")
    own = {"dataset": str(tmp_path / "a.csv")}
    plain, _ = client_data.load(client_data.node(own, 1), tmp_path)
    other, _ = client_data.load(client_data.node({**own, "features": "z, x"}, 1), tmp_path)
    assert (plain.features, other.features) == (("x", "z"), ("z", "x"))
    np.testing.assert_array_equal(plain.train.x, other.train.x[:, ::-1])
    pfedbred.data.prepared.save(plain, tmp_path / "a.fed")
    again, _ = client_data.load(client_data.node({"dataset": str(tmp_path / "a.fed"), "features": "z,x"}, 1), tmp_path)
    assert again.features == ("z", "x")
    np.testing.assert_array_equal(again.train.x, other.train.x)
    np.testing.assert_allclose(again.shift, other.shift)
    np.testing.assert_allclose(again.scale, other.scale)
    with pytest.raises(SettingError, match=r"a.fed has no column 'w', only 'x', 'z'"):
        client_data.load(client_data.node({"dataset": str(tmp_path / "a.fed"), "features": "z,w"}, 1), tmp_path)
    with pytest.raises(SettingError, match="features names columns of a table, but digits is not one"):
        client_data.load(client_data.node({"dataset": "digits", "features": "x"}, 1), tmp_path)
