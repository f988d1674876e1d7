"""What a run says of its data."""

from types import SimpleNamespace

import pytest
from conftest import small_federation

from pfedbred.report.terminal import show_federation


@pytest.mark.parametrize(
    ("sizes", "cohort", "weights", "said"),
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
def test_clients_that_count_for_less_than_they_hold(sizes, cohort, weights, said, capsys):
    federation = small_federation(sizes)
    backend = SimpleNamespace(
        federation=federation, samples=federation, evaluated=None, plan=SimpleNamespace(weights=weights)
    )
    show_federation(backend, cohort=cohort)
    out = capsys.readouterr().out
    assert out.count("\n") == (1 if said is None else 2)
    assert (said or "") in out
