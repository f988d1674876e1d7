PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

# Tests start many processes. Where Python is told not to write bytecode, each would compile all libraries anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run quick test test-all test-slow lint types contracts audit docs docs-check check bench clean

run: $(INSTALLED)  ## train fedavg, pfedme and mg-meta on the digits and show them side by side
	$(BIN)/pfedbred compare --dataset digits --model mclr --algorithms fedavg,pfedme,mg-meta --rounds 100

quick: $(READY)  ## the mathematics, the algorithms and the engine: under a minute
	$(BIN)/pytest -m 'not slow and not full and not broad' tests/bregman tests/aggregation tests/algorithms tests/engine

test: $(READY)  ## one case of every test but the longest: under five minutes
	$(BIN)/pytest

test-all: $(READY)  ## every method, real processes and a browser: about 20 minutes
	$(BIN)/pytest -m 'not slow'

test-slow: $(READY)  ## what test-all leaves out: many more cases, kills, inputs and processes; an hour or more
	$(BIN)/pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)  ## imports between the folders point one way
	$(BIN)/lint-imports --no-logo

audit: $(READY)  ## known vulnerabilities of the pinned dependencies; skipped where no database can be reached
	$(BIN)/python .github/scripts/audit.py

docs: $(READY)  ## the documentation site, in site/; runs the notebooks, which takes a few minutes
	PYTHONPATH=docs $(BIN)/python -m sitebuild
	@echo "to read it: $(BIN)/python -m http.server --directory site"

docs-check: $(READY)  ## the same without running the notebooks (test-all runs them): broken links and references in seconds
	PYTHONPATH=docs $(BIN)/python -m sitebuild --no-run

check: lint types contracts test

# Not compiled: Python compiles what is imported when it is, and most of what is installed never is.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

$(INSTALLED): pyproject.toml constraints.txt  # what it takes to run
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "pfedbred needs Python 3.11 or newer; name one with: make PYTHON=python3.12 run"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e .
	@touch $@

$(READY): $(INSTALLED)  # and to test
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

bench: $(READY)  ## a round beside a plain PyTorch loop, and out of a million clients; a quarter of an hour
	$(PIP_INSTALL) 'torch==2.13.0'
	$(BIN)/python benchmarks/rounds.py --models mclr,dnn,cnn
	$(BIN)/python benchmarks/rounds.py --models lstm --local-steps 1
	$(BIN)/python benchmarks/rounds.py --models mclr,dnn,cnn --methods fedavg,per-fedavg,pfedme,fedem,fedamp
	$(BIN)/python benchmarks/rounds.py --models lstm --local-steps 1 --methods fedavg,per-fedavg,pfedme,fedem,fedamp
	$(BIN)/python benchmarks/population.py
	$(BIN)/python benchmarks/client_models.py --quick

clean:
	rm -rf $(VENV) site build/docs .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
