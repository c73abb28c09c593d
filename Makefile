# Works from nothing on a machine that has Python >= 3.11 and pip. "make help" lists the targets.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run help test lint laws clean

run: .venv/installed  ## Install, and decode a prompt with a small model that comes along. No GPU needed.
	$(BIN)/python run.py animate=true

help:  ## Show this list.
	@sed -n 's/^\([a-z]*\):[^#]*## */  make \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-13s %s\n", $$1, $$2}'

test: .venv/installed lint  ## Install, lint, check types, run all tests: what CI runs. A few minutes on two cores.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: .venv/installed  ## ruff and mypy.
	$(BIN)/ruff check .
	$(BIN)/mypy

laws: .venv/installed  ## Laws over as many cases as LAWS_MINUTES (30) allow, in the order of LAWS_SEED (0), LAWS_PROCESSES (2) at once.
	$(BIN)/python tests/laws.py

# torch goes first: anything that depends on it would otherwise pick a build by itself.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'Installing into .venv, two minutes or more: PyTorch is large.'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:  ## Remove .venv and what building left behind.
	rm -rf .venv build *.egg-info
