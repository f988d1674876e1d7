"""The paper's tables and figures: what is printed, what is measured, and that nothing is measured twice."""

import contextlib
import dataclasses
import json
import time

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred import paper, priors
from pfedbred.algorithms import builder
from pfedbred.engine import ResidentBackend
from pfedbred.experiment.callbacks import Interruption, checkpointing, trackers
from pfedbred.experiment.callbacks.stopping import process_started
from pfedbred.paper import columns, complexity, pictures, printed, records, running, tables, tuned
from pfedbred.paper import table as table_
from pfedbred.paper.cells import Cell
from pfedbred.paper.columns import Column
from pfedbred.paper.deviation import deviation, deviations
from pfedbred.paper.markdown import markdown
from pfedbred.paper.rows import Row, curvature_at_zero


@pytest.fixture
def small(monkeypatch):
    """One more column, quick to run."""
    monkeypatch.setitem(columns.ALL, "digits", Column("Digits, MCLR", "digits", "mclr", 3, aggregated=4))


# What the paper prints -------------------------------------------------------------------------------------


def test_printed_figures_stand_where_the_paper_has_them():
    """Some of each table, read off the paper."""
    assert printed.TABLE2["mnist-dnn", "mg-meta+am", "P"] == 92.32
    assert printed.TABLE2["sent140-lstm", "mg-meta+am", "G"] == 73.71
    assert printed.TABLE2["femnist-mclr", "fedavg", "G"] == 53.96
    assert printed.TABLE2["cifar10-cnn", "per-fedavg", "G"] == 27.22
    assert printed.TABLE2["fmnist-dnn", "fedem", "G"] == 95.23
    assert ("mnist-mclr", "fedamp", "G") not in printed.TABLE2
    assert printed.ABLATION["femnist-dnn", "fo", "G"] == 19.74
    assert printed.AGGREGATION["fmnist-mclr", "100", "G"] == 82.72
    assert printed.TABLE2["writers-dnn", "fedamp", "P"] == printed.TABLE2["femnist-dnn", "fedamp", "P"] == 66.75
    whole = (printed.TABLE2, printed.ABLATION, printed.AGGREGATION)
    assert [sum(column in columns.COLUMNS for column, _, _ in each) for each in whole] == [22 * 8, 4 * 8, 16]
    assert [sum(column in columns.STAND_INS for column, _, _ in each) for each in whole] == [22 * 2, 4 * 2, 8]


@pytest.mark.parametrize("table", tables.TABLES.values(), ids=tables.TABLES)
def test_every_figure_belongs_to_a_cell_that_can_be_run(table):
    for row in table.rows.values():
        builder(row.algorithm)
    for column, row, model in table.printed:
        assert column in (*table.columns, *columns.STAND_INS)
        assert model in table.models.get(row, "PG")
    for row, other in table.compared.items():
        assert {row, other} <= table.rows.keys()
    for row in table.rows.values():
        if row.source:  # the same experiment
            there = tables.TABLES[row.source.table].rows[row.source.row]
            for column in table.columns:
                mine, theirs = (
                    each.experiment(columns.ALL[column], seeds=5, rounds=None).checked() for each in (row, there)
                )
                assert records.fingerprint(mine) == records.fingerprint(theirs)


def test_columns_have_the_papers_settings():
    mnist = columns.ALL["mnist-dnn"].experiment("pfedme", seeds=5, rounds=None).checked()
    assert (mnist.rounds, mnist.aggregated, mnist.batch_size, mnist.eval_every) == (200, 20, 20, 1)
    common = {"alpha": 0.01, "alpha_m": 0.01, "K": 5, "R": 20, "beta": 1.0, "lam": 30.0}
    assert common.items() <= mnist.settings.items()
    mg = columns.ALL["cifar10-cnn"].experiment("mg-meta+am", seeds=5, rounds=None).checked()
    assert (mg.rounds, mg.aggregated, mg.dataset) == (2000, 4, "cifar10")
    assert {"lam": 15.0, "eta": 0.05, "eta_a": 0.01, "am_beta": 2.0}.items() <= mg.settings.items()
    sent = columns.ALL["sent140-lstm"].experiment("fedavg", seeds=5, rounds=None)
    assert (sent.batch_size, sent.aggregated) == (400, 4)
    assert "lam" not in columns.ALL["mnist-dnn"].experiment("fedamp", seeds=1, rounds=None).settings  # its own
    for name, femnist in (("writers-mclr", "femnist-mclr"), ("writers-dnn", "femnist-dnn")):
        mine, theirs = (columns.ALL[each].experiment("mg-meta", seeds=5, rounds=None) for each in (name, femnist))
        assert dataclasses.replace(mine, dataset="femnist") == theirs
        assert columns.ALL[name].difference(90.0, 60.0) is None
    fewer = columns.ALL["fmnist-mclr"].experiment("mg-meta", seeds=1, rounds=None, aggregated=10)
    assert fewer.aggregated == 10


def test_priors_are_compared_at_the_same_strength():
    """lambda g''(0) is the Gaussian's lambda; for the exponential family, whose parameter is u = ln(mean), s = -e^-u:
    g''(s) s'(u)^2 = (1 / s^2) e^-2u = 1."""
    assert {name: curvature_at_zero(name) for name in priors.PRIORS} == {
        "gaussian": 1.0,
        "bernoulli": 0.25,  # p (1 - p) at p = 1/2
        "poisson": 1.0,
        "exponential": 1.0,
    }
    rows, mnist = tables.PRIORS.rows, columns.ALL["mnist-mclr"]
    lam = {name: row.experiment(mnist, seeds=5, rounds=None).settings["lam"] for name, row in rows.items()}
    assert (lam["gaussian-15"], lam["bernoulli-15"], lam["bernoulli-1"], lam["bernoulli-3.75"]) == (15, 60, 4, 15)
    assert {name.partition("-")[0] for name in rows} == set(priors.PRIORS)


# Tables ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_table_is_run_once_and_then_completed(call, small, tmp_path, monkeypatch):
    ran = []
    real = running.run_into
    monkeypatch.setattr(running, "run_into", lambda *given: (ran.append(1), real(*given))[1])
    options = ("paper", "table2", "--columns", "digits", "--seeds", "2", "--out", "here")
    code, out, err = call(*options, "--rows", "fedavg")
    assert code == 0, err
    assert len(ran) == 1
    code, out, err = call(*options, "--rows", "fedavg,mg-meta+am")
    assert code == 0, err
    assert len(ran) == 2
    assert "digits fedavg: " in out
    assert "already done" in out
    cells = json.loads((tmp_path / "here" / "table2.json").read_text())
    assert [(cell["row"], cell["model"]) for cell in cells] == [
        ("fedavg", "G"),
        ("mg-meta+am", "P"),
        ("mg-meta+am", "G"),
    ]
    expected = {"column", "row", "model", "paper", "mean", "std", "n", "best_round", "seconds"}
    assert expected <= cells[0].keys()
    # The figures are those of the same run made by hand.
    by_hand = pfedbred.run(algorithm="mg-meta+am", rounds=3, seeds=2, aggregated=4, settings={"lam": 15.0})
    best = 100 * by_hand.accuracy("personal").max(axis=0)
    assert cells[1]["mean"] == pytest.approx(best.mean(), abs=0.006)
    assert cells[1]["std"] == pytest.approx(best.std(ddof=1), abs=0.006)
    assert cells[1]["n"] == 2
    # What was run with other settings is left alone; what was cut off while it was written is not there.
    code, _, err = call(*options, "--rows", "fedavg", "--rounds", "2")
    assert code == 2
    assert "was made with other settings (rounds 3, not 2)" in err.replace("eval_every 1, not 1, ", "")
    assert len(ran) == 2
    assert not list((tmp_path / "here").rglob("*.part"))


def figures_of(out, row="*"):
    """What a cell says, but for when and where it was run."""
    (file,) = out.rglob(f"cells/*/*/{row}.json")
    return {name: value for name, value in json.loads(file.read_text()).items() if name in ("rounds", "G", "P", "data")}


@pytest.mark.parametrize(
    "base", ["pfedme", *(pytest.param(each, marks=pytest.mark.full) for each in ("per-fedavg", "mg-meta"))]
)
@pytest.mark.few_cases
@pytest.mark.full
def test_a_row_and_its_fine_tuned_row_are_trained_once(base, call, small, tmp_path, monkeypatch):
    """With the figures of two trainings."""
    ran = []
    real = running.run_into
    monkeypatch.setattr(running, "run_into", lambda *given: (ran.append(1), real(*given))[1])
    options = ("paper", "table2", "--columns", "digits", "--seeds", "2", "--rounds", "4", "--rows")
    code, out, err = call(*options, f"{base}+ft,{base}", "--out", "once")
    assert (code, len(ran)) == (0, 1), err
    assert f"table2 digits {base}+ft: G " in out
    assert f"trained with {base}" in out
    for row in (base, f"{base}+ft"):
        assert call(*options, row, "--out", row)[0] == 0
        assert figures_of(tmp_path / "once", row) == figures_of(tmp_path / row)
    both = [json.loads((tmp_path / row / "table2.json").read_text())[0]["mean"] for row in (base, f"{base}+ft")]
    assert both[0] != both[1]  # P differs, or the test shows nothing
    assert call(*options, f"{base},{base}+ft", "--out", "once")[0] == 0
    assert len(ran) == 3


def test_rows_that_train_alike_are_grouped():
    rows = tables.TABLE2.rows
    assert tables.TABLE2.trainings(list(rows)) == [
        *[("fedavg",), ("fedavg+am",), ("fedem",), ("fedamp",), ("pfedme", "pfedme+ft"), ("pfedme+am",)],
        *[("per-fedavg", "per-fedavg+ft"), ("per-fedavg+am",), ("mg-meta", "mg-meta+ft"), ("mg-meta+am",)],
    ]
    assert tables.TABLE2.trainings(["mg-meta+ft", "pfedme"]) == [("mg-meta+ft",), ("pfedme",)]
    variants = tables.PER_FEDAVG.trainings(list(tables.PER_FEDAVG.rows))
    assert ("per-fedavg", "per-fedavg+ft") in variants
    assert ("two-steps", "two-steps+ft") in variants  # each with its own settings


@pytest.mark.full
@pytest.mark.parametrize("kept", ["whole", "damaged", "lost"])
@pytest.mark.few_cases
def test_a_resumed_run_serves_the_fine_tuned_row(kept, call, small, tmp_path):
    """If its evaluations from before are there; else that row is run."""
    options = ("paper", "table2", "--columns", "digits", "--rows", "pfedme,pfedme+ft", "--rounds", "6", "--seeds", "1")
    assert call(*options, "--out", "whole")[0] == 0
    with out_of_time("in it"):
        assert call(*options, "--out", "parts", "--time-limit", "1h")[0] == 75
    (file,) = (tmp_path / "parts").rglob("*.run/pfedme+ft/metrics.jsonl")
    assert len(file.read_text().splitlines()) == 1
    if kept == "damaged":
        file.write_text(file.read_text()[:-20])
    elif kept == "lost":
        file.unlink()
    code, out, err = call(*options, "--out", "parts")
    assert code == 0, err
    assert ("trained with pfedme" in out) == (kept == "whole")
    for row in ("pfedme", "pfedme+ft"):
        assert figures_of(tmp_path / "parts", row) == figures_of(tmp_path / "whole", row)


@pytest.fixture
def real_column(call, tmp_path):
    """Data for a column that other processes know too: the digits, in place of MNIST's."""
    (tmp_path / "fed").mkdir()
    code, _, err = call("data", "prepare", "digits", "--clients", "20", "--out", "fed/mnist.fed")
    assert code == 0, err
    return ("paper", "table2", "--columns", "mnist-true-mclr", "--federations", "fed", "--seeds", "1")


@pytest.mark.full
def test_jobs_give_what_one_process_gives(call, real_column, tmp_path):
    rows = ("--rows", "fedavg,pfedme,pfedme+ft", "--rounds", "2")
    code, out, err = call(*real_column, *rows, "--jobs", "2", "--out", "jobs")
    assert code == 0, err
    assert out.count("table2 mnist-true-mclr") == 3
    assert "trained with pfedme" in out
    assert call(*real_column, *rows, "--out", "alone")[0] == 0
    for row in ("fedavg", "pfedme", "pfedme+ft"):
        assert figures_of(tmp_path / "jobs", row) == figures_of(tmp_path / "alone", row)
    assert (tmp_path / "jobs" / "table2.md").read_text() == (tmp_path / "alone" / "table2.md").read_text()


@pytest.mark.full
@pytest.mark.slow
def test_jobs_stop_in_time_and_report_what_cannot_be_run(call, real_column, tmp_path):
    rows = ("--rows", "fedavg,fedavg+am", "--rounds", "100000", "--jobs", "2", "--out", "long")
    started = time.monotonic() - process_started()
    code, out, err = call(*real_column, *rows, "--time-limit", f"{started + 25:.0f}s")
    assert code == 75, err
    assert "to resume: run the same command again" in out
    assert out.count("(time limit)") == 2  # both were told
    assert not list((tmp_path / "long").rglob("cells/*/*/*.json"))
    options = ("paper", "aggregation", *real_column[2:], "--rows", "10,50", "--rounds", "2", "--jobs", "2")
    code, out, err = call(*options)
    assert code == 0, err
    assert "mnist-true-mclr 50: cannot be run: aggregated must be at most" in out


@pytest.mark.full
def test_a_killed_cell_is_resumed(call, small, tmp_path, monkeypatch):
    options = ("paper", "table2", "--columns", "digits", "--rows", "mg-meta", "--rounds", "12", "--seeds", "2", "--out")
    assert call(*options, "whole")[0] == 0
    for name in ("_SECONDS", "_SHARE"):
        monkeypatch.setattr(checkpointing, name, 0)  # a checkpoint after every round
    monkeypatch.setattr(checkpointing.Checkpoints, "most_rounds", lambda self, progress: 1)
    advanced = []
    real = ResidentBackend.advance

    def advance(self, states, rounds):
        if len(advanced) == 5:
            raise RuntimeError("killed")
        advanced.append(rounds)
        return real(self, states, rounds)

    monkeypatch.setattr(ResidentBackend, "advance", advance)
    with pytest.raises(RuntimeError, match="killed"):
        paper.ARTIFACTS["table2"].make(
            paper.Request(tmp_path / "parts", paper.Federations(), ["digits"], ["mg-meta"], 2, 12)
        )
    assert sum(advanced) == 5
    assert (tmp_path / "parts" / "cells" / "table2" / "digits" / "mg-meta.run").is_dir()
    advanced[:] = [0] * 6  # no more of that
    code, _, err = call(*options, "parts")
    assert code == 0, err
    assert sum(advanced) == 12 - 5
    assert figures_of(tmp_path / "parts") == figures_of(tmp_path / "whole")
    assert not list(tmp_path.rglob("*.run"))


@contextlib.contextmanager
def out_of_time(when):
    """Time is up when a cell is to begin, or in it after its first round."""

    def check(self, needed=0.0):
        return "time limit" if when == "before" or needed else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interruption, "check", check)
        yield


@pytest.mark.full
def test_a_table_stops_in_time_and_is_resumed(call, small, tmp_path):
    """And the same command goes on."""
    options = ("paper", "table2", "--columns", "digits", "--rows", "fedavg", "--rounds", "6", "--seeds", "1", "--out")
    assert call(*options, "whole")[0] == 0
    with out_of_time("before"):
        code, out, err = call(*options, "parts", "--time-limit", "1h")
    assert code == 75, err
    assert "table2 digits fedavg: not started (time limit)\nto resume: run the same command again" in out
    with out_of_time("in it"):
        code, out, err = call(*options, "parts", "--time-limit", "1h")
    assert code == 75, err
    assert "table2 digits fedavg: stopped (time limit) after round 1 of 6\nto resume: run the same command again" in out
    assert call(*options, "parts")[0] == 0
    assert figures_of(tmp_path / "parts") == figures_of(tmp_path / "whole")


def test_the_time_limit_counts_from_the_start_of_the_process(call, small):
    """From when the process began, which these tests' did long ago."""
    code, out, err = call("paper", "table2", "--columns", "digits", "--rows", "fedavg", "--time-limit", "0.1s")
    assert (code, "not started (time limit)" in out) == (75, True), err


@pytest.mark.full
def test_trackers_record_each_training(call, small, tmp_path, monkeypatch):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    parse, parsed = trackers.parse, []
    monkeypatch.setattr(trackers, "parse", lambda text: parsed.append(text) or parse(text))
    options = ("paper", "table2", "--columns", "digits", "--rows", "fedavg,pfedme", "--seeds", "1", "--out", "here")
    code, _, problem = call(*options, "--rounds", "3", "--track", "tensorboard")
    assert code == 0, problem
    assert parsed == ["tensorboard"]
    for row in ("fedavg", "pfedme"):
        folder = tmp_path / "here" / "tracking" / "tensorboard" / f"table2-digits-{row}"
        found = reader.EventAccumulator(str(folder)).Reload()
        assert [each.step for each in found.Scalars("personal/test/accuracy")] == [1, 2, 3]
    for name in ("complexity", "fair"):
        code, _, problem = call("paper", name, "--track", "tensorboard")
        assert (code, problem.startswith(f"pfedbred: --track does not apply to {name}")) == (2, True)


@pytest.mark.full
def test_a_cell_begun_with_other_settings_is_left_alone(call, small):
    options = ("paper", "table2", "--columns", "digits", "--rows", "fedavg", "--seeds", "1", "--out", "here")
    with out_of_time("in it"):
        assert call(*options, "--rounds", "6")[0] == 75
    code, _, err = call(*options, "--rounds", "5")
    assert code == 2
    assert "rounds 6, now 5: choose another --out, or remove that folder" in err.replace("\n", " ")
    assert call(*options, "--rounds", "6")[0] == 0


def cell(column, row, model, paper, mean, last=None, **more):
    return Cell(column, row, model, paper, mean, 0.1, 5, 200, 17, 3.0, 80.0, 60.0, last, 0.2, **more)


def test_measured_and_printed_figures_are_shown_with_their_difference():
    cells = [
        cell("mnist-mclr", "fedavg", "G", 86.96, 87.31, 87.0),
        cell("femnist-mclr", "fedavg", "G", 53.96, 50.0),
        cell("mnist-dnn", "fedavg", "G", 88.74, None),
    ]
    text = markdown(tables.TABLE2, cells)
    assert "| fedavg | G | 87.31 ± 0.10 | 86.96 | +0.35 | 87.00 ± 0.20 | 5 | 200 | 17 | 80.00 | 60.00 |" in text
    assert "| fedavg | G | 50.00 ± 0.10 | 53.96 |  |  | 5 |" in text  # a subset: no difference
    assert "part of FEMNIST" in text
    assert "| diverged | 88.74 |  | diverged |" in text
    assert "chosen round" not in text  # no run had validation samples
    chosen = markdown(
        tables.TABLE2, [cell("mnist-mclr", "fedavg", "G", None, 87.31, 87.0, chosen=86.5, chosen_std=0.3)]
    )
    assert "| last round | chosen round | seeds |" in chosen
    assert "| 87.00 ± 0.20 | 86.50 ± 0.30 | 5 |" in chosen


def test_a_table_says_how_long_its_rows_took_if_that_is_its_subject():
    about = markdown(tables.PRECISION, [cell("skewed-cnn", "fedavg-float32", "G", None, 80.0)])
    assert "| worst tenth | seconds |" in about
    assert "| 80.00 | 60.00 | 3 |" in about
    assert "seconds" not in markdown(tables.TABLE2, [cell("mnist-mclr", "fedavg", "G", None, 80.0)])


def test_a_column_names_the_rows_that_it_has_no_records_of():
    """A table, all of its rows; what is asked for, of those."""
    rows = tables.TABLE2.rows
    cells = [
        *(cell("mnist-mclr", row, "G", None, 80.0) for row in rows if row not in ("fedem", "mg-meta+am")),
        *(cell("mnist-dnn", row, "G", None, 80.0) for row in rows),
    ]
    first, second = markdown(tables.TABLE2, cells).split("## ")[1:]
    assert first.splitlines()[-2:] == ["Not recorded: fedem, mg-meta+am.", ""]
    assert "Not recorded" not in second
    asked = markdown(tables.TABLE2, cells[:2], ["fedem", "fedavg", "fedavg+am"])
    assert asked.splitlines()[-1] == "Not recorded: fedem."


def test_notes_say_what_the_rows_were_measured_on():
    pixels = {"name": "cifar10", "clients": 20, "train_samples": 40923, "test_samples": 13649, "seed": 1}
    original = {**pixels, "source": "the original pixels"}
    assert columns.ALL["cifar10-cnn"].notes({"fedavg": pixels, "pfedme": pixels, "older": None}) == [
        "a JPEG copy of the images: accuracies may be slightly lower than with the originals"
    ]
    assert columns.ALL["cifar10-cnn"].notes({"fedavg": original, "pfedme": original}) == []
    cells = [
        cell("cifar10-cnn", "fedavg", "G", 58.27, 60.0, data=original),
        cell("cifar10-cnn", "fedem", "G", None, 55.0, data=pixels),
        cell("cifar10-cnn", "fedamp", "P", None, 55.0, data=pixels),
    ]
    text = markdown(tables.TABLE2, cells)
    assert "(These rows were measured on different data and cannot be compared with each other.)" in text
    assert "(Rows fedavg: source the original pixels.)" in text
    assert "(Rows fedem, fedamp: a JPEG copy of the images: " in text
    tweets = {"train_samples": 51879, "test_samples": 5766, "embedding": "from glove.npz, 50 principal components"}
    assert columns.ALL["sent140-lstm"].notes({"fedavg": tweets}) == [
        "57,645 tweets, word vectors from glove.npz, 50 principal components"
    ]


@pytest.mark.full
def test_rows_of_different_data_are_not_compared(small, tmp_path):
    table = dataclasses.replace(tables.TABLE2, compared={"pfedme": "fedavg"})

    def run(row, clients):
        federations = paper.Federations()
        federations._loaded["digits", "{}"] = pfedbred.load("digits", clients=clients)
        given = {"columns": ["digits"], "rows": [row], "seeds": 2, "rounds": 2, "say": lambda line: None}
        return {
            (each.row, each.model): each for each in table_.run_table(table, paper.Request(out, federations, **given))
        }

    out = tmp_path / "same"
    run("fedavg", 10)
    assert run("pfedme", 10)["pfedme", "G"].paired
    out = tmp_path / "other"
    run("fedavg", 11)
    assert not run("pfedme", 10)["pfedme", "G"].paired
    assert "different data" in (out / "table2.md").read_text()


def test_the_fit_is_the_mean_distance_from_the_printed_figures():
    """Over the columns that can be compared, which a part of FEMNIST cannot."""
    cells = [
        cell("mnist-mclr", "two-steps", "P", 87.0, 88.0, 87.5),
        cell("mnist-dnn", "two-steps", "P", 91.0, 90.5, 90.0),
        cell("femnist-mclr", "two-steps", "P", 54.0, 80.0, 80.0),
        cell("mnist-mclr", "two-steps", "G", 86.0, 86.25, 86.0),
    ]
    text = markdown(tables.PER_FEDAVG, cells)
    assert text.splitlines()[-3:] == [
        "| method | P, best | G, best | P, last round | G, last round | columns |",
        "|---|---|---|---|---|---|",
        "| two-steps | 0.75 | 0.25 | 0.75 | 0.00 | 2 |",
    ]


@pytest.mark.full
@pytest.mark.slow
def test_a_table_on_several_splits_shares_the_records_of_another(call, small, tmp_path, monkeypatch):
    """The first split is Table 2's; deviations are over all runs, and differences are paired by split and seed."""
    monkeypatch.setitem(
        paper.ARTIFACTS,
        "splits",
        paper.Artifact("", lambda request: table_.run_table(tables.SPLITS, request), runs=True),
    )
    options = ("--columns", "digits", "--rows", "pfedme,mg-meta", "--seeds", "2", "--out", "here")
    assert call("paper", "table2", *options)[0] == 0
    assert call("paper", "splits", *options, "--no-run")[0] == 2  # it has nothing of its own yet
    code, out, err = call("paper", "splits", *options)
    assert code == 0, err
    assert out.count("already done") == 2
    folder = tmp_path / "here" / "cells"
    assert sorted(file.name for file in (folder / "splits" / "digits").iterdir()) == [
        f"{row}-split{seed}.json" for row in ("mg-meta", "pfedme") for seed in (2, 3)
    ]

    def best(row, seed):
        settings = {"lam": 15.0}
        run = pfedbred.run(algorithm=row, rounds=3, seeds=2, aggregated=4, settings=settings, split_seed=seed)
        return 100 * run.accuracy("personal")

    runs = {row: [best(row, seed) for seed in (None, 2, 3)] for row in ("pfedme", "mg-meta")}
    assert not np.array_equal(runs["pfedme"][0], runs["pfedme"][1])
    cells = {(each["row"], each["model"]): each for each in json.loads((tmp_path / "here" / "splits.json").read_text())}
    found = cells["pfedme", "P"]
    highest = {row: np.array([each.max(axis=0) for each in runs[row]]) for row in runs}
    last = np.array([each[-1] for each in runs["pfedme"]])
    assert (found["n"], found["splits"]) == (2, 3)
    assert found["mean"] == pytest.approx(highest["pfedme"].mean(), abs=0.006)
    assert found["std"] == pytest.approx(highest["pfedme"].std(ddof=1), abs=0.006)
    assert found["last"] == pytest.approx(last.mean(), abs=0.006)
    by_split = (highest["pfedme"] - highest["mg-meta"]).mean(axis=1)
    assert found["compared_with"] == "mg-meta"
    assert found["paired"]["best"]["mean"] == pytest.approx(by_split.mean(), abs=0.002)
    half_width = 4.3027 * by_split.std(ddof=1) / np.sqrt(3)  # t of 2 degrees of freedom, from a table
    assert found["paired"]["best"]["half_width"] == pytest.approx(half_width, abs=0.005)
    assert cells["mg-meta", "P"]["paired"] == {}


@pytest.mark.full
def test_a_record_holds_the_round_that_validation_chose(small, tmp_path):
    settings = {"alpha": 0.1}
    rows = {"kept": Row("reptile", {"validation": 0.3, "settings": settings})}
    table = dataclasses.replace(tables.TABLE2, rows=rows)
    request = paper.Request(tmp_path, paper.Federations(), ["digits"], seeds=2, rounds=6, say=lambda line: None)
    found, _ = table_.run_table(table, request)
    run = pfedbred.run(
        algorithm="reptile", rounds=6, seeds=2, aggregated=4, validation=0.3, split_seed=0, settings=settings
    )
    record = json.loads((tmp_path / "cells" / "table2" / "digits" / "kept.json").read_text())
    on_validation, on_test = (run.accuracy("personal", part) for part in ("validation", "test"))
    place = on_validation.argmax(axis=0)
    assert all(place != on_test.argmax(axis=0)), "choose other settings"
    assert all(place < 5), "choose other settings"
    assert record["P"]["chosen_round"] == (place + 1).tolist()
    assert record["P"]["chosen"] == pytest.approx(100 * on_test[place, [0, 1]], abs=0.001)
    assert record["P"]["final"] == pytest.approx(100 * on_test[-1], abs=0.001)
    assert found.model == "P"
    assert found.chosen == pytest.approx(np.mean(record["P"]["chosen"]), abs=0.006)


def test_what_is_not_in_the_paper_is_one_line(call, small):
    for arguments, words in {
        ("tabel2",): "did you mean 'table2'",
        ("table2", "--columns", "mnist-mlcr"): "did you mean 'mnist-mclr'",
        ("table2", "--columns", "digits", "--rows", "fedavgg"): "did you mean 'fedavg'",
        ("table2", "--columns", "digits", "--federations", "nowhere"): "no folder nowhere",
        ("complexity", "--rows", "scaffold"): "there is no row 'scaffold'",
        ("hyper", "--jobs", "2"): "--jobs does not apply to hyper",
        ("noniid", "--no-run"): "--run and --no-run do not apply to noniid",
        ("table2", "--no-run"): "results has no records of the table table2",
    }.items():
        code, _, err = call("paper", *arguments)
        assert code == 2
        assert words in err, err
        assert len(err.splitlines()) == 1
    code, out, _ = call("paper", "--list")
    assert code == 0
    assert all(name in out for name in (*paper.ARTIFACTS, *columns.COLUMNS))


@pytest.mark.full
def test_prepared_federations_are_used(call, small, tmp_path):
    assert call("data", "prepare", "digits", "--clients", "5", "--out", "digits.fed")[0] == 0
    options = ("--columns", "digits", "--rows", "fedavg", "--seeds", "1")
    code, _, err = call("paper", "table2", *options, "--federations", ".")
    assert code == 0, err
    record = json.loads((tmp_path / "results" / "cells" / "table2" / "digits" / "fedavg.json").read_text())
    assert record["data"]["clients"] == 5
    # Other data under the same name is not taken for the same.
    (tmp_path / "other").mkdir()
    assert call("data", "prepare", "digits", "--clients", "6", "--out", "other/digits.fed")[0] == 0
    code, _, err = call("paper", "table2", *options, "--federations", "other")
    assert code == 2
    assert "was measured on different data" in err


def test_a_column_with_a_split_of_its_own_has_a_prepared_federation_of_its_own(call, tmp_path):
    column = columns.Column("Digits", "digits", "mclr", 10, partition={"split": "iid", "clients": 4})
    name = "digits-iid-4.fed"
    assert call("data", "prepare", "digits", "--split", "paper", "--clients", "6", "--out", "digits.fed")[0] == 0
    assert call("data", "prepare", "digits", "--split", "paper", "--clients", "5", "--out", name)[0] == 0
    assert column.prepared_file == name
    assert paper.Federations(prepared=tmp_path).of(column).clients == 5


@pytest.mark.full
def test_a_run_that_diverged_is_not_given_a_figure(call, small, tmp_path, monkeypatch):
    """Its loss is no number at the end, whatever its accuracy was before."""
    rows = {**tables.TABLE2.rows, "wild": Row("mg-meta", {"settings": {"lam": 450.0}})}
    monkeypatch.setitem(paper.TABLES, "table2", dataclasses.replace(tables.TABLE2, rows=rows))
    request = paper.Request(tmp_path, paper.Federations(), ["digits"], ["wild"], seeds=1, say=lambda line: None)
    cells = paper.table.run_table(paper.TABLES["table2"], request)
    assert [cell.mean for cell in cells] == [None, None]
    assert "diverged" in (tmp_path / "table2.md").read_text()


@pytest.mark.full
def test_a_subset_with_few_clients_still_runs(call, tmp_path, monkeypatch):
    np.savez(tmp_path / "own.npz", x=np.eye(36), y=np.arange(36) % 2, client=np.arange(36) % 6)
    few = Column("Few", "./own.npz", "mclr", 2, aggregated=50, not_compared="part of it")
    monkeypatch.setitem(columns.ALL, "few", few)
    code, _, err = call("paper", "table2", "--columns", "few", "--rows", "fedavg", "--seeds", "1", "--out", "here")
    assert code == 0, err
    record = json.loads((tmp_path / "here" / "cells" / "table2" / "few" / "fedavg.json").read_text())
    assert record["aggregated"] == 2  # a third of 6


@pytest.mark.full
def test_one_impossible_cell_does_not_stop_the_table(call, small, tmp_path):
    options = ("paper", "aggregation", "--columns", "digits", "--seeds", "1", "--out", "here")
    code, out, err = call(*options, "--rows", "10,50")
    assert code == 0, err
    assert "digits 50: cannot be run: aggregated must be at most" in out
    assert call(*options, "--rows", "50")[0] == 2


def test_damaged_records_are_named(call, small, tmp_path):
    file = tmp_path / "here" / "cells" / "table2" / "digits" / "fedavg.json"
    file.parent.mkdir(parents=True)
    for text in ('{"a": ', "{}", "[]", "\x00"):
        file.write_text(text)
        code, _, err = call("paper", "table2", "--columns", "digits", "--rows", "fedavg", "--out", "here")
        assert code == 2
        assert "fedavg.json is damaged" in err
        assert len(err.splitlines()) == 1


@pytest.mark.full
def test_tuned_settings_are_chosen_without_the_test_samples(call, small, tmp_path, monkeypatch):
    monkeypatch.setitem(tuned.GRIDS, "pfedme", {"alpha_m": [1e-6, 0.05], "lam": [15.0]})
    seen = []
    real = records.sweep

    def watched(*given, federation, **more):
        seen.append(federation)
        return real(*given, federation=federation, **more)

    monkeypatch.setattr(records, "sweep", watched)
    options = ("paper", "tuned", "--columns", "digits", "--rows", "pfedme", "--seeds", "1", "--out", "here")
    code, out, err = call(*options)
    assert code == 0, err
    assert "pfedme: alpha_m = 0.05, lam = 15" in out  # so small a step learns nothing
    cell = json.loads((tmp_path / "here" / "cells" / "tuned" / "digits" / "pfedme.json").read_text())
    assert cell["fingerprint"]["settings"]["alpha_m"] == 0.05
    whole, (used,) = pfedbred.load("digits"), seen
    assert used.clients == whole.clients
    assert len(used.train.y) + len(used.validation.y) == len(whole.train.y)
    record = json.loads((tmp_path / "here" / "cells" / "tuning" / "digits" / "pfedme.json").read_text())
    assert record["chosen_on"] == "validation"
    assert call(*options)[0] == 0
    # The same settings, with the round chosen on validation samples.
    code, out, err = call("paper", "validated", *options[2:])
    assert code == 0, err
    assert len(seen) == 1
    found = json.loads((tmp_path / "here" / "validated.json").read_text())
    assert [(each["model"], each["splits"], each["chosen"] is None) for each in found] == [
        ("P", 1, False),
        ("G", 1, False),
    ]
    kept = json.loads((tmp_path / "here" / "cells" / "validated" / "digits" / "pfedme.json").read_text())
    assert (kept["fingerprint"]["validation"], kept["fingerprint"]["settings"]["alpha_m"]) == (0.2, 0.05)


# Figures ---------------------------------------------------------------------------------------------------


def test_deviations_are_the_papers():
    """Every definition of the paper's Personalization section, by loops."""
    rng = np.random.default_rng(0)
    offsets, classes = np.array([0, 4, 5, 9]), 3
    labels = np.array([0, 0, 1, 1, 1, 0, 0, 0, 1])  # no one has label 2, client 1 only label 1
    losses = rng.uniform(size=(3, 9))
    found = deviations(losses, labels, offsets, classes)
    for c in range(2):
        local, weight, all_ = [], [], []
        for i in range(3):
            mine = [losses[i, s] for s in range(offsets[i], offsets[i + 1]) if labels[s] == c]
            local.append(np.mean(mine) if mine else 0.0)
            weight.append(len(mine))
            all_.append(np.mean([losses[i, s] for s in range(9) if labels[s] == c]))
        mean_local = sum(value * w for value, w in zip(local, weight, strict=True)) / sum(weight)
        np.testing.assert_allclose(found.local[:, c], np.array(local) - mean_local)
        np.testing.assert_allclose(found.global_[:, c], np.array(all_) - np.mean(all_))
    np.testing.assert_array_equal(found.local[:, 2], 0)


@pytest.mark.full
def test_deviation_of_a_run_uses_each_clients_own_model():
    federation = small_federation(sizes=(6, 9, 5))
    run = pfedbred.run(federation=federation, rounds=2, aggregated=2, settings={"R": 2})
    found = deviation(run)
    test = federation.test
    losses = np.zeros((3, len(test.y)))
    for i in range(3):
        weights = run.personal_model(i)["output"]
        z = test.x @ np.asarray(weights["weight"]).T + np.asarray(weights["bias"])
        losses[i] = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(test.y)), test.y]
    expected = deviations(losses, test.y, test.offsets, federation.classes)
    np.testing.assert_allclose(found.local, expected.local, atol=1e-5)
    np.testing.assert_allclose(found.global_, expected.global_, atol=1e-5)


@pytest.mark.full
def test_every_figure_is_drawn_and_remembered(call, small, tmp_path, monkeypatch):
    monkeypatch.setitem(pictures.HYPER_GRIDS, "digits", {"eta": [0.01, 0.1]})
    rest = ("--columns", "digits", "--seeds", "1", "--rounds", "2", "--out", "here")
    drawn = {
        "hyper": ["hyper-digits-map.png", "hyper-digits-parallel.png"],
        "deviation": ["deviation-digits.png"],
        "noniid": ["noniid-digits.png"],
        "curves": ["curves-digits.png"],
    }
    rows = {"deviation": ("--rows", "pfedme,mg-meta"), "curves": ("--rows", "fedavg,pfedme", "--run")}
    for name, files in drawn.items():
        code, _, err = call("paper", name, *rest, *rows.get(name, ()))
        assert code == 0, err
        for file in files:
            assert (tmp_path / "here" / file).read_bytes().startswith(b"\x89PNG")
            assert (tmp_path / "here" / file).stat().st_mode & 0o777 == 0o600

    def no_more(*given, **more):
        raise AssertionError("run again")

    monkeypatch.setattr(pictures, "train", no_more)
    assert call("paper", "deviation", *rest, *rows["deviation"], "--federations", "nowhere")[0] == 0  # needs no data
    monkeypatch.setattr(records, "sweep", no_more)
    monkeypatch.setattr(running, "run_into", no_more)
    for name in drawn:
        assert call("paper", name, *rest, *rows.get(name, ()))[0] == 0


@pytest.mark.full
def test_curves_are_drawn_of_what_was_run(call, small, tmp_path, monkeypatch):
    options = ("--columns", "digits", "--seeds", "1", "--out", "here")
    code, _, err = call("paper", "curves", *options)
    assert (code, "here has no records of these cells" in err) == (2, True)
    assert call("paper", "table2", *options, "--rows", "fedavg")[0] == 0
    monkeypatch.setattr(running, "run_into", None)  # nothing is run
    code, out, err = call("paper", "curves", *options, "--rows", "fedavg,pfedme")
    assert code == 0, err
    assert "curves digits: no records of pfedme (--run runs what is missing)" in out
    assert (tmp_path / "here" / "curves-digits.png").exists()


def test_the_figure_of_settings_has_the_papers_ranges(small, tmp_path, monkeypatch):
    """eta up to 1, 0.5 on CIFAR-10 and 0.4 on Sent140; on CIFAR-10 the paper varies eta alone."""
    seen = {}

    def watched(file, name, column, experiment, grid, *given, **more):
        seen[file.stem] = grid
        raise StopIteration

    monkeypatch.setattr(pictures, "load_or_sweep", watched)
    for column in columns.COLUMNS:
        with pytest.raises(StopIteration):
            pictures.draw_hyper(paper.Request(tmp_path, paper.Federations(), [column]))
    assert seen.keys() == {f"hyper-{column}" for column in columns.COLUMNS}
    highest = {name.removeprefix("hyper-"): {key: max(grid[key]) for key in grid} for name, grid in seen.items()}
    assert highest.pop("cifar10-cnn") == {"eta": 0.5}
    assert highest.pop("sent140-lstm") == {"eta": 0.4, "lam": 100.0}
    assert all(each == {"eta": 1.0, "lam": 100.0} for each in highest.values())


@pytest.mark.full
def test_complexity_measures_what_the_method_has(call, tmp_path, monkeypatch):
    short = dict.fromkeys("NTRKM", (1, 2))
    monkeypatch.setattr(complexity, "_VALUES", short)
    monkeypatch.setattr(complexity, "_BASE", {"N": 2, "T": 1, "R": 1, "K": 1, "M": 2})
    code, out, err = call("paper", "complexity", "--rows", "fedem", "--out", "here")
    assert code == 0, err
    found = json.loads((tmp_path / "here" / "complexity.json").read_text())
    assert list(found["fedem"]) == list(complexity.METHODS["fedem"][0]) == list("NTRM")
    kept = found["fedem"]["M"]["bytes"]  # the server's components, and each client's weights of them
    assert 1.8 < kept[1] / kept[0] < 2.1
    assert (tmp_path / "here" / "complexity.png").stat().st_mode & 0o777 == 0o600
    assert "O(NTRM)" in out
