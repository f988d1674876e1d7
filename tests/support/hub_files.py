"""Tiny datasets in the layouts of the public hub and of LEAF, and where the real ones are."""

import io
import json
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

REAL = Path(os.environ.get("PFEDBRED_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(name):
    """Marks a test that reads real data."""
    return pytest.mark.skipif(
        not (REAL / name).is_dir(), reason=f"the real {name} is not here: set PFEDBRED_DATA to a folder that holds it"
    )


def png(pixels):
    """An image as the hub stores it."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return {"bytes": file.getvalue(), "path": None}


def write_parquet(folder, part, columns):
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{part}-00000-of-00001.parquet")


def write_leaf(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))
