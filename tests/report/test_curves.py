"""curves.png: its legends and ranges."""

import dataclasses

import numpy as np
import pytest
from support import page_folders
from support.page_folders import write_run

import pfedbred
from pfedbred.report import curves
from pfedbred.runs.record import RunRecord


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, in their final layout."""
    figures, save = [], curves.save
    monkeypatch.setattr(curves, "save", lambda figure, path: (figures.append(figure), save(figure, path)))
    return figures


def assert_below(panels):
    """Each legend is below its panel and its labels, within the picture."""
    for axes in panels:
        panel, legend = axes.get_window_extent(), axes.get_legend().get_window_extent()
        assert legend.y1 < axes.xaxis.label.get_window_extent().y0
        assert legend.y0 >= 0
        assert legend.x0 >= 0
        assert legend.x1 <= axes.figure.bbox.x1
        assert panel.height > 300


@pytest.mark.parametrize(
    ("methods", "name"), [(1, "fedavg"), (3, "fedavg"), (11, "learned-prior"), (33, "learned-prior"), (8, "x" * 60)]
)
def test_the_legend_of_a_comparison_is_below_its_panel(methods, name, finished, drawn, tmp_path):
    """Not over the curves; that the layout cannot be made would be a warning, which is an error here."""
    run = RunRecord.read(finished / "run")
    runs = [dataclasses.replace(run, summary={**run.summary, "algorithm": f"{name}-{i}"}) for i in range(methods)]
    curves.draw_comparison(runs, tmp_path / "curves.png")
    assert_below(drawn[0].axes)


def test_the_legends_of_a_run_are_below_their_panels(finished, drawn, tmp_path):
    curves.draw_run(RunRecord.read(finished / "run"), tmp_path / "curves.png")
    assert_below(drawn[0].axes[:2])


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((), ["accuracy"]),
        (("f1", "rmse"), ["accuracy", "macro F1", "RMSE"]),
        (("f1", "rmse", "more", "and", "others"), ["accuracy", "macro F1", "RMSE", "more", "and", "others"]),
    ],
)
def test_every_metric_but_the_loss_has_a_panel_of_clients(names, shown, drawn, tmp_path, monkeypatch):
    for name in ("more", "and", "others"):
        monkeypatch.setitem(page_folders.INFO, name, {"title": name, "percent": False, "higher_is_better": False})
    write_run(tmp_path, metrics=names)
    run = RunRecord.read(tmp_path)
    run.summary["data"]["clients"], run.experiment["seeds"], run.experiment["aggregated"] = 3, 2, 3
    curves.draw_run(run, tmp_path / "curves.png")
    panels = [axes for axes in drawn[0].axes if axes.get_xlabel() == "rank of the client by G"]
    assert [axes.get_ylabel().removeprefix("test ").removesuffix(" (%)") for axes in panels] == shown
    for axes, name in zip(panels, ("accuracy", *names), strict=True):
        g = run.points[-1].scores.global_.test.clients[name].mean(axis=0)
        scale = 100 if run.metrics[name]["percent"] else 1
        np.testing.assert_allclose(axes.collections[1].get_offsets()[:, 1], scale * np.sort(g))


def test_circles_are_explained(drawn, tmp_path):
    write_run(tmp_path, validation=True)
    run = RunRecord.read(tmp_path)
    experiment = {**run.experiment, "seeds": 2, "aggregated": 3}
    run = dataclasses.replace(
        run, summary={**run.summary, "experiment": experiment, "data": {"name": "mine", "clients": 3}}
    )
    curves.draw_comparison([run], tmp_path / "curves.png")
    titles = [axes.get_legend().get_title().get_text() for axes in drawn[0].axes]
    assert set(titles[:2]) == {"at the chosen round, in % (circles: each seed's chosen round)"}
    assert titles[-1] == "at the chosen round (circles: each seed's chosen round)"  # RMSE


@pytest.mark.full
def test_a_model_that_is_never_trained_is_not_compared(tmp_path, monkeypatch):
    """G of ``local`` stays where it started, and would set the range of both panels."""
    names = ("local", "fedavg")
    options = {"clients": 5, "rounds": 3, "seeds": 2, "validation": 0.2}
    runs = [pfedbred.run(algorithm=name, settings={"R": 2}, **options).record() for name in names]
    drawn = []
    monkeypatch.setattr(curves, "save", lambda figure, path: drawn.append(figure))
    curves.draw_comparison(runs, tmp_path / "curves.png")
    left, right = drawn[0].axes
    assert [each.get_text().split()[0] for each in left.get_legend().get_texts()] == ["fedavg"]
    assert [each.get_text().split()[0] for each in right.get_legend().get_texts()] == ["local", "fedavg"]
    lowest = min(runs[1].curve("accuracy", model).min() for model in ("global", "personal"))
    assert left.get_ylim()[0] > 100 * min(lowest, runs[0].curve("accuracy", "personal").min()) - 10
    curves.draw_comparison(runs[:1], tmp_path / "curves.png")
    assert len(drawn[1].axes[0].lines) == 1
