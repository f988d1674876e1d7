"""Algorithms: their interface, the table of names, and one file per method."""

from pfedbred.algorithms.registry import ALGORITHMS, Factory, build, factory, make

__all__ = ["ALGORITHMS", "Factory", "build", "factory", "make"]
