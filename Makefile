# Each target makes .venv and installs what it needs; the machine needs only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/tools
NAME ?= all
MINUTES ?= 10
# One more than two cores: tests often wait for a daemon or a JVM.
WORKERS ?= 3
SEED ?=
OSV ?=
# Every downloaded file is compared with the hashes in .ci/, which name all packages. No build of a package downloads anything itself.
PYTEST := $(BIN)/python -m pytest
INSTALL := PYTHON=$(PYTHON) .ci/install $(VENV)
PIP := -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps
LOCKED := $(PIP) --require-hashes --requirement
COMPILE := $(TOOLS)/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate

.PHONY: help install tools test lint format demo example bench chaos lock audit release clean
help:            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

# The demo needs neither tests nor linters. An environment with tests and linters has everything that the demo needs.
$(VENV)/runs: pyproject.toml .ci/install .ci/build.txt .ci/demo.txt
	@$(INSTALL) "what the demo needs: PySpark, Java, Postgres, 1.1 GB" .ci/build.txt .ci/demo.txt
	@touch $@

$(VENV)/installed: pyproject.toml .ci/install .ci/build.txt .ci/constraints.txt
	@$(INSTALL) "all that tests, linters, benches and the demo need, 1.4 GB" .ci/build.txt .ci/constraints.txt
	@touch $(VENV)/runs $@

# The release tools have an environment of their own, so that their dependencies do not get into the environment of the tests.
$(TOOLS)/installed: .ci/release.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python $(LOCKED) .ci/release.txt
	touch $@

tools: $(TOOLS)/installed

install: $(VENV)/installed ## .venv with everything that tests and the demo need

# Tests that measure time, memory or CPU carry the mark `alone` and run one by one after the others, also when another test has failed (status 1).
# Any other status of pytest, such as that of an interrupt, ends the target at once.
test: install    ## all tests, in three processes, and then those that need a quiet machine; WORKERS=n for n processes, 0 for pytest's own process alone
	@set -x; failed=0; \
	$(PYTEST) -m 'not alone' --numprocesses=$(WORKERS) --dist=loadscope --no-loadscope-reorder || { failed=$$?; test $$failed -eq 1 || exit $$failed; }; \
	$(PYTEST) -m alone || failed=$$?; \
	{ set +x; } 2> /dev/null; exit $$failed

# SQL has rules but no formatter: existing formatters take a PL/pgSQL body for one string and do not format it.
lint: install    ## ruff, mypy, the layers of the package, rules for sql/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.lint_sql

format: install  ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(VENV)/runs ## the quickstart on embedded Postgres and Java: it runs, fails, is explained and repaired
	@$(BIN)/dataflowd demo

example: install ## run an example; NAME=migration, shell, cluster or weekend
	@test -f examples/$(NAME)/run.py || { echo 'name one: make example NAME=migration, shell, cluster or weekend'; exit 2; }
	$(BIN)/python examples/$(NAME)/run.py

bench: install   ## measure; NAME=claim for one bench; a run of all benches is stored in docs/ and shown by docs/benchmarks.md
	$(BIN)/python -m tests.bench $(NAME) $(if $(filter all,$(NAME)),--keep docs)
	$(if $(filter all,$(NAME)),$(BIN)/python -m tests.unit.test_readme)

chaos: install   ## run operations in every order of meeting; then break a real pipeline for MINUTES=10; SEED=n repeats both
	$(BIN)/python -m tests.interleave $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos --spark --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --report chaos-report.json

lock: install tools ## renew the files of versions and hashes in .ci/ from pyproject.toml
	$(COMPILE) --upgrade --all-extras -o .ci/constraints.txt pyproject.toml
	$(COMPILE) --upgrade --constraint .ci/constraints.txt -o .ci/runtime.txt pyproject.toml
	$(COMPILE) --upgrade --constraint .ci/constraints.txt --extra embedded -o .ci/demo.txt pyproject.toml
	$(COMPILE) --upgrade --constraint .ci/constraints.txt --group build -o .ci/build.txt
	$(COMPILE) --upgrade --constraint .ci/constraints.txt --group release -o .ci/release.txt

audit: install tools ## look for known vulnerabilities in the packages that we install; OSV=url for another database
	@$(BIN)/python .ci/audit.py $(TOOLS)/bin/pip-audit $(OSV)

release: install tools ## sdist, wheel and SBOM (CycloneDX) of the runtime dependencies, in dist/
	rm -rf dist
	$(BIN)/hatchling build
	sed 's/^dynamic = .*/version = "'$$($(BIN)/hatchling version)'"/' pyproject.toml > $(TOOLS)/pyproject.toml
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject $(TOOLS)/pyproject.toml --output-reproducible \
		-o dist/dataflowd-$$($(BIN)/hatchling version).cdx.json .ci/runtime.txt

clean:           ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
