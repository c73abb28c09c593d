# Works from nothing on a machine that has Python >= 3.11 and pip. "make help" lists the targets.
PYTHON ?= python3
BIN := .venv/bin
# Where else to look for PyTorch: the URL of an index of its builds. pip's own build for Linux is for CUDA and takes
# several gigabytes, one for CPUs 0.8.
TORCH_INDEX ?=
# Tests that run at once: a number, or auto for one a core.
PROCESSES ?= 2
PIP := $(BIN)/pip install --disable-pip-version-check -c constraints.txt

.PHONY: run help check check-others check-drawn test test-rest test-programs test-experiments test-extras lint laws mutants count image-steps clean

run: .venv/installed  ## Install, and decode a prompt with a small model that comes along. No GPU needed.
	$(BIN)/python run.py animate=true

help:  ## Show this list.
	@sed -n 's/^\([a-z-]*\):[^#]*## */  make \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-23s %s\n", $$1, $$2}'

check: test check-others  ## "make test", then all other tests but test-extras in one session.

# The share of the others that two cores run in ten minutes, and the seed by which it is drawn: each commit tries others.
SHARE ?= 0.25
DRAW ?= $(shell git rev-parse HEAD 2>/dev/null || date +%F)

check-drawn: .venv/developer  ## A SHARE of what check-others runs, drawn by the commit. .ci/run runs "make test", then this.
	DLLM_DEVICE=cpu OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --part others --share $(SHARE) --draw $(DRAW)

check-others: .venv/developer  ## All tests but test-extras that "make test" leaves out, in one session.
	DLLM_DEVICE=cpu OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --part others

test: .venv/developer lint  ## Install what tests need too, lint, check types, test every part of the package. A few minutes on two cores.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --part sample -m "not program" --ignore=tests/experiments

test-rest: .venv/developer  ## Run the cases and the slow tests that "make test" leaves out, and the GPU's tests on a CPU.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --part rest -m "not program" --ignore=tests/experiments
	DLLM_DEVICE=cpu OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal tests/gpu

test-programs: .venv/developer  ## Run what the documentation tells people to type, other harnesses, kills. CI runs it too.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal -m program --ignore=tests/experiments

test-experiments: .venv/developer  ## Test what trains and measures. CI runs it too.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal tests/experiments

# Their packages pin versions of others that the rest does not take, so they lie in an environment over .venv.
EXTRAS := tests/app/test_engines.py tests/constraints/test_second_judge.py tests/models/test_quantize.py tests/serve/test_door_clients.py \
  tests/serve/test_frameworks.py tests/serve/test_ray.py tests/serve/test_ray_ranks.py tests/trainers/test_trl.py

test-extras: .venv-extras/installed  ## Run the tests that need Ray, sweep launchers, other clients, TRL, torchao.
	OMP_NUM_THREADS=1 .venv-extras/bin/python -m pytest -n $(PROCESSES) --dist worksteal $(EXTRAS)

lint: .venv/developer  ## ruff (rules and format) and mypy.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

laws: .venv/developer  ## Laws over as many cases as LAWS_MINUTES (30) allow, in the order of LAWS_SEED (0), LAWS_PROCESSES (2) at once.
	$(BIN)/python tests/laws.py

mutants: .venv/developer  ## Change MUTANTS (50) places of the package by SEED (0), one at a time, and count what the tests notice.
	$(BIN)/python tests/mutants.py --count $(or $(MUTANTS),50) --seed $(or $(SEED),0)

count: .venv/developer  ## How many tests each target runs, and whether all of them are run by one.
	$(BIN)/python tests/counted.py

image-steps:  ## The steps of the Dockerfile in an empty folder, without Docker: installs, serves, asks, stops.
	$(PYTHON) -m experiments.pages.image_steps $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

# torch goes first: anything that depends on it would otherwise pick a build by itself.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make run PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'Installing PyTorch into .venv (1 of 2). It is large: a minute or more.'
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@echo 'Installing dllm and what it needs to run (2 of 2).'
	$(PIP) -e .
	touch $@

.venv/developer: .venv/installed
	@echo 'Installing what tests, lint and documentation need.'
	$(PIP) -e '.[dev]'
	touch $@

.venv-extras/installed: .venv/developer
	$(BIN)/python -m venv .venv-extras
	$(BIN)/python -c 'import sysconfig as s, pathlib as p; *_, v = p.Path(".venv-extras/lib").glob("python*/site-packages"); (v / "over.pth").write_text(s.get_path("purelib"))'
	.venv-extras/bin/pip install --disable-pip-version-check -e '.[extras]'
	touch $@

clean:  ## Remove .venv and what building left behind.
	rm -rf .venv .venv-extras build *.egg-info
