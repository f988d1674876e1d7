"""The paper's figures, drawn from records alone: what they show, and what they say about it."""

import dataclasses
import json

import numpy as np
import pytest
from support.page_folders import PLATFORM, change_json, write_json, write_paper

import pfedbred
from pfedbred import paper
from pfedbred.paper import columns, page, pictures
from pfedbred.report import curves, distribution, heatmap, parallel
from pfedbred.report.page import gather

JPEG = {"name": "cifar10", "clients": 20, "test_samples": 13649}
PIXELS = {**JPEG, "source": "the original pixels"}
WRITERS = {"name": "femnist", "clients": 12, "test_samples": 600}


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


def write_cells(folder, column, rows, *, data=None, points=40, noise=0.0, shift=0.0):
    """Records of Table 2, whose curves climb with some noise."""
    rng = np.random.default_rng(0)
    for place, row in enumerate(rows):
        mean = 60 + place + np.linspace(0, 20, points) + noise * rng.normal(size=points)
        curve = {"curve": mean.tolist(), "low": (mean - 1).tolist(), "high": (mean + 1).tolist()}
        figures = {name: [80.0 + place, 82.0 + place] for name in ("best", "final", "client_mean", "worst_decile")}
        model = {**figures, "best_round": [5, 5], **curve, "finite": True}
        record = {"rounds": list(range(10, 10 * points + 1, 10)), "seconds": 1.0, "G": model, "P": model}
        record |= {"platform": PLATFORM, "fingerprint": {}, **({"data": data} if data else {})}
        write_json(folder / "cells" / "table2" / column / f"{row}.json", record)


def write_deviation(folder, column, row, own, everyone):
    """A deviation with these test samples by label."""
    values = {kind: np.linspace(-1, 1, len(own)).tolist() for kind in ("global", "local")}
    record = {**values, "samples": {"global": everyone, "local": own}}
    write_json(
        folder / "cells" / "deviation" / column / f"{row}.json",
        {**record, "fingerprint": {"rounds": 2}, "platform": PLATFORM},
    )


def lines(axes):
    return {line.get_label().split()[0]: line.get_ydata() for line in axes.get_lines()}


# Curves ----------------------------------------------------------------------------------------------------


def test_fine_tuned_rows_have_a_curve_of_p_only(drawn, tmp_path):
    """Their G is that of the method, under whose line it would hide; without the method's record it is drawn."""
    write_cells(tmp_path, "mnist-mclr", ["fedavg", "pfedme", "pfedme+ft", "mg-meta+ft"])
    draw(pictures.draw_curves, tmp_path, "mnist-mclr")
    g, p = drawn["curves-mnist-mclr.png"].axes
    assert list(lines(g)) == ["fedavg", "pfedme", "mg-meta+ft"]
    assert list(lines(p)) == ["pfedme", "pfedme+ft", "mg-meta+ft"]
    assert (g.get_title(), p.get_title()) == ("Global model (G), the same with +ft", "Personal models (P)")


MANY = ["fedavg", "fedavg+am", "fedem", "pfedme", "pfedme+am", "per-fedavg", "per-fedavg+am", "mg-meta"]


def test_many_noisy_curves_are_averaged_and_the_title_says_so(drawn, tmp_path):
    write_cells(tmp_path, "mnist-mclr", MANY, noise=5)
    draw(pictures.draw_curves, tmp_path, "mnist-mclr")
    g, p = drawn["curves-mnist-mclr.png"].axes
    assert g.get_title() == "Global model (G)\n(lines: moving average over 50 rounds)"
    measured = json.loads((tmp_path / "cells/table2/mnist-mclr/pfedme.json").read_text())["G"]["curve"]
    line = lines(g)["pfedme"]
    assert line[10] == pytest.approx(np.mean(measured[8:13]))
    assert line[[0, -1]] == pytest.approx([np.mean(measured[:3]), np.mean(measured[-3:])])
    assert len(lines(p)) == 6  # too few to be in each other's way
    np.testing.assert_array_equal(lines(p)["pfedme"], measured)


@pytest.mark.parametrize(
    "given", [{"noise": 0.05}, {"noise": 5, "points": 5}], ids=["smooth curves", "fewer points than are averaged"]
)
def test_other_curves_are_drawn_as_measured(given, drawn, tmp_path):
    write_cells(tmp_path, "mnist-mclr", MANY, **given)
    draw(pictures.draw_curves, tmp_path, "mnist-mclr")
    g, _ = drawn["curves-mnist-mclr.png"].axes
    assert g.get_title() == "Global model (G)"
    measured = json.loads((tmp_path / "cells/table2/mnist-mclr/pfedme.json").read_text())["G"]["curve"]
    np.testing.assert_array_equal(lines(g)["pfedme"], measured)


def test_rows_of_different_data_are_marked(drawn, tmp_path):
    write_cells(tmp_path, "cifar10-cnn", ["fedavg", "pfedme"], data=PIXELS)
    write_cells(tmp_path, "cifar10-cnn", ["fedem"], data=JPEG)
    write_cells(tmp_path, "cifar10-cnn", ["mg-meta"])  # of an earlier version, which does not say
    draw(pictures.draw_curves, tmp_path, "cifar10-cnn")
    figure = drawn["curves-cifar10-cnn.png"]
    assert list(lines(figure.axes[0])) == ["fedavg", "fedem*", "pfedme", "mg-meta"]
    assert figure.get_suptitle() == "CIFAR-10, CNN, 20 clients: mean and range of 2 seeds"
    assert figure.get_supxlabel() == (
        "* measured on different data, not to be compared with the others "
        "(a JPEG copy of the images: accuracies may be slightly lower than with the originals)"
    )
    write_cells(tmp_path, "cifar10-cnn", ["fedem"], data=PIXELS)
    draw(pictures.draw_curves, tmp_path, "cifar10-cnn")
    figure = drawn["curves-cifar10-cnn.png"]
    assert (list(lines(figure.axes[0]))[1], figure.get_supxlabel()) == ("fedem", "")


def test_titles_say_which_part_of_the_papers_data_it_is(drawn, tmp_path):
    """Of deviations, which did not record it, by Table 2's records of the same test samples."""
    write_cells(tmp_path, "femnist-mclr", ["fedavg"], data=WRITERS)
    write_deviation(tmp_path, "femnist-mclr", "pfedme", own=[20, 30], everyone=[400, 200])
    for make in (pictures.draw_curves, pictures.draw_deviation):
        draw(make, tmp_path, "femnist-mclr")
    part = "(a part of FEMNIST, not the writers that the paper sampled)"
    titles = {name: figure.get_suptitle().splitlines() for name, figure in drawn.items()}
    assert titles == {
        "curves-femnist-mclr.png": ["FEMNIST, MCLR, 12 clients: mean and range of 2 seeds", part],
        "deviation-femnist-mclr.png": [
            "FEMNIST, MCLR, 12 clients: deviation of the first client's personal model",
            part,
        ],
    }
    write_deviation(tmp_path, "femnist-mclr", "pfedme", own=[20, 30], everyone=[400, 201])
    draw(pictures.draw_deviation, tmp_path, "femnist-mclr")
    assert drawn["deviation-femnist-mclr.png"].get_suptitle().startswith("FEMNIST, MCLR: deviation")


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


@pytest.mark.parametrize("facts", [{"seeds": 5}, {"experiment": {"seeds": 5}}], ids=["now", "earlier"])
def test_maps_of_settings_are_named_by_column_and_seeds(facts, drawn, tmp_path):
    write_paper(tmp_path)
    file = tmp_path / "hyper-mnist-mclr.json"
    experiment = json.loads(file.read_text())["experiment"] | facts.get("experiment", {})
    change_json(file, lambda record: record.update({**facts, "experiment": experiment}))
    draw(pictures.draw_hyper, tmp_path, "mnist-mclr")
    title = "MNIST, MCLR: mg-meta, 2 rounds, 5 seeds; best P at eta = 0.1, lam = 15"
    assert [figure.get_suptitle() for figure in drawn.values()] == [title] * 2


# Deviations and distributions ------------------------------------------------------------------------------


def test_samples_are_counted_in_whole_numbers(drawn, tmp_path):
    write_deviation(tmp_path, "writers-mclr", "fo", own=[0, 1, 3], everyone=[3, 4, 5])
    draw(pictures.draw_deviation, tmp_path, "writers-mclr")
    *_, behind = drawn["deviation-writers-mclr.png"].axes
    assert behind.get_ylabel() == "test samples of the label"
    ticks = behind.get_yticks()
    assert len(ticks) > 1
    np.testing.assert_array_equal(ticks, np.round(ticks))


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
