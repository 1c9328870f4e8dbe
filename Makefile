# make repro   install what is pinned, run every stage that has changed, say where the reports are; JOBS=2 for two stages at
#              once (default: the cores), FORCE=1 to run every stage
# make test    install what the tests need and run them
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
RESULTS := 'papers/*/metrics/mini/*.json' 'papers/*/runs/mini/*/history.csv'

.PHONY: repro test ui lock install clean

# The results are in git. A clone trains them all anew, also if that takes several calls; later only what changed.
JOBS ?=
FORCE ?=
repro: $(BIN)/.installed
	python -m pipeline.run $(if $(JOBS),--jobs $(JOBS)) $(if $(FORCE),--force,$$(test -e .cells/reproduced || echo --force))
	@touch .cells/reproduced
	@echo
	@git diff --quiet -- $(RESULTS) && echo "Measured: the same as in git, bit for bit" \
	  || { echo "Measured: not what is in git:"; git --no-pager diff --stat -- $(RESULTS); }
	@echo "Reports:  reports/index.html (open it in a browser); reports/<paper>.html, .md, .tex"
	@echo "Runs:     make ui"

test: $(BIN)/.installed-test
	python -m pytest -q -n auto --dist loadfile

ui: $(BIN)/.installed
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///mlflow.db}" --host 127.0.0.1 --port $${PORT:-5000}

install: $(BIN)/.installed

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "error: FedRepro needs Python 3.11 to 3.13, found $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV_PIN)

$(BIN)/.installed: requirements.lock | $(BIN)/uv
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --require-hashes -r requirements.lock
	@touch $@

$(BIN)/.installed-test: requirements-test.lock $(BIN)/.installed
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --require-hashes -r requirements.lock -r requirements-test.lock
	@touch $@

lock: | $(BIN)/uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --override overrides.txt requirements.in -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header requirements-test.in -o requirements-test.lock

clean:
	rm -rf .venv .cells data/*/ papers/*/partitions mlflow.db mlartifacts
