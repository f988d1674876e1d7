"""How long the paper's tables took, by column, and which of their cells have no record.

    python benchmarks/paper_minutes.py [RESULTS] [--missing] [--backend gpu]

The seconds are those of the records, so they are of the machine and of the version that made each, and of whatever
else ran beside it. ``in full`` is scaled to the paper's rounds, where records have fewer, and to all rows of the table:
a missing cell counts as much as the column's mean. ``--missing`` names the missing cells. ``--backend`` takes only
records of machines of that kind.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pfedbred.paper.cells import read_records
from pfedbred.paper.columns import ALL
from pfedbred.paper.tables import TABLES


def main() -> None:
    """Prints a line for each column of each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=Path("results"))
    parser.add_argument("--missing", action="store_true", help="name the missing cells")
    parser.add_argument("--backend", choices=("cpu", "gpu"), help="take only records of such machines")
    given = parser.parse_args()
    print(f"{'table':<12} {'column':<16} {'cells':>7} {'trainings':>9} {'rounds':>9} {'minutes':>8} {'in full':>8}")
    for table in TABLES.values():
        total, in_full = 0.0, 0.0
        for column in ALL:
            own = [row for row in table.rows if not table.rows[row].source or len(table.splits) > 1]
            wanted = [
                (row, split) for row in own for split in table.splits if split is not None or not table.rows[row].source
            ]
            found = {row: read_records(table, given.results, column, row) for row in own}
            records = {
                (row, split): record
                for row, split in wanted
                if (record := found[row].get(split)) and given.backend in (None, record["platform"]["backend"])
            }
            if not records and column not in table.columns:
                continue
            seconds = sum(record["seconds"] for record in records.values())
            rounds = sorted({record["rounds"][-1] for record in records.values()})
            scaled = sum(record["seconds"] * ALL[column].rounds / record["rounds"][-1] for record in records.values())
            trainings = sum("trained_with" not in record for record in records.values())
            all_rows = scaled * len(wanted) / len(records) if records else 0.0
            total, in_full = total + seconds, in_full + all_rows
            said = "/".join(map(str, rounds)) or "-"
            print(
                f"{table.name:<12} {column:<16} {len(records):>3}/{len(wanted):<3} {trainings:>9} {said:>9} "
                f"{seconds / 60:>8.1f} {all_rows / 60:>8.1f}"
            )
            if given.missing and len(records) < len(wanted):
                print(
                    "  missing:",
                    ", ".join(
                        row if split is None else f"{row}, split {split}"
                        for row, split in wanted
                        if (row, split) not in records
                    ),
                )
        print(f"{table.name:<12} {'all':<16} {'':>7} {'':>9} {'':>9} {total / 60:>8.1f} {in_full / 60:>8.1f}")


if __name__ == "__main__":
    main()
