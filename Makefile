# Every target works on a fresh clone: the virtual environment is made and filled when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run hello test lint format bench chaos mutants clean

run: $(READY)  ## the service on 127.0.0.1:3000: API, status page, planner and worker on ./mainspring.db; ARGS=… for options
	$(BIN)/mainspring serve $(ARGS)

hello: $(READY)  ## a small embedded program: watch it fire, stop it, read its ledger
	$(BIN)/python examples/hello.py

test: lint  ## everything that must hold; the ten slowest tests are printed
	$(BIN)/pytest -n 3 -m "not alone" --durations=10
	$(BIN)/pytest -m alone --durations=10

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_lengths.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## us, the peers and a floor, with the targets; QUICK=1 for a short one, ARGS=… for the rest
	$(BIN)/python -m bench $(if $(QUICK),--quick) $(ARGS)

chaos: $(READY) mutants  ## the proof with larger counts: kills, stops, worlds, failpoints, crowds, damages, zones, a ten-minute soak
	MAINSPRING_KILLS=300 MAINSPRING_STOPS=30 MAINSPRING_RUNS=50000 MAINSPRING_FAILPOINT_NTH=1,2,3 \
	MAINSPRING_PG_KILLS=200 MAINSPRING_PG_STOPS=40 MAINSPRING_PG_BACKENDS=20 MAINSPRING_PG_RESTARTS=6 \
	MAINSPRING_PG_FAULTS=8 MAINSPRING_PG_ROUNDS=10 MAINSPRING_PG_FAILPOINTS=all \
	MAINSPRING_PG_HERD=10000 MAINSPRING_PG_CROWD=1000000 \
	MAINSPRING_REDIS_KILLS=100 MAINSPRING_REDIS_STOPS=20 MAINSPRING_REDIS_BACKENDS=10 MAINSPRING_REDIS_RESTARTS=12 \
	MAINSPRING_REDIS_FAULTS=5 MAINSPRING_REDIS_FAILPOINTS=all MAINSPRING_REDIS_CUTS=200 \
	MAINSPRING_WORLDS=5000 MAINSPRING_PG_WORLDS=500 MAINSPRING_ZONES=1000 MAINSPRING_DAMAGES=1000 MAINSPRING_SOAK_SECONDS=600 MAINSPRING_AGENT_SECONDS=60 \
	MAINSPRING_API_REQUESTS=20000 \
	MAINSPRING_BROKER_AWAY=30 MAINSPRING_BROKER_KILLS=40 MAINSPRING_BROKER_STOPS=10 \
	MAINSPRING_BROKER_RESTARTS=15 MAINSPRING_BROKER_WIPES=15 \
	$(BIN)/pytest -m chaos --durations=10 -s

mutants: $(READY)  ## protocol mistakes, made one at a time in a copy: the tests must see each of them
	$(BIN)/python tools/mutants.py

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --group dev --editable .
	$(BIN)/python -m servers.debian
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache dist
