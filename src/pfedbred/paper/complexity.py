"""Measured time and memory of a run against N, T, R, K and M, compared with the paper's O(.).

According to the paper, pFedBreD, pFedMe and FedAMP need O(N) memory and O(NTRK) time, FedAvg and Per-FedAvg O(N) and
O(NTR), and FedEM, with M components, O(NM) and O(NTRM). Here FedAMP solves its proximal problem in R steps without K.

Each quantity is varied alone. The slope of ln(time) over ln(quantity) should be at most the exponent, 1, and approach
it as the work outweighs the fixed cost of a round. Samples are random, as their values do not affect the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pfedbred.data.client_arrays import from_clients
from pfedbred.data.federation import Federation
from pfedbred.experiment.building import build
from pfedbred.experiment.configuration import Experiment
from pfedbred.io.atomic import write_json, write_text
from pfedbred.io.shapes import NUMBER, Some
from pfedbred.paper.records import Request, chosen, load_or_measure, read_measured, record_file
from pfedbred.report import curves
from pfedbred.runs.provenance import platform_facts

_BASE = {"N": 40, "T": 4, "R": 10, "K": 5, "M": 3}
_VALUES = {"N": (10, 20, 40, 80), "T": (2, 4, 8, 16), "R": (5, 10, 20, 40), "K": (2, 5, 10, 20), "M": (1, 2, 4, 8)}
_RECORD = {"measured": {name: Some(NUMBER) for name in ("values", "seconds", "bytes")}}
METHODS: Mapping[str, tuple[str, str, str]] = {
    "fedavg": ("NTR", "O(NTR)", "O(N)"),
    "per-fedavg": ("NTR", "O(NTR)", "O(N)"),
    "pfedme": ("NTRK", "O(NTRK)", "O(N)"),
    "fedamp": ("NTR", "O(NTRK)", "O(N)"),
    "mg-meta": ("NTRK", "O(NTRK)", "O(N)"),
    "fedem": ("NTRM", "O(NTRM)", "O(NM)"),
}
"""For each method: the quantities it has here, and the paper's time and memory."""


def _federation(clients: int) -> Federation:
    rng = np.random.default_rng(0)

    def samples(size: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(size, 784)).astype(np.float32), rng.integers(0, 10, size).astype(np.int32)

    return from_clients([samples(100) for _ in range(clients)], [samples(10) for _ in range(clients)], name="random")


def _measure(method: str, amounts: Mapping[str, int], repeats: int) -> dict[str, float]:
    """Seconds for T rounds, and bytes of the run's state."""
    settings: dict[str, float] = {name: amounts[name] for name in METHODS[method][0] if name in "RKM"}
    if method == "fedamp":
        settings |= {"alpha_k": 1.0, "sigma": float(amounts["N"])}
    experiment = Experiment(algorithm=method, model="dnn", settings=settings)
    backend = build(experiment, _federation(amounts["N"])).backend
    states = jax.block_until_ready(backend.advance(backend.init([0]), 1))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        states = jax.block_until_ready(backend.advance(states, amounts["T"]))
        times.append(time.perf_counter() - started)
    return {"seconds": min(times), "bytes": backend.state_bytes()}


def run_complexity(request: Request) -> None:
    """Measures every method, then writes a table of slopes and draws time against each quantity."""
    for method in chosen("row", METHODS, request.rows):
        for quantity in METHODS[method][0]:

            def measure(method: str = method, quantity: str = quantity) -> dict[str, Any]:
                request.stop_if_wanted(f"complexity {method} {quantity}")
                points = [_measure(method, {**_BASE, quantity: value}, 5) for value in _VALUES[quantity]]
                by_name = {name: [each[name] for each in points] for name in points[0]}
                return {"measured": {"values": _VALUES[quantity], **by_name}}

            device = platform_facts()["device"]
            wanted = {"base": _BASE, "values": list(_VALUES[quantity]), "method": method, "device": device}
            file = record_file(request.out, "complexity", method, quantity)
            record, new = load_or_measure(file, wanted, measure, _RECORD)
            slope, done = _slope(record["measured"], "seconds"), "" if new else ", already done"
            request.say(f"complexity {method} {quantity}: time grows as {quantity}^{slope:.2f}{done}")
    found = {}
    for method, (quantities, _, _) in METHODS.items():  # also those measured earlier
        files = [record_file(request.out, "complexity", method, each) for each in quantities]
        measured = [known["measured"] for file in files if (known := read_measured(file, _RECORD))]
        if len(measured) == len(quantities):
            found[method] = dict(zip(quantities, measured, strict=True))
    _write(found, request)


def _slope(measured: Mapping[str, Any], what: str) -> float:
    return float(np.polyfit(np.log(measured["values"]), np.log(measured[what]), 1)[0])


_WHY = (
    "Reasons for slopes well below 1: of the K proximal steps only the first needs the first layer's large matrix;",
    "FedAMP compares every client's model with every other's, whatever R is; between rounds, clients of FedAvg,",
    "Per-FedAvg and FedEM keep no model, so that only the server's models take memory.",
)


def _write(found: Mapping[str, Mapping[str, Any]], request: Request) -> None:
    lines = [
        "# Complexity",
        "",
        "Slopes of ln(time of T rounds) and ln(bytes kept) over ln(quantity), each varied alone from "
        f"{', '.join(f'{name} = {value}' for name, value in _BASE.items())}; DNN, random samples, "
        f"{platform_facts()['device']}, {platform_facts()['cpus']} cores.",
        "",
        "| method | paper: time, memory | N | T | R | K | M | bytes: N | bytes: M |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method, measured in found.items():
        cells = [f"{_slope(measured[each], 'seconds'):.2f}" if each in measured else "" for each in "NTRKM"]
        kept = [f"{_slope(measured[each], 'bytes'):.2f}" if each in measured else "" for each in "NM"]
        _, time_, memory = METHODS[method]
        lines.append(f"| {method} | {time_}, {memory} | {' | '.join((*cells, *kept))} |")
    text = "\n".join([*lines, "", *_WHY]) + "\n"
    write_text(request.out / "complexity.md", text)
    write_json(request.out / "complexity.json", found)
    figure, panels = curves.new_figure(5, 3.4, width=2.6)
    for axes, quantity in zip(panels, _VALUES, strict=True):
        for index, (method, measured) in enumerate(found.items()):
            if quantity in measured:
                seconds = np.array(measured[quantity]["seconds"])
                values = measured[quantity]["values"]
                axes.loglog(values, seconds, marker="o", color=curves.colour(index), label=method)
        axes.set_xlabel(quantity)
        axes.set_xticks(_VALUES[quantity], map(str, _VALUES[quantity]))
        axes.minorticks_off()
    times = [seconds for measured in found.values() for each in measured.values() for seconds in each["seconds"]]
    for axes in panels:
        axes.set_ylim(0.8 * min(times), 1.25 * max(times))
    panels[0].set_ylabel("seconds")
    handles = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8, edgecolor="none")
    words = "time of T rounds against N clients, T rounds, R local steps, K proximal steps, M components"
    figure.suptitle(words, fontsize=11)
    curves.save(figure, request.out / "complexity.png")
    request.say(f"\n{text}\npicture: {request.out / 'complexity.png'}")
