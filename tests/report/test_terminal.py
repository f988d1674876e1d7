"""What a run says of its data."""

import re
from types import SimpleNamespace

import pytest
from conftest import small_federation

from pfedbred.report.outcomes import rounds_words
from pfedbred.report.sweeps import show_sweep
from pfedbred.report.terminal import show_federation


@pytest.mark.parametrize(
    ("sizes", "aggregated", "weights", "said"),
    [
        (
            [8] * 9 + [60],
            10,
            "data",
            "1 client holds more samples than the averaging-weight cap, about 56; see --weights",
        ),
        ([8] * 8 + [60, 70], 10, "data", "2 clients hold more samples than the averaging-weight cap, about 56"),
        ([8] * 9 + [56], 10, "data", None),
        ([8] * 9 + [60], 4, "data", "1 client holds more samples than the averaging-weight cap, about 22"),
        ([8] * 3 + [60], 4, "data", "1 client holds more samples than the averaging-weight cap, about 24"),
        ([8] * 3 + [24], 4, "data", None),
        ([8] * 9 + [60], 10, "unbounded", None),
        ([8] * 9 + [60], 10, "uniform", None),
    ],
)
def test_clients_that_count_for_less_than_they_hold(sizes, aggregated, weights, said, capsys):
    federation = small_federation(sizes)
    backend = SimpleNamespace(
        federation=federation, samples=federation, evaluated=None, plan=SimpleNamespace(weights=weights)
    )
    show_federation(backend, aggregated=aggregated)
    out = capsys.readouterr().out
    assert out.count("\n") == (1 if said is None else 2)
    assert (said or "") in out


def test_a_sweep_shows_the_scores_that_order_its_points(capsys):
    """Points are best first by their validation scores, whatever the test says."""
    estimate = {"mean": 0.5, "half_width": None}
    figures = dict.fromkeys(("chosen", "last", "best"), estimate)

    def point(lam, score):
        scores = {"global": 0.1, "personal": score}
        models = {"global": figures, "personal": figures}
        return {"lam": lam, "measured": {"score": scores, "figures": models, "rounds": 1}}

    facts = {
        "algorithm": "pfedme",
        "grid": ["lam"],
        "points": [point(1.0, 0.71), point(2.0, None), point(3.0, 0.83)],
        "seconds": {"total": 1.0, "compile": 0.5},
        "metric": {"title": "accuracy", "percent": True, "higher_is_better": True},
        "chosen_on": "validation",
        "seeds": 1,
        "experiment": {"rounds": 1},
    }
    show_sweep(facts)
    out = capsys.readouterr().out
    assert re.search(r"\| lam \| P validation \|", out)
    assert re.findall(r"\| +(\d) \| +(\S+) \|", out) == [("3", "83.00"), ("1", "71.00"), ("2", "-")]
    show_sweep({**facts, "chosen_on": "test"})
    assert "P validation" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([None], "40 rounds"),
        ([9], "9 of 40 rounds"),
        ([9, 9], "9 of 40 rounds"),
        ([9, 12], "up to 12 of 40 rounds"),
        ([9, None], "up to 40 rounds"),
    ],
)
def test_titles_say_how_many_rounds_there_were(ends, words):
    runs = [{"rounds": 40, "finished_early": end and {"reason": "no progress", "round": end}} for end in ends]
    assert rounds_words(runs) == words
    assert rounds_words([{"rounds": 1}]) == "1 round"
