# One entry for people, hooks and CI. `make setup` builds .venv; every other target does so when it is missing.
#   PYTHON=python3.12        the interpreter to build .venv with
#   TORCH_INDEX=URL          package index to take torch from (another build: CPU, CUDA); empty: pip's own choice
#   JSON=F SECONDS=600 SEED=1  of `make chaos`: where the figures go, how long the faults last, which faults
#   QUICK=1                  of `make bench`: short runs, whose figures prove little
#   CHECK_TESTS=0            `make check` without the fast tests; so it is in `make check test`, where all tests follow
PYTHON ?= $(shell for name in python3.11 python3; do $$name -c '' 2>/dev/null && echo $$name && break; done)
TORCH_INDEX ?=
CHECK_TESTS ?= $(if $(filter test,$(MAKECMDGOALS)),0,1)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.setup-done

.PHONY: setup demo chaos faults bench test check fast format proto docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "noloco-node needs Python 3.11 or newer; name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' || { echo "this Python has no ensurepip: install it (Debian: apt-get install python3-venv)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch and the other packages into $(VENV): 1.9 GB (CPU build of torch) to 5.6 GB (CUDA build), some minutes ..."
	$(if $(TORCH_INDEX),$(PIP) --index-url "$(TORCH_INDEX)" "$$(grep '^torch==' requirements.lock)")
	$(PIP) -r requirements.lock
	@echo "installing noloco-node itself ..."
	PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/pip check
	@echo "$(VENV) is complete; the program is $(BIN)/noloco-node"
	@touch $@

DEMO_JSON ?= demo/summary.json
demo: setup
	@echo "training four nodes on this machine, then evaluating and exporting: some minutes ..."
	$(BIN)/noloco-node demo --data-dir demo --json $(DEMO_JSON)

JSON ?= chaos/summary.json
SECONDS ?= 600
SEED ?= 1
chaos: setup
	$(BIN)/python tests/chaos/run_chaos.py --json $(JSON) --seconds $(SECONDS) --seed $(SEED)

faults: setup
	CHAOS_ALL=1 $(BIN)/pytest tests/chaos/test_exchange_faults.py

bench: setup
	$(BIN)/python benchmarks/run_all.py $(if $(QUICK),--quick)

test: setup
	$(BIN)/pytest tests --durations=15

fast: setup
	$(BIN)/pytest tests -m "not slow"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/generate.py --check
	$(if $(filter 0,$(CHECK_TESTS)),,$(BIN)/pytest tests -m "not slow")

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup
	$(BIN)/python proto/generate.py

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
