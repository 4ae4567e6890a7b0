# SPDX-License-Identifier: Apache-2.0
# Needs Python >= 3.11 (< 3.13), bash and make; everything else is set up here.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLASSES := $(VENV)/classes.jsa
COLLECTED := $(VENV)/.collected
BENCH := $(VENV)/.bench
PYTEST_ARGS ?=
# Where it is set every process that a test starts compiles all it imports: seconds of CPU, hundreds of times.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo servers test test-fast soak lint format bench bench-hudi bench-surface bench-sweep bench-layouts bench-formats bench-manifests bench-rewriting bench-splice pictures openapi metrics-doc config-doc formats-doc lock clean
help: ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## create .venv with the locked dependencies

$(READY): requirements/dev.lock pyproject.toml
	@[[ -n "$(PYTHON)" ]] || { echo "lakefold needs Python 3.11 or 3.12; found $$(python3 --version 2>/dev/null || echo none). Set PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 13) else "lakefold needs Python 3.11 or 3.12 (pyspark 3.5.9 does not run on newer ones); PYTHON=%s is %d.%d" % (sys.executable, v.major, v.minor))'
	@[[ -x $(BIN)/python ]] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/dev.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

# The programs that lakefold is measured against.
$(BENCH): $(READY) requirements/bench.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/bench.lock
	@touch $@

demo: $(READY) ## a real writer, the real daemon, and a table getting healthy
	@$(BIN)/lakefold demo $(DEMO_ARGS)

$(CLASSES): $(READY) tests/class_archive.py tests/QuickLocalFiles.java
	@$(BIN)/python tests/class_archive.py

# Compiles the tests once: the processes of a first run would all do it at the same time.
$(COLLECTED): $(READY)
	@$(BIN)/python -m pytest --collect-only -q > $@ || true

servers:
	@bash tests/servers.sh

test: $(READY) ## the whole suite (slice lengths), in four processes
	@$(MAKE) -s -j 3 servers $(CLASSES) $(COLLECTED)
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-fast: $(READY) ## the inner loop: the tests that need no JVM, no server and less than half a second each
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not spark and not server and not slow and not soak" $(PYTEST_ARGS)

soak: $(READY) servers ## the long runs; writes docs/reliability.md
	@LAKEFOLD_SOAK=1 $(BIN)/python -m pytest -m soak -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(READY) ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(BENCH) ## planning; what layouts save; rewriting against every peer; renews bench/rewriting.md and the chart
	@$(BIN)/python bench/planning.py
	@$(BIN)/python bench/layouts.py
	@$(BIN)/python bench/rewriting.py --keep bench/results --page bench/rewriting.md

bench-rewriting: $(BENCH) ## rewriting speed of engines and plans against cat, Spark, Iceberg, Delta, DuckDB and polars
	@$(BIN)/python bench/rewriting.py $(BENCH_ARGS)

bench-formats: $(BENCH) ## whole plans on Iceberg tables against rewrite_data_files, PyIceberg and DuckDB
	@$(BIN)/python bench/formats.py --page bench/formats.md $(BENCH_ARGS)

bench-manifests: $(BENCH) ## what readers of an Iceberg table save after its manifests were rewritten
	@$(BIN)/python bench/manifests.py

bench-layouts: $(BENCH) ## what readers save by sort_columns on TPC-H's lineitem; the memory of a large sorted group
	@$(BIN)/python bench/layouts.py

bench-splice: $(BENCH) ## an experiment: merging small row groups without decoding values, against arrow and cat
	@$(BIN)/python bench/splice.py

bench-sweep: $(READY) ## what the sweep of a large Hive table costs while nothing changes; makes a million directories
	@$(BIN)/python bench/sweep.py

bench-hudi: $(READY) ## rewriting speed and memory against Hudi's own clustering, half an hour
	@$(BIN)/python bench/hudi.py

bench-surface: $(READY) ## how fast metrics, plans and the page answer with 1,000 tables and 100,000 plans
	@$(BIN)/python bench/surface.py

pictures: $(READY) ## renew docs/images, the pictures of the page in README
	@$(BIN)/python bench/pictures.py

openapi: $(READY) ## renew docs/openapi.json
	@$(BIN)/python -m service.server.http.openapi

metrics-doc: $(READY) ## renew docs/metrics.md
	@$(BIN)/python -m service.server.observability.metrics_doc

config-doc: $(READY) ## renew the tables of docs/configuration.md
	@$(BIN)/python -m service.control.config.config_doc

formats-doc: $(READY) ## renew the feature matrix of docs/formats.md
	@$(BIN)/python -m lake.formats_doc

lock: $(READY) ## renew requirements/*.lock
	@for set in runtime dev; do \
	  $(BIN)/uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml \
	    $$([[ $$set == dev ]] && echo --group dev --all-extras) -o requirements/$$set.lock; done
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 --group bench \
	    -c requirements/dev.lock -o requirements/bench.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
