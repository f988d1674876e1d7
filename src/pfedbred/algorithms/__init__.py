"""Algorithms: their interface, the table of names, and one file per method."""

from pfedbred.algorithms.registry import ALGORITHMS, Builder, build, builder, declared, make

__all__ = ["ALGORITHMS", "Builder", "build", "builder", "declared", "make"]
