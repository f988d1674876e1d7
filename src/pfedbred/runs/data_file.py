"""data.json: the data distribution of a federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pfedbred.data.federation import Federation
from pfedbred.data.label_table import label_table
from pfedbred.io.atomic import write_text
from pfedbred.runs.statistics import evenly_spaced


def write_data(federation: Federation, path: Path, most: int = 1_000) -> None:
    """Samples by client and label, of at most ``most`` evenly spaced clients."""
    shown = evenly_spaced(federation.clients, most)
    table = label_table(federation, shown)
    facts: dict[str, Any] = {
        "name": federation.name,
        "clients": federation.clients,
        "names": [federation.names[i] if federation.names else str(i) for i in shown.tolist()],
        "labels": list(table.names),
        **{part: counts.tolist() for part, counts in table.counts.items()},
    }
    write_text(path, json.dumps(facts, separators=(",", ":")) + "\n")
