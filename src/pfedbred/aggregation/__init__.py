"""Aggregation rules: how a server combines a round's uploads into one."""
