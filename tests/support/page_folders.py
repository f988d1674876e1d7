"""Run, sweep and paper folders written by hand, small and with known numbers, for the tests of the page."""

import json

import numpy as np

PLATFORM = {"device": "cpu", "backend": "cpu", "jax": "0.10"}
INFO = {
    "accuracy": {"title": "accuracy", "percent": True, "higher_is_better": True},
    "loss": {"title": "loss", "percent": False, "higher_is_better": False},
    "f1": {"title": "macro F1", "percent": True, "higher_is_better": True},
    "rmse": {"title": "RMSE", "percent": False, "higher_is_better": False},
}


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def change_json(path, change):
    """Applies ``change`` to the content of a JSON file."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def write_run(
    folder,
    algorithm="mg-meta",
    *,
    schema=2,
    clients=("a", "b", "c"),
    rounds=3,
    seeds=2,
    metrics=("f1", "rmse"),
    validation=False,
    seed=0,
):
    """A finished run with random scores; returns its evaluations. Schema 1 has accuracy and loss only."""
    rng = np.random.default_rng([len(algorithm), *([seed] if seed else [])])
    parts = ("train", "validation", "test") if validation else ("train", "test")
    names = ("accuracy", "loss", *(metrics if schema == 2 else ()))

    def scores():
        each = {name: rng.uniform(size=seeds).tolist() for name in names}
        spread = {name: rng.uniform(size=seeds).tolist() for name in ("worst_decile", "client_std")}
        of_clients = {f"client_{name}": rng.uniform(size=(seeds, len(clients))).round(4).tolist() for name in names}
        return {**each, **spread, **of_clients}

    lines = [
        {
            **({"schema": 2} if schema == 2 else {}),
            "round": number,
            "seconds": 0.1,
            **{model: {part: scores() for part in parts} for model in ("global", "personal")},
            "rejected" if schema == 2 else "left_out": [{}] * seeds,
            "skipped": [0] * seeds,
            "skipped_in_row": [0] * seeds,
        }
        for number in range(1, rounds + 1)
    ]
    experiment = {"dataset": "mine", "model": "mclr", "algorithm": algorithm, "rounds": rounds, "settings": {"R": 2}}
    summary = {"algorithm": algorithm, "model": "mclr", "seeds": seeds, "seconds": {"round": 0.0123}}
    summary |= {"data": {"name": "mine"}, "experiment": experiment, "platform": PLATFORM}
    of_model = {name: {"mean": 0.5, "std": 0.1} for name in ("best_accuracy", "final_worst_decile")}
    summary |= {"global": of_model, "personal": of_model, "rounds": rounds, "newcomers": None, "scored": None}
    summary |= {
        "rejected" if schema == 2 else "left_out": [{}] * seeds,
        "skipped_rounds": [0] * seeds,
        "diverged": None,
    }
    if schema == 2:
        summary["metric_info"] = {name: INFO[name] for name in names}
    write_json(folder / "summary.json", summary)
    write_lines(folder, lines)
    counts = [[2 * i, 3] for i in range(len(clients))]
    data = {"name": "mine", "clients": len(clients), "names": list(clients), "labels": ["0", "1"]}
    parts = dict.fromkeys(("train", "validation", "test"), counts)
    write_json(folder / "data.json", {**data, **parts})
    return lines


def add_calibration(folder, clients=3):
    """Adds the calibration of classes to a finished run: the first client is calibrated alone; G covers half."""

    def figure(value):
        estimate = {"mean": value, "std": 0.0}
        return {"mean": estimate, "worst_tenth": estimate, "clients": [value] * clients}

    def model(coverage):
        bins = [i / 15 for i in range(1, 16)]
        diagram = {"samples": [0, *range(1, 15)], "confidence": [None, *bins[1:]], "accuracy": [None, *bins[1:]]}
        names = ("nll", "brier", "ece", "nll_before", "brier_before", "ece_before", "size")
        figures = {"coverage": figure(coverage), **{name: figure(0.25) for name in names}}
        return {"figures": figures, "reliability": {"before": diagram, "after": diagram}}

    found = {"version": 1, "coverage": 0.9, "own_samples": 19, "own": [i == 0 for i in range(clients)]}
    found |= {"global": model(0.5), "personal": model(0.95)}
    change_json(folder / "summary.json", lambda summary: summary.update(calibration=found))


def write_lines(folder, lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_comparison(folder, algorithms=("fedavg", "mg-meta"), **given):
    for name in algorithms:
        write_run(folder / name, name, **given)
    write_json(folder / "table.json", [{"algorithm": name} for name in algorithms])


def write_sweep(path):
    points = [
        {"eta": eta, "lam": lam, "global": 0.5, "personal": eta + lam / 100} for eta in (0.01, 0.1) for lam in (5, 15)
    ]
    experiment = {"algorithm": "mg-meta", "settings": {"eta": 0.05}, "dataset": "digits", "model": "mclr", "rounds": 2}
    facts = {"algorithm": "mg-meta", "grid": ["eta", "lam"], "best": {"eta": 0.1, "lam": 15}, "points": points}
    write_json(path, {**facts, "experiment": experiment, "platform": PLATFORM, "fingerprint": {}})


def write_paper(folder, columns=("mnist-mclr", "femnist-mclr"), rows=("fedavg", "mg-meta", "mg-meta+am")):
    """Two columns of Table 2 with their records, of which the second is of other data; a sweep, deviations, data."""
    cells = []
    for place, (column, row) in enumerate((column, row) for column in columns for row in rows):
        mean = 80.0 + place
        curve = {"curve": [mean - 10.123, mean], "low": [mean - 11, mean - 1], "high": [mean - 9, mean + 1]}
        best = {
            "best": [mean - 1, mean + 1],
            "best_round": [2, 2],
            "final": [mean - 1.5, mean + 0.5],
            "client_mean": [mean] * 2,
            "worst_decile": [60.0] * 2,
        }
        model = {**best, **curve, "finite": True}
        record = {"rounds": [1, 2], "seconds": 1.0, "G": model, "P": model, "platform": PLATFORM, "fingerprint": {}}
        write_json(folder / "cells" / "table2" / column / f"{row}.json", record)
        for letter in "G" if row == "fedavg" else "PG":
            figure = {"column": column, "row": row, "model": letter, "mean": mean, "std": 1.41, "paper": 79.0}
            cells.append({**figure, "last": mean - 0.5, "last_std": 1.41, "n": 2, "rounds": 2})
    write_json(folder / "table2.json", cells)
    for method, rounds in {"mg-meta": 2, "pfedme": 7}.items():
        values = {"global": [0.1, -0.2], "local": [0.3, None], "samples": {"global": [5, 6], "local": [2, 0]}}
        facts = {"fingerprint": {"rounds": rounds}, "platform": PLATFORM}
        write_json(folder / "cells" / "deviation" / columns[0] / f"{method}.json", {**values, **facts})
    data = {"name": "mnist-paper", "clients": 2, "names": ["0", "1"], "labels": ["0", "1"]}
    write_json(folder / "noniid-mnist-paper.json", {**data, "train": [[1, 2], [3, 0]], "test": [[1, 0], [1, 0]]})
    write_sweep(folder / "hyper-mnist-mclr.json")
