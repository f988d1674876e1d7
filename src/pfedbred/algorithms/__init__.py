"""Algorithms: what one is, the table of their names, one file a method."""

from pfedbred.algorithms.registry import ALGORITHMS, Factory, factory, make

__all__ = ["ALGORITHMS", "Factory", "factory", "make"]
