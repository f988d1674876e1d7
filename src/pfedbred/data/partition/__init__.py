"""Partitions: which client gets which samples."""
