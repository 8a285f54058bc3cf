# Each target makes .venv and installs what it needs; nothing else has to be on the machine but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := .ci/constraints.txt
NAME ?= all
MINUTES ?= 10
WORKERS ?= 2
SEED ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)

.PHONY: help install test lint format demo example bench chaos lock clean
help:            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit("dataflowd needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[embedded,connect,test,lint]'
	touch $@

install: $(VENV)/installed  ## .venv with everything that tests and the demo need

# Daemons and JVMs of two tests share two cores: one that fails beside another is asked again alone, and both are told.
test: install    ## all tests, by two processes; WORKERS=n for others, 0 for none beside pytest itself
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadscope --no-loadscope-reorder || \
		{ test $$? -eq 1 && $(BIN)/python -m pytest --last-failed --last-failed-no-failures=none; }

# SQL has rules but no formatter: those that exist take a PL/pgSQL body for one string and leave it as it is.
lint: install    ## ruff, mypy, rules for sql/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.lint_sql

format: install  ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: install    ## the quickstart on embedded Postgres and Java: runs, fails, is explained and repaired
	$(BIN)/dataflowd demo

example: install ## run an example; NAME=migration, shell, cluster or weekend
	@test -f examples/$(NAME)/run.py || { echo 'say which: make example NAME=migration, shell, cluster or weekend'; exit 2; }
	$(BIN)/python examples/$(NAME)/run.py

bench: install   ## measure; NAME=claim for one; all of them are kept in docs/, as README shows them
	$(PIP) --editable '.[bench]'
	$(BIN)/python -m tests.bench $(NAME) $(if $(filter all,$(NAME)),--keep docs)
	$(if $(filter all,$(NAME)),$(BIN)/python -m tests.unit.test_readme)

chaos: install   ## let operations meet in every order; then break a real pipeline for MINUTES=10; SEED=n decides both
	$(BIN)/python -m tests.interleave $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos --spark --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --report chaos-report.json

lock: install    ## renew the constraints file from pyproject.toml
	$(PIP) uv
	$(BIN)/uv pip compile --quiet --universal --all-extras --no-emit-index-url --no-header --no-annotate --upgrade -o $(CONSTRAINTS) pyproject.toml

clean:           ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
