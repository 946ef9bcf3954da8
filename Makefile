# Every target sets up what it needs: a virtual environment, the packages, Java.
#
#   PYTHON=…     the interpreter for the virtual environment (3.11 or newer)
#   WORKERS=…    how many processes `make test` uses
#   SEEDS=…      the seeds of `make simulate`, such as 1..20000; MIX=… one mix instead of all in rotation
#   STORE=…      the graph of `make serve`, a path or URI; BIND=… where it listens

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run serve test check soak simulate bench clean java

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JAVA := $(VENV)/.java
WORKERS ?= 2
SEEDS ?= 1..600
STORE ?= .demo
BIND ?= 127.0.0.1:8080
SOAK_REPORT := docs/soak.md
export PYTHONUNBUFFERED := 1
# Compiled modules are kept, whatever the environment says: tests start hundreds of processes that would compile anew.
export PYTHONDONTWRITEBYTECODE :=

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(READY) java ## show what there is, on graphs in fresh directories
	@$(BIN)/omnigraph demo
	@echo
	@echo "Below all that, the commit path: writers that race, and one that is killed."
	@$(BIN)/python examples/commit_path.py
	@echo
	@echo "And at the other end of the scale: bulk data on Spark."
	@$(BIN)/python examples/bulk.py

serve: $(READY) ## serve a graph on http://127.0.0.1:8080; STORE=… for your own instead of the sample
	@if [ "$(STORE)" = .demo ] && [ ! -e .demo/_omnigraph.json ]; then \
	    $(BIN)/omnigraph init --schema examples/people.pg .demo >/dev/null; \
	    $(BIN)/omnigraph load --data examples/people.jsonl --store .demo --quiet; fi
	@$(BIN)/omnigraph serve --store $(STORE) $(if $(filter .demo,$(STORE)),--queries examples/queries) --bind $(BIND)

test: $(READY) java ## run the tests
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup -m "not soak"

check: $(READY) ## formatting, lint, types (also of the tests), layering
	@$(BIN)/ruff format --check --quiet . || { echo "Run: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo 2>/dev/null >$(VENV)/.imports || { cat $(VENV)/.imports; exit 1; }
	@echo "check: all well"

soak: $(READY) java ## run the long tests; writes docs/soak.md
	@rm -f docs/.soak.md.new
	@export OMNIGRAPH_SOAK_REPORT=$(CURDIR)/docs/.soak.md.new; status=0; \
	    $(BIN)/pytest -q -n $(WORKERS) --dist loadgroup -m "soak and not alone" --timeout 3000 || status=$$?; \
	    $(BIN)/pytest -q -m "soak and alone" --timeout 3000 || status=$$?; \
	    if [ -f docs/.soak.md.new ]; then mv docs/.soak.md.new $(SOAK_REPORT); echo "soak: see $(SOAK_REPORT)"; fi; \
	    exit $$status

simulate: $(READY) ## run random schedules with faults on a simulated store: SEEDS=1..20000
	@PYTHONPATH=src:tests $(BIN)/python -m simulation.run --seeds $(SEEDS) --workers $(WORKERS) $(if $(MIX),--mix $(MIX))

bench: $(READY) java ## measure speed beside other engines; writes docs/bench.md
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@$(BIN)/python -m bench.run --report docs/bench.md
	@$(BIN)/python -m bench.commits --report docs/bench-commits.md
	@$(BIN)/python -m bench.merge --spark --report docs/bench-merge.md
	@$(BIN)/python -m bench.bulk --report docs/bench-bulk.md

clean: ## remove everything that was made here
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache docs/.soak.md.new .demo
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Again whenever pyproject.toml changes.
$(READY): pyproject.toml
	@bash scripts/venv.sh $(VENV)
	@touch $@

# Spark needs Java. Where it was found is kept beside the packages, where the sessions look for it.
java: | $(READY)
	@if [ ! -s $(JAVA) ] || [ ! -x "$$(cat $(JAVA))/bin/java" ]; then \
	    bash scripts/java.sh >$(JAVA) || { rm -f $(JAVA); exit 1; }; fi
