"""A federation's data distribution as the paper draws it: a dot for each client and label, sized by its samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.data.federation import Federation, Part, Split
from pfedbred.data.label_table import label_table
from pfedbred.data.labels import in_words
from pfedbred.report.curves import literal, new_figure, save
from pfedbred.runs.statistics import evenly_spaced

_SHOWN: dict[Part, tuple[str, str]] = {
    "train": ("training", "#0072B2"),
    "validation": ("validation", "#009E73"),
    "test": ("test", "#D55E00"),
}
"""For each part, its name in the title and its colour."""

_MOST_CLIENTS = 200  # that can be distinguished
_MOST_LABELS = 70


def draw_distribution(federation: Federation, path: Path) -> None:
    """Draws training samples above validation samples, if any, and test samples: clients along x, labels along y."""
    clients = evenly_spaced(federation.clients, _MOST_CLIENTS)
    if federation.names:
        clients = clients[in_order([federation.names[i] for i in clients])]
    table = label_table(federation, clients)
    classes = len(table.names)
    width = float(np.clip(2.2 + 0.125 * len(clients), 7, 16))
    height = float(np.clip(0.26 * min(classes, _MOST_LABELS), 1.6, 9))
    parts = federation.parts
    figure, rows = new_figure(1, len(parts) * (height + 0.5) + 1.0, width, rows=len(parts), sharex=True)
    panels = rows[:, 0]
    spacing = 72 * min((width - 1.6) / max(len(clients), 1), height / max(classes, 1))
    diameter = float(np.clip(2 * spacing, 4, 22))  # of a panel's largest dot, in points; few dots overlap
    for axes, (part, split) in zip(panels, parts.items(), strict=True):
        (word, colour), count = _SHOWN[part], table.counts[part]
        largest = max(1, int(count.max(initial=0)))
        _draw(axes, count, clients, largest, diameter, colour)
        axes.set_title(f"{word}: {len(split.y):,} samples, {_range(split)} per client", fontsize=10, loc="left")
        _name_labels(axes, table.names)
        _legend(axes, largest, diameter, colour)
    _name_clients(panels[-1], federation, clients)
    panels[-1].set_xlabel(
        "client" if len(clients) == federation.clients else f"client ({len(clients)} of {federation.clients:,} shown)"
    )
    about = ", ".join(f"{key} {value}" for key, value in federation.about.items())
    title = f"{federation.name}: {federation.clients:,} clients, {in_words(federation.task, federation.classes)}"
    figure.suptitle(f"{literal(title)}\n{literal(about)}", fontsize=11)
    save(figure, path)


def in_order(names: Sequence[str]) -> list[int]:
    """The places of these clients as a reader expects them: numbers by their size, as 2 before 10; others as given."""
    places = range(len(names))
    if not all(name.isdecimal() for name in names):
        return list(places)
    return sorted(places, key=lambda place: (len(names[place]), names[place]))


def _area(count: np.ndarray, largest: int, diameter: float) -> np.ndarray:
    """The area of a dot in square points: proportional to the count, but never too small to see."""
    return np.maximum(count / largest * diameter**2, 1.2)


def _draw(axes: Any, counts: np.ndarray, clients: np.ndarray, largest: int, diameter: float, colour: str) -> None:
    place, label = np.nonzero(counts)
    areas = _area(counts[place, label], largest, diameter)
    order = np.argsort(-areas)  # small dots on top of large ones
    axes.scatter(place[order], label[order], s=areas[order], color=colour, alpha=0.7, linewidths=0, zorder=2)
    axes.set_xlim(-1, len(clients))
    axes.set_ylim(-0.8, counts.shape[1] - 0.2)


def _name_clients(axes: Any, federation: Federation, clients: np.ndarray) -> None:
    every = next(each for each in (1, 2, 5, 10, 20, 50) if len(clients) / each <= 25)
    ticks = range(0, len(clients), every)
    names = [literal(federation.names[clients[i]][:16]) if federation.names else str(clients[i]) for i in ticks]
    long = max(map(len, names), default=0) > 4
    axes.set_xticks(list(ticks), names, **({"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if long else {}))


def _name_labels(axes: Any, names: Sequence[str]) -> None:
    every = max(1, -(-len(names) // 35))
    ticks = range(0, len(names), every)
    axes.set_yticks(list(ticks), [literal(names[label][:16]) for label in ticks])
    axes.set_ylabel("label")


def _legend(axes: Any, largest: int, diameter: float, colour: str) -> None:
    """Explains the sizes of the dots."""
    amounts = sorted({max(1, int(float(f"{largest / part:.1g}"))) for part in (1, 3, 12)})
    dots = [
        axes.scatter([], [], s=_area(np.asarray(each), largest, diameter), color=colour, alpha=0.7, linewidths=0)
        for each in amounts
    ]
    axes.legend(
        dots,
        [f"{each:,}" for each in amounts],
        title="samples",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        labelspacing=max(1.0, diameter / 8 - 1),  # in font heights, so that dots do not touch
    )


def _range(split: Split) -> str:
    sizes = split.sizes
    return f"{sizes.min():,} to {sizes.max():,}"
