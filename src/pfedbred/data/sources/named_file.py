"""Named datasets of a single table, put into a folder by hand, as it cannot be downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pfedbred.data.sources.hub import cache_folder
from pfedbred.data.sources.tables import TableRows, read_csv, read_parquet
from pfedbred.errors import SettingError


class NamedFile(NamedTuple):
    """A dataset's file.

    Attributes:
      name: the dataset's name.
      path: its path below the searched folder.
      published: where to get it, in words.
    """

    name: str
    path: str
    published: str

    def read(self, data_dir: str | None) -> TableRows:
        """The table, from ``data_dir``, $PFEDBRED_DATA or the cache."""
        folders = [data_dir] if data_dir else [os.environ.get("PFEDBRED_DATA"), cache_folder()]
        for folder in folders:
            if folder and (path := Path(folder) / self.path).exists():
                return read_csv(path) if path.suffix == ".csv" else read_parquet([path])
        where = Path(data_dir or cache_folder()) / self.path
        raise SettingError(f"{self.name} was not found: put {self.published} as {where}")
