"""heatmap.png and parallel coordinates: the scales of axes and colours."""

import numpy as np
import pytest

from pfedbred.report import heatmap, parallel


def record(points, grid=None):
    """The record of a sweep of alpha and lam; G is null, as of a method whose G diverges, and P is not."""
    facts = {"algorithm": "mg-meta", "grid": ["alpha", "lam"], "experiment": {"rounds": 1}}
    facts["points"] = [
        {"alpha": a, "lam": lam, "global": None, "personal": 0.1 * i} for i, (a, lam) in enumerate(points)
    ]
    facts["best"] = dict(zip(("alpha", "lam"), points[-1], strict=True))
    return facts if grid is None else {**facts, "plan": {"grid": grid}}


def test_axes_have_the_scales_of_the_ranges():
    """However near to each other the numbers drawn from them happen to be."""
    grid = ["alpha=log:0.001:0.3", "lam = 0.1:100"]
    assert heatmap.points_of(record([(0.01, 0.1), (0.02, 7), (0.04, 99)], grid)).scales == ("log", "linear")
    swapped = ["alpha=0.001:0.3", "lam = log:0.1:100"]
    assert heatmap.points_of(record([(0.01, 0.1), (0.02, 7), (0.04, 99)], swapped)).scales == ("linear", "log")


def test_axes_of_listed_values_follow_their_steps():
    def scales(alpha, lam, grid=None):
        return heatmap.points_of(record(list(zip(alpha, lam, strict=True)), grid)).scales

    assert scales([0.01, 0.05, 0.1], [0.005, 0.0525, 0.1]) == ("log", "linear")
    assert scales([0.01, 0.05, 0.1], [1, 2, 9], ["alpha=0.01,0.05,0.1", "lam=1,2,9"]) == ("log", "linear")
    assert scales([0, 1, 100], [3, 3, 3]) == ("linear", "linear")


@pytest.mark.parametrize("sign", [1, -1])
def test_no_value_at_all_has_a_range_of_colours(sign):
    nothing = np.full((2, 2), np.nan)
    low, high = heatmap.shown_range(nothing, sign)
    assert low < high
    assert heatmap.beyond(nothing, low, high) == "neither"


@pytest.mark.parametrize("module", [heatmap, parallel])
@pytest.mark.parametrize(
    "points", [[(1, 1), (1, 2), (2, 1), (2, 2)], [(1, 1), (2, 3), (4, 2)]], ids=["a grid", "not a grid"]
)
def test_a_sweep_whose_global_models_all_diverged_is_drawn(module, points, tmp_path):
    module.draw_points(record(points), tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
