# fedflat: every target works on a fresh clone with python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help demo test check fix docs bench test-gpu clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedflat needs Python 3.11 or newer; say: make PYTHON=python3.11 ..."; exit 1; }
	@echo "Installing into $(VENV) (once; torch is large) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## Compare four algorithms on the embedded digits: a table and a figure, within a minute
	@$(BIN)/python examples/demo.py

test: $(STAMP) ## Run the whole test suite
	@$(BIN)/python -m pytest -q -n auto

check: $(STAMP) ## Lint, format check and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

fix: $(STAMP) ## Format, and repair what can be repaired
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(STAMP) ## Write docs/methods and docs/status.md from the algorithms and the tests
	@$(BIN)/python docs/build.py

bench: $(STAMP) ## Measure what a local step costs beside a hand-written loop
	@$(BIN)/python benchmarks/overhead.py

test-gpu: $(STAMP) ## Run the tests that need a CUDA device
	@$(BIN)/python -m pytest -q -m gpu

clean: ## Remove what the other targets made
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis demo
