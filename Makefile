# `make help` lists the targets. Nothing here is needed to use the library: `pip install regard` is.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
GPU_PYTHON ?= python3

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -q -c constraints.txt
# Two workers of one thread each: the number of threads changes the bits of a run on the CPU, so tests fix it.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Tests of one xdist_group share a fixture and run in one worker; quick ones begin (tests/conftest.py).
GROUPED := --dist loadgroup --no-loadscope-reorder
TIMED = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)
RESULTS := bench/results
# `make demo CHANGES="train.minutes=1" OUT=runs/short` changes what the demo does.
OUT ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)
CHANGES ?=

# Where this is set, every process that a test or a command starts compiles the library again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup test test-full check types pages audit peers demo bench gpu faults map clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-9s %s\n", $$1, $$2 }'

setup: .venv/.ready  ## create .venv and install everything; again only when pyproject.toml or constraints.txt change

# torch comes first and alone, so that nothing else decides which build it is. Where PyPI's default build carries CUDA
# (Linux), put PyTorch's CPU index into PIP_EXTRA_INDEX_URL: the smaller `+cpu` build then wins.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"regard needs Python 3.11 or later, $(PYTHON) is {sys.version.split()[0]}; try make setup PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

test: setup check  ## check, then all tests: quick ones first, slow ones after, those that are timed last
	$(PYTEST) -n 2 $(GROUPED) -m "not alone"
	$(PYTEST) -n 0 -m alone $(TIMED)

test-full: setup  ## what `make test` does in part because it takes minutes, at full size; log in bench/results
	@mkdir -p $(RESULTS)
	REGARD_TESTS=full $(PYTEST) -n 2 $(GROUPED) -m "slow and not alone" --no-header --durations=12 2>&1 | tee $(RESULTS)/test-full.log

check: setup  ## ruff, mypy, which room imports which, and whether what is made in docs is fresh
	@$(MAKE) --no-print-directory -j 2 --output-sync=target types pages

types:
	$(BIN)/mypy --strict src/regard

pages:
	$(BIN)/ruff check .
	$(BIN)/python tests/rooms.py
	$(BIN)/python tools/map.py --check
	$(BIN)/python tools/architecture.py --check
	$(BIN)/python tools/families.py --check

# pip-audit stands apart, so that what it needs changes nothing here; it asks the advisory database, over the network.
audit: setup  ## known holes in what constraints.txt names (needs the network), and whether that is what is installed
	$(BIN)/python tools/constraints.py
	test -x .venv/audit/bin/pip-audit || { $(PYTHON) -m venv .venv/audit && .venv/audit/bin/python -m pip install --disable-pip-version-check -q pip-audit; }
	.venv/audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip

# TransformerLens and captum stand apart as well: what they need is much, and would decide other versions here.
PEERS = .venv/peers/bin/python
peers: setup  ## the lens beside TransformerLens and captum, in an environment of their own; log in bench/results
	test -x $(PEERS) || $(PYTHON) -m venv .venv/peers
	$(PEERS) -m pip install --disable-pip-version-check -q -c constraints.txt torch
	$(PEERS) -m pip install --disable-pip-version-check -q -c constraints.txt 'transformer-lens>=4.3' 'captum>=0.9' -e . pytest pytest-xdist hypothesis
	@mkdir -p $(RESULTS)
	{ $(PEERS) -m pip list --disable-pip-version-check --format=freeze | grep -iE '^(torch|transformers|transformer-lens|captum)==' \
	  && OMP_NUM_THREADS=1 $(PEERS) -m pytest -vv --no-header tests/parity/test_transformer_lens.py tests/lens/test_input_attribution.py \
	    -k 'transformer_lens or captum'; } 2>&1 | tee $(RESULTS)/peers.log

demo: setup  ## the main job: train on Shakespeare for three minutes, hear the model speak, see what it learned
	$(BIN)/regard train shakespeare $(CHANGES) --out $(OUT)
	$(BIN)/regard generate $(OUT) "ROMEO:" --max-new-tokens 300 --temperature 0.8
	@printf '\n\nOpen %s in a browser.\n' $(OUT)/report.html

bench: setup  ## side-by-side benchmarks on this CPU; log in bench/results
	@mkdir -p $(RESULTS)
	$(BIN)/python bench/cpu.py 2>&1 | tee $(RESULTS)/cpu.log
	$(BIN)/python bench/lab.py 2>&1 | tee $(RESULTS)/lab.log

gpu:  ## the tests that need CUDA, with GPU_PYTHON and its own torch; log in bench/results
	@mkdir -p $(RESULTS)
	PYTHONPATH=src $(GPU_PYTHON) tests/gpu/run.py 2>&1 | tee $(RESULTS)/gpu-tests.log

faults: setup  ## kill, stop, damage and starve runs, at full counts; log with the figures in bench/results
	@mkdir -p $(RESULTS)
	REGARD_FAULTS=full $(PYTEST) tests/faults -n 2 -m "not alone" -vv --no-header --durations=6 2>&1 | tee $(RESULTS)/faults.log
	REGARD_FAULTS=full $(PYTEST) tests/faults -n 0 -m alone -vv --no-header 2>&1 | tee -a $(RESULTS)/faults.log

map: setup  ## write docs/map.md (from formula to line to test) and docs/architecture.md (rooms and journeys) again
	$(BIN)/python tools/map.py
	$(BIN)/python tools/architecture.py

clean:  ## remove caches and builds; .venv and runs stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
