"""curves.png of many methods."""

import dataclasses

import pytest

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
