# Two commands on a fresh machine: `make gate` (judge a sandbox branch) and `make test`.
PYTHON ?= python3
VENV ?= .venv
BRANCH ?= fp8-head
# For a CPU-only torch on a machine whose package index serves CUDA builds: make gate TORCH_INDEX=<index of CPU wheels>
TORCH_INDEX ?=
# Tests run side by side in processes of one torch thread each: more threads than cores take longer.
TEST_PROCESSES ?= 2
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: help gate test test-rest test-long lint types imports check screens audit wheel clean
gate: $(INSTALLED)  ## judge a sandbox branch (BRANCH=fp8-head); the first run installs and captures the reference
	$(BIN)/q36eval gate --branch $(BRANCH)

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal
test: $(INSTALLED_DEV)  ## run the tests, but for those that take long
	$(PYTEST) -m "not costly"

test-rest: $(INSTALLED_DEV)  ## the tests that take long, most of the time (tests/costly.tsv lists them)
	$(PYTEST) -m costly

test-long: $(INSTALLED_DEV)  ## the tests that draw or kill, at full size: what the two before did not show yet
	Q36EVAL_TEST_PROFILE=long $(PYTEST) -m "sized or long"

lint: $(INSTALLED_DEV)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED_DEV)  ## mypy, strict
	$(BIN)/mypy

imports: $(INSTALLED_DEV)  ## what may import what (docs/architecture.md)
	$(BIN)/lint-imports

check: lint types imports test test-rest  ## all of these

# Name ONLINE=1 to ask for published advisories too (pip install pip-audit).
ONLINE ?=
audit: $(INSTALLED_DEV)  ## are the pinned packages what is installed, and do they fit?
	$(BIN)/python .ci/audit.py $(if $(ONLINE),--online)

wheel: $(INSTALLED_DEV)  ## build the wheel, install it into empty environments, use it there
	TORCH_INDEX=$(TORCH_INDEX) .ci/wheel

SCREENS ?= screens
screens: $(INSTALLED_DEV)  ## screenshots of every page (SCREENS=folder)
	$(BIN)/python tests/app/dashboard/screens.py --out $(SCREENS)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[ui]"
	touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[ui,dev]"
	touch $@

clean:  ## remove the environment and the working state
	rm -rf $(VENV) .q36eval

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 16
