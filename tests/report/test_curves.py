"""curves.png of many methods."""

import dataclasses

import pytest

import pfedbred
from pfedbred.report import curves
from pfedbred.runs.record import RunRecord


@pytest.mark.parametrize(("methods", "inside"), [(10, True), (11, False), (33, False)])
def test_the_legend_of_many_methods_is_below_its_panel(methods, inside, finished, tmp_path, monkeypatch):
    """Beside the curves, not over them; that the layout cannot be made would be a warning, which is an error here."""
    run = RunRecord.read(finished / "run")
    runs = [
        dataclasses.replace(run, summary={**run.summary, "algorithm": f"learned-prior-{i}"}) for i in range(methods)
    ]
    drawn = []
    save = curves.save
    monkeypatch.setattr(curves, "save", lambda figure, path: (drawn.append(figure), save(figure, path)))
    curves.draw_comparison(runs, tmp_path / "curves.png")
    for axes in drawn[0].axes:
        panel, legend = axes.get_window_extent(), axes.get_legend().get_window_extent()
        assert (legend.y1 > panel.y0) == inside
        assert legend.y0 >= 0
        assert panel.height > 300


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
