"""Any dataset of the public hub, by its full name and columns: ``hub:owner/name``.

A local copy in one of the hub's layouts is used if there is one: ``FOLDER/owner/name`` or ``FOLDER/name``, where FOLDER
is in turn ``--data-dir``, the environment variable PFEDBRED_DATA, and the cache. Its training, validation and test
parts are read together, and divided again for each client.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pfedbred.data.pool import Pool
from pfedbred.data.sources.hub import HubDataset, find_files, read_table
from pfedbred.data.sources.pool_cache import cached
from pfedbred.data.sources.tables import TableRows
from pfedbred.data.sources.user_files import pool_from_table
from pfedbred.errors import SettingError

_PART = r"[A-Za-z0-9_][\w.-]*"
_NAME = re.compile(rf"(?P<address>(?P<owner>{_PART})/(?P<name>{_PART}))(?:/(?P<configuration>{_PART}))?", re.ASCII)


def hub_pool(
    address: str,
    data_dir: str | None,
    *,
    client_column: str | None,
    label_column: str | None,
    features: Sequence[str] | None,
    task: str | None = None,
) -> Pool:
    """The samples of a dataset ``owner/name``, or ``owner/name/configuration``.

    Without ``features``, samples are read from the image column if there is exactly one, else from all columns that
    hold neither labels nor clients.
    """
    match = _NAME.fullmatch(address)
    if not match:
        raise SettingError(
            f"a dataset of the hub is hub:OWNER/NAME, or hub:OWNER/NAME/CONFIGURATION, not {'hub:' + address!r}"
        )
    source = HubDataset(
        f"hub:{address}",
        match["address"],
        match["address"],
        (),
        other_folder=match["name"],
        parts=("train", "validation", "test"),
        configuration=match["configuration"],
    )
    paths = find_files(source, data_dir).parquet
    table = read_table(source, paths)
    chosen = list(features) if features else _only_images(table, (client_column, label_column))

    def read() -> Pool:
        return pool_from_table(table, source.name, client_column, label_column, chosen, task)

    images = chosen is not None and len(chosen) == 1 and table.holds_images(chosen[0])
    pool = (
        cached(source, paths, read, [*(chosen or ()), f"{label_column}", f"{client_column}", *([task] if task else [])])
        if images
        else read()
    )
    return replace(pool, name=match["name"])


def _only_images(table: TableRows, others: Sequence[str | None]) -> list[str] | None:
    """The column of images, if there is exactly one."""
    images = [each for each in table.columns if each not in others and table.holds_images(each)]
    return images if len(images) == 1 else None
