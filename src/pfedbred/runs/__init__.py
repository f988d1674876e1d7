"""Run folders: layout, records, checkpoints, locks, saved models."""
