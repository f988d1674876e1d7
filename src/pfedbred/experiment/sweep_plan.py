"""The plan of a sweep: which points it tries, and how it chooses among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pfedbred import settings as settings_
from pfedbred.errors import SettingError
from pfedbred.experiment import samplers
from pfedbred.experiment.space import Space, parse_space, space_texts


@dataclass(frozen=True)
class SweepPlan:
    """What ``config.yaml`` records as ``sweep``; see :func:`pfedbred.sweep` for the fields."""

    grid: Space
    points: int | None = None
    sampler: str | None = None
    halving: bool = False
    choose_on_test: bool = False
    metric: str | None = None

    @staticmethod
    def read(recorded: Any, asked: Mapping[str, Any] | None = None) -> SweepPlan:
        """A plan from plain values, each checked: those asked for, else those recorded, else the defaults."""
        if not isinstance(recorded, dict | None):
            raise SettingError(f"sweep must be a mapping of options, not {recorded!r}")
        recorded = {**(recorded or {}), **(asked or {})}
        known = [each.name for each in dataclasses.fields(SweepPlan)]
        for name in recorded:
            if name not in known:
                raise SettingError(f"unknown option {name!r} of a sweep")
        grid = recorded.get("grid") or []
        if not isinstance(grid, list) or not all(isinstance(each, str) for each in grid):
            raise SettingError(f"grid must be a list such as ['eta=0.01:0.5:8'], not {grid!r}")
        if recorded.get("points") is not None:
            settings_.check("points", recorded["points"], settings_.Count)
        for name in ("halving", "choose_on_test"):
            settings_.check(name, recorded.get(name, False), bool)
        return SweepPlan(**{**recorded, "grid": parse_space(grid)})

    def plain(self) -> dict[str, Any]:
        """As YAML and JSON can hold it: plans that try the same points are equal, however they were written."""
        sampler = samplers.RANDOM if self.points is not None and self.sampler is None else self.sampler
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**fields, "grid": space_texts(self.grid), "sampler": sampler}
