"""The figures printed in the paper, in percent."""

from __future__ import annotations

from pfedbred.paper.columns import COLUMNS

_STAND_INS = {"writers-mclr": "femnist-mclr", "writers-dnn": "femnist-dnn"}

Printed = dict[tuple[str, str, str], float]
"""Figures by (column, row, model), where model is G or P."""


def _table(columns: list[str], lines: str) -> Printed:
    """Parses lines of a row's name, G or P, and one figure per column; a stand-in gets the figures of what it stands
    for.
    """
    found: Printed = {}
    for line in lines.strip().splitlines():
        row, model, *figures = line.split()
        for column, figure in zip(columns, figures, strict=True):
            found[column, row, model] = float(figure)
    stand_ins = {(name, *key[1:]): found[key] for name, meant in _STAND_INS.items() for key in found if key[0] == meant}
    return {**found, **stand_ins}


TABLE2 = _table(
    list(COLUMNS),
    """
    fedavg         G  53.96 57.94 82.90 81.22 86.96 88.74 58.27 71.15
    fedavg+am      G  56.07 60.03 83.04 81.93 87.10 89.86 59.17 71.67
    fedem          G  40.87 43.96 92.47 95.23 85.85 86.47 56.26 67.05
    fedamp         P  60.04 66.75 98.72 98.88 90.89 92.23 77.33 69.40
    pfedme         P  51.70 54.72 97.83 98.63 88.48 90.62 73.05 69.63
    pfedme         G  50.49 56.20 82.30 80.16 86.34 88.22 43.63 69.82
    pfedme+ft      P  52.16 53.79 97.69 98.63 88.37 91.71 65.04 68.19
    pfedme+ft      G  50.10 55.89 81.42 81.11 88.35 90.75 42.85 69.48
    pfedme+am      P  56.91 60.46 97.81 98.70 88.66 91.30 74.51 71.53
    pfedme+am      G  54.13 57.70 83.12 80.54 86.85 89.53 47.43 71.43
    per-fedavg     P  54.34 61.57 93.69 97.13 87.01 91.04 78.41 69.72
    per-fedavg     G  53.30 56.30 81.86 72.90 86.72 90.93 27.22 70.33
    per-fedavg+ft  P  55.41 63.99 95.53 98.55 87.23 91.31 79.55 70.11
    per-fedavg+ft  G  53.69 57.12 81.75 73.24 86.76 91.02 28.92 69.77
    per-fedavg+am  P  58.17 66.03 94.15 98.15 87.32 90.97 79.46 70.86
    per-fedavg+am  G  56.16 59.34 81.23 79.04 86.75 90.91 36.90 70.64
    mg-meta        P  56.38 65.29 98.57 98.88 89.90 92.07 79.86 72.25
    mg-meta        G  55.38 60.08 82.58 79.55 86.91 89.41 52.66 72.01
    mg-meta+ft     P  59.82 67.80 98.59 99.06 89.94 92.47 79.24 71.16
    mg-meta+ft     G  55.10 60.16 82.90 82.35 87.03 90.92 52.03 71.16
    mg-meta+am     P  60.64 70.34 98.57 98.94 89.93 92.32 80.63 73.81
    mg-meta+am     G  56.23 59.53 82.57 79.64 86.92 90.19 54.09 73.71
    """,
)
"""Table 2 (tbl_res_lnlm). Its row mg is ``mg-meta`` here, the variant that the experiments ran."""

ABLATION = _table(
    list(COLUMNS),
    """
    fo   P  49.39 49.30 97.78 98.34 88.30 90.42 65.26 60.87
    fo   G  50.16 19.74 81.64 74.49 86.11 88.06 22.53 60.43
    mfo  P  51.28 54.48 97.85 98.63 88.46 90.61 73.05 69.59
    mfo  G  50.16 56.07 82.17 80.04 86.30 88.16 43.55 69.69
    """,
)
"""Table 3 (tbl_res_ablation)."""

AGGREGATION = _table(
    ["femnist-dnn", "femnist-mclr", "fmnist-dnn", "fmnist-mclr"],
    """
    10   G  58.96 54.43 75.07 79.96
    20   G  60.08 55.38 79.55 82.58
    50   G  60.06 55.41 79.37 81.77
    100  G  59.82 55.52 79.34 82.72
    """,
)
"""The appendix's table of mg-meta by the number of clients averaged per round (appdx_tbl_aggregation)."""
