"""Named datasets of a single table, which is put into a folder by hand: nobody serves it for download."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pfedbred.data.sources.hub import cache_folder
from pfedbred.data.sources.tables import Table, read_csv, read_parquet
from pfedbred.errors import SettingError


class NamedFile(NamedTuple):
    """A dataset's file.

    Attributes:
      name: of the dataset.
      path: below the folder that is searched.
      published: where it can be had, for people.
    """

    name: str
    path: str
    published: str

    def read(self, data_dir: str | None) -> Table:
        """The table, from ``data_dir``, $PFEDBRED_DATA or the cache."""
        folders = [data_dir] if data_dir else [os.environ.get("PFEDBRED_DATA"), cache_folder()]
        for folder in folders:
            if folder and (path := Path(folder) / self.path).exists():
                return read_csv(path) if path.suffix == ".csv" else read_parquet([path])
        where = Path(data_dir or cache_folder()) / self.path
        raise SettingError(f"{self.name} is not here: put {self.published} as {where}")
