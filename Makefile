# One entry for people, hooks and CI. `make setup` builds .venv; every other target does so when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done

.PHONY: setup demo test check fast format proto clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "noloco-node needs Python 3.11 or newer; name one with PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

DEMO_JSON ?= demo/summary.json
demo: setup
	$(BIN)/noloco-node demo --data-dir demo --json $(DEMO_JSON)

test: setup
	$(BIN)/pytest tests

fast: setup
	$(BIN)/pytest tests -m "not slow"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(MAKE) fast

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup
	$(BIN)/python proto/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
