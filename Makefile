# Every target works on a fresh clone: the virtual environment is made and filled when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the service and embedded programs need; and what the tests need in addition.
RUNTIME := $(VENV)/.runtime
READY := $(VENV)/.ready
# Keep compiled modules, also where the environment says not to: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run hello test lint format bench chaos mutants lock clean

help:  ## this list
	@awk -F ':.*##  *' '/^[a-z]+:.*##/ { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUNTIME)  ## the service on 127.0.0.1:3000: API, status page, planner and worker on ./mainspring.db; ARGS=… for options
	$(BIN)/mainspring serve $(ARGS)

hello: $(RUNTIME)  ## a small embedded program: watch it fire, stop it, read its ledger
	$(BIN)/python examples/hello.py

test: lint  ## everything that must hold; the ten slowest tests are printed
	$(BIN)/pytest -n 4 --dist worksteal -m "not alone" --durations=10
	$(BIN)/pytest -m alone --durations=10 tests/engine tests/system

lint: $(READY)  ## ruff, mypy, import-linter, lengths of files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_lengths.py

format: $(READY)  ## repair what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## us, the peers and a floor, with the targets; QUICK=1 for a short one, ARGS=… for the rest
	$(BIN)/python -m bench $(if $(QUICK),--quick) $(ARGS)

chaos: $(READY)  ## the proof with large counts; PART=core|postgres|redis|broker|service runs one part, at most 20 minutes
	$(BIN)/python tools/chaos.py $(PART)

mutants: $(READY)  ## protocol mistakes, made one at a time in a copy: the tests must see each of them
	$(BIN)/python tools/mutants.py

$(RUNTIME): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[serve]'
	touch $(RUNTIME)

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --group dev --editable .
	$(BIN)/python -m servers.debian
	touch $(RUNTIME) $(READY)

lock: $(READY)  ## write requirements.lock: exact versions with hashes
	$(BIN)/pip install --quiet pip-tools
	$(BIN)/python tools/lock.py

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache dist
