# Two commands on a fresh machine: `make gate` (judge a sandbox branch) and `make test`.
PYTHON ?= python3
VENV ?= .venv
BRANCH ?= fp8-head
# For a CPU-only torch on a machine whose package index serves CUDA builds: make gate TORCH_INDEX=<index of CPU wheels>
TORCH_INDEX ?=
# Test files run side by side, each file in one process of one torch thread: more threads than cores take longer.
TEST_PROCESSES ?= 2
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: gate test test-thorough lint types imports check screens clean
gate: $(INSTALLED)
	$(BIN)/q36eval gate --branch $(BRANCH)

test: $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile

# The same, with runs killed at twenty moments instead of six.
test-thorough: export Q36EVAL_TEST_KILLS = 20
test-thorough: test

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED_DEV)
	$(BIN)/mypy

imports: $(INSTALLED_DEV)
	$(BIN)/lint-imports

check: lint types imports test

# Screenshots of every page of the review UI, light and dark, over the runs in the working state.
SCREENS ?= screens
screens: $(INSTALLED_DEV)
	$(BIN)/python tests/app/dashboard/screens.py --out $(SCREENS)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[ui]"
	touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[ui,dev]"
	touch $@

clean:
	rm -rf $(VENV) .q36eval
