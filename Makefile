# Both commands work from nothing on a machine that has Python >= 3.11 and pip.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint laws clean

run: .venv/installed
	$(BIN)/python run.py animate=true

test: .venv/installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# As many cases as LAWS_MINUTES (30) allows, in the order of LAWS_SEED (0), in LAWS_PROCESSES (2).
laws: .venv/installed
	$(BIN)/python tests/laws.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/mypy

# torch goes first: anything that depends on it would otherwise pick a build by itself.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'Installing into .venv, two minutes or more: PyTorch is large.'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info
