"""Experiments: configuration, building, the training loop and its callbacks, sweeps."""
