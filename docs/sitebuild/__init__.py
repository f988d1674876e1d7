"""Builds the documentation site from the repository: `make docs`, or `PYTHONPATH=docs python -m sitebuild`."""
