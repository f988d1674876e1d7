"""The version, alone in a file so that the build can read it without importing jax."""

__version__ = "0.2.0"
