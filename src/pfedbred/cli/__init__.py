"""The command line."""

from pfedbred.cli.main import app, main

__all__ = ["app", "main"]
