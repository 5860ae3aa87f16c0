# On a fresh machine: `make gate` (judge a sandbox branch), `make demo` (quantize a real model, judge it), `make test`.
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

.PHONY: help gate demo test test-long lint types imports budget check docs screens audit wheel clean
gate: $(INSTALLED)  ## judge a sandbox branch (BRANCH=fp8-head); the first run installs and captures the reference
	$(BIN)/q36eval gate --branch $(BRANCH)

demo: $(INSTALLED_DEV)  ## quantize a real model well and badly, judge both, open the dashboard
	benchmarks/demo.sh $(BIN)

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal
test: $(INSTALLED_DEV)  ## run the tests: everything that matters, in five minutes on two idle cores
	$(PYTEST) -m "not long" --check-areas --durations 10

test-long: $(INSTALLED_DEV)  ## servers, producers, browsers and long runs; then random examples at full size
	$(PYTEST) -m long
	Q36EVAL_TEST_PROFILE=long $(PYTEST) -m sized

lint: $(INSTALLED_DEV)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED_DEV)  ## mypy, strict
	$(BIN)/mypy

imports: $(INSTALLED_DEV)  ## what may import what (docs/architecture.md)
	$(BIN)/lint-imports

budget: $(INSTALLED_DEV)  ## compare the sizes of the repository with the limits in .ci/budget
	$(BIN)/python .ci/measure_budget.py

check: lint types imports budget test  ## all of these

# Name ONLINE=1 to ask for published advisories too (pip install pip-audit).
ONLINE ?=
audit: $(INSTALLED_DEV)  ## are the pinned packages what is installed, and do they fit?
	$(BIN)/python -m pip check
	$(BIN)/python .ci/audit.py
	$(if $(ONLINE),pip-audit --requirement constraints.txt --no-deps --disable-pip)

wheel: $(INSTALLED_DEV)  ## build the wheel, install it into empty environments, use it there
	TORCH_INDEX=$(TORCH_INDEX) .ci/wheel

docs: $(INSTALLED_DEV)  ## the documentation site, in build/site
	test -x build/zensical/bin/zensical || $(PYTHON) -m venv build/zensical
	build/zensical/bin/pip install --quiet --disable-pip-version-check zensical==0.0.73
	.ci/docs $(BIN) build/zensical/bin

SCREENS ?= screens
screens: $(INSTALLED_DEV)  ## the screenshots of README and docs (SCREENS=folder)
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
