"""The paper's part of the page."""

import json

import numpy as np
import pytest
from support.page_folders import change_json, write_paper

from pfedbred.errors import SettingError
from pfedbred.paper import columns, pictures
from pfedbred.paper.page import beside_paper, paper_commands, section
from pfedbred.report import page


@pytest.fixture
def folder(tmp_path):
    write_paper(tmp_path / "its results")
    return tmp_path / "its results"


def gather(folder):
    return page.gather([folder], [section()])


def test_the_page_shows_what_the_folder_holds(folder):
    content = gather(folder)
    (table,) = content["tables"]
    assert [each["title"] for each in table["columns"]] == ["MNIST, MCLR", "FEMNIST, MCLR"]
    first, second = table["columns"]
    figures = [(each["row"], each["model"]) for each in first["cells"]]
    assert figures == [("fedavg", "G"), *((row, model) for row in ("mg-meta", "mg-meta+am") for model in "PG")]
    assert (first["other_data"], first["cells"][0]["difference"]) == (None, 1.0)
    assert [first["cells"][0][name] for name in ("last", "chosen")] == [79.5, None]
    assert second["other_data"].startswith("a part of FEMNIST")
    assert [len(each["points"]) for each in content["sweeps"]] == [4]
    assert [each["name"] for each in content["federations"]] == ["mnist-paper"]
    (deviation,) = content["deviations"]
    assert set(deviation["methods"]) == {"pfedme", "mg-meta"}
    assert deviation["title"] == "MNIST, MCLR"


def test_rows_without_records_are_named(folder):
    """Of tuned settings, those of its methods."""
    (folder / "tuned.json").write_text((folder / "table2.json").read_text())
    change_json(folder / "tuned.json", lambda cells: cells.__delitem__(slice(2, None)))
    rest = "fedavg+am, fedem, fedamp, pfedme, pfedme+ft, pfedme+am, per-fedavg, per-fedavg+ft, per-fedavg+am"
    by_table = {each["title"]: [column["note"] for column in each["columns"]] for each in gather(folder)["tables"]}
    assert by_table == {
        "Table 2: global and personal models": [f"not recorded: {rest}, mg-meta+ft"] * 2,
        "Beyond the paper: settings tuned on validation samples": ["not recorded: fedem, fedamp, pfedme, per-fedavg"],
    }


def test_curves_of_a_table_are_those_of_its_records(folder):
    (table,) = gather(folder)["tables"]
    fedavg, mg, _ = table["columns"][1]["curves"]
    assert "P" not in fedavg  # the table has no figure for it
    record = json.loads((folder / "cells/table2/femnist-mclr/mg-meta.json").read_text())
    assert mg["rounds"] == record["rounds"] == [1, 2]
    assert mg["seeds"] == 2
    for model in "GP":
        for name, kind in {"mean": "curve", "low": "low", "high": "high"}.items():
            np.testing.assert_allclose(mg[model][name], record[model][kind], atol=0.0051)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("cells/table2/mnist-mclr/mg-meta.json", lambda all_: all_["P"]["low"].pop(), "different numbers of rounds"),
        ("cells/table2/mnist-mclr/mg-meta.json", lambda all_: all_.pop("platform"), "damaged"),
        ("cells/deviation/mnist-mclr/pfedme.json", lambda all_: all_.pop("samples"), "pfedme.json is damaged"),
        ("table2.json", lambda all_: all_.clear(), "table2.json"),
    ],
)
def test_damaged_records_are_refused(folder, file, change, words):
    change_json(folder / file, change)
    with pytest.raises(SettingError) as stopped:
        gather(folder)
    assert words in str(stopped.value)


def test_a_table_without_its_records_is_shown_without_curves(folder):
    (folder / "cells").rename(folder.parent / "elsewhere")
    (table,) = gather(folder)["tables"]
    assert [each["curves"] for each in table["columns"]] == [[], []]


def test_a_table_leads_to_no_file_elsewhere(folder):
    change_json(folder / "table2.json", lambda cells: cells[0].update(row="../mnist-mclr/fedavg"))
    (table,) = gather(folder)["tables"]
    assert [each["row"] for each in table["columns"][0]["curves"]] == ["mg-meta", "mg-meta+am"]


def test_every_platform_is_named(folder):
    for kind, file in {"table": "table2/mnist-mclr/fedavg", "deviation": "deviation/mnist-mclr/pfedme"}.items():
        change_json(folder / "cells" / f"{file}.json", lambda all_, kind=kind: all_["platform"].update(device=kind))
    assert {each.split(" (")[0] for each in gather(folder)["platforms"]} == {"cpu", "table", "deviation"}


def test_commands_reproduce_the_results(folder):
    """Each method with its own rounds; a dataset by the first column that has it."""
    said = {each["name"]: (each["command"] or "").splitlines() for each in gather(folder)["commands"]}
    assert said["Deviation: MNIST, MCLR"] == [
        "pfedbred paper deviation --columns mnist-mclr --rows mg-meta --rounds 2 --out 'its results'",
        "pfedbred paper deviation --columns mnist-mclr --rows pfedme --rounds 7 --out 'its results'",
    ]
    assert said["Data distribution"] == ["pfedbred paper noniid --columns mnist-mclr --out 'its results'"]
    (sweep,) = (lines for name, lines in said.items() if "hyper-mnist-mclr" in name)
    assert sweep[0].startswith("pfedbred sweep --algorithm mg-meta")
    assert sweep[0].endswith("--grid eta=0.01,0.1 --grid lam=5,15 --choose-on-test")


def test_a_part_of_a_dataset_is_not_compared():
    cell = {"row": "fedavg", "model": "G", "mean": 85.3, "std": 0.2, "paper": 53.96, "n": 5, "rounds": 200}
    part = beside_paper({**cell, "column": "femnist-mclr"})
    assert part["difference"] is None
    whole = beside_paper({**cell, "column": "mnist-mclr"})
    assert whole["difference"] == 31.34
    assert [part["rounds"], whole["rounds"]] == ["200 of 1200", "200"]


def test_the_commands_of_a_table_make_its_cells_and_no_others():
    def cells(column, rows, rounds, n=5):
        return [{"column": column, "row": row, "model": m, "n": n, "rounds": rounds} for row in rows for m in "PG"]

    table = [
        *cells("mnist-mclr", ["fedavg", "pfedme"], 200),
        *cells("mnist-dnn", ["fedavg", "pfedme"], 200),
        *cells("cifar10-cnn", ["pfedme"], 2000),
        *cells("sent140-lstm", ["fedavg", "pfedme"], 100),
        *cells("sent140-lstm", ["fedem"], 100, n=2),
    ]
    assert paper_commands("table2", table) == [
        "pfedbred paper table2 --columns mnist-mclr,mnist-dnn --rows fedavg,pfedme --seeds 5",
        "pfedbred paper table2 --columns cifar10-cnn --rows pfedme --seeds 5",
        "pfedbred paper table2 --columns sent140-lstm --rows fedavg,pfedme --seeds 5 --rounds 100",
        "pfedbred paper table2 --columns sent140-lstm --rows fedem --seeds 2 --rounds 100",
    ]


@pytest.mark.full
def test_the_page_reads_what_the_command_writes(call, tmp_path, monkeypatch):
    monkeypatch.setitem(columns.ALL, "digits", columns.Column("Digits, MCLR", "digits", "mclr", 4, aggregated=4))
    monkeypatch.setattr(pictures, "HYPER_GRID", {"eta": [0.01, 0.1], "lam": [5.0, 15.0]})
    for arguments in (
        "paper table2 --columns digits --rows fedavg,mg-meta --seeds 2 --rounds 2 --out paper",
        "paper deviation --columns digits --rows pfedme --rounds 2 --out paper",
        "paper noniid --columns digits --out paper",
        "paper hyper --columns digits --seeds 1 --rounds 2 --out paper",
        "report paper",
    ):
        code, _, err = call(*arguments.split())
        assert code == 0, err
    content = gather(tmp_path / "paper")
    assert [len(content[name]) for name in ("tables", "deviations", "sweeps", "federations")] == [1, 1, 1, 1]
    (column,) = content["tables"][0]["columns"]
    assert [each["row"] for each in column["curves"]] == ["fedavg", "mg-meta"]
    assert (tmp_path / "paper" / "report.html").exists()
