"""Tiny datasets in the layouts of the public hub and of LEAF."""

import io
import json

import pyarrow
import pyarrow.parquet
from PIL import Image


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
