"""The paper's figures, drawn from records alone: what they show, and what they say about it."""

import dataclasses

import numpy as np
import pytest
from support.page_folders import PLATFORM, change_json, write_json, write_paper

import pfedbred
from pfedbred import paper
from pfedbred.paper import columns, page, pictures
from pfedbred.report import curves, distribution, heatmap, parallel
from pfedbred.report.page import gather


@pytest.fixture
def drawn(monkeypatch):
    """The figures drawn, by file name; nothing is run, and no data is read."""
    figures = {}

    def no_data(*given):
        raise AssertionError("data was read")

    for module in (curves, heatmap, parallel):
        monkeypatch.setattr(module, "save", lambda figure, path: figures.update({path.name: figure}))
    monkeypatch.setattr(columns.Federations, "of", no_data)
    return figures


def draw(make, folder, *column_names, rows=None):
    """What a figure says while it is drawn from records."""
    said = []
    make(paper.Request(folder, paper.Federations(), column_names, rows, run=False, say=said.append))
    return said


def write_deviation(folder, column, row, own, everyone):
    """A deviation with these test samples by label."""
    values = {kind: np.linspace(-1, 1, len(own)).tolist() for kind in ("global", "local")}
    record = {**values, "samples": {"global": everyone, "local": own}}
    write_json(
        folder / "cells" / "deviation" / column / f"{row}.json",
        {**record, "fingerprint": {"rounds": 2}, "platform": PLATFORM},
    )


# From records alone ----------------------------------------------------------------------------------------


def test_what_is_recorded_is_drawn_and_what_is_missing_named(drawn, tmp_path):
    """Also of columns beyond the usual ones."""
    write_paper(tmp_path)
    write_deviation(tmp_path, "writers-mclr", "fo", own=[1, 2], everyone=[3, 4])
    missing = f"no records of {', '.join(name for name in columns.COLUMNS if name != 'mnist-mclr')}"
    assert draw(pictures.draw_hyper, tmp_path)[-1] == f"hyper: {missing} (--run runs what is missing)"
    assert drawn.keys() == {"hyper-mnist-mclr-map.png", "hyper-mnist-mclr-parallel.png"}
    said = draw(pictures.draw_deviation, tmp_path)
    rows = "per-fedavg, fedamp, fo, mfo"
    assert said[0] == f"deviation mnist-mclr: no records of {rows} (--run runs what is missing)"
    assert said[-1] == f"deviation: {missing} (--run runs what is missing)"
    assert {"deviation-mnist-mclr.png", "deviation-writers-mclr.png"} <= drawn.keys()
    assert draw(pictures.draw_deviation, tmp_path, "mnist-mclr", rows=["pfedme"])[1:] == []
    said = draw(pictures.draw_curves, tmp_path, "mnist-mclr", "skewed-cnn", rows=["fedavg"])
    assert said[-1] == "curves: no records of skewed-cnn (--run runs what is missing)"


@pytest.mark.parametrize("name", ["hyper", "deviation", "curves"])
def test_nothing_recorded_is_an_error(name, call):
    code, _, err = call("paper", name, "--no-run", "--out", "here")
    assert (code, err) == (2, "pfedbred: here has no records of these cells: run them with --run\n")


def test_a_damaged_sweep_is_named(call, tmp_path):
    write_paper(tmp_path / "here")
    change_json(tmp_path / "here" / "hyper-mnist-mclr.json", lambda facts: facts.pop("best"))
    code, _, err = call("paper", "hyper", "--no-run", "--out", "here")
    assert (code, "hyper-mnist-mclr.json is damaged" in err) == (2, True)


# Deviations and distributions ------------------------------------------------------------------------------


def test_clients_named_by_numbers_are_in_their_order(monkeypatch, tmp_path):
    """In the picture and on the page; names stay as they are."""
    monkeypatch.setitem(columns.ALL, "digits", columns.Column("Digits, MCLR", "digits", "mclr", 2))
    figures = []
    monkeypatch.setattr(distribution, "save", lambda figure, path: figures.append(figure))
    digits = pfedbred.load("digits", clients=4)
    for names, shown in [
        (["0", "10", "2", "33"], ["0", "2", "10", "33"]),
        (["b", "10", "2", "a"], ["b", "10", "2", "a"]),
    ]:
        federations = paper.Federations()
        federations._loaded["digits", "{}"] = dataclasses.replace(digits, names=tuple(names))
        pictures.draw_noniid(paper.Request(tmp_path, federations, ["digits"], say=lambda line: None))
        panel = figures.pop().axes[-1]
        assert [each.get_text() for each in panel.get_xticklabels()] == shown
        (federation,) = gather([tmp_path], [page.section()])["federations"]
        assert federation["names"] == shown
        counts = digits.test.label_counts(digits.classes)
        by_name = dict(zip(names, counts.tolist(), strict=True))
        assert federation["test"] == [by_name[name] for name in shown]
