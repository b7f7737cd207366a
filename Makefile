# `make demo` and `make test` set up everything they need; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin
# no processes: on every core; some wait for sockets, and their limits leave room for a busy machine
PURE := not processes and not spark and not scenario and not soak and not cluster
CORES := -n auto --maxprocesses=4
# these wait most of the time: two files side by side, the tests of one file in their order
LANES := -n 2 --dist loadfile
export PYTHONDONTWRITEBYTECODE ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo check lint test coverage soak docs cluster cluster-down images test-cluster lock clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: ## .venv with the locked packages, and Java 17 (installed as root on Debian, else asked for)
	@bash tools/setup.sh

demo: setup ## the main job: a TaskManager dies, the report shows which timeout cost each second
	@$(BIN)/headgate run scenarios/02-taskmanager-killed --variant downstream

lint: setup ## format, lint, types, layers
	@echo "== format and lint"; $(BIN)/ruff format --check -q . && $(BIN)/ruff check -q .
	@echo "== types"; $(BIN)/mypy --no-error-summary
	@echo "== layers"; $(BIN)/lint-imports | tail -n 3

check: lint ## the fast part: lint and the tests without processes (about 2 minutes on two cores, no root)
	@echo "== quick tests"; $(BIN)/python -m pytest -q $(CORES) -m "$(PURE) and not virtual"

test: lint ## everything: quick tests, real processes, real Spark, every scenario, a real Kubernetes
	@echo "== quick tests, and scenarios in virtual time"; $(BIN)/python -m pytest -q $(CORES) -m "$(PURE) and not helm" --durations=10
	@echo "== real processes, real Spark and every scenario from YAML to verdict"; $(BIN)/python -m tools.cluster packages
	@$(BIN)/python -m pytest -q $(LANES) -m "(processes or spark or scenario) and not soak and not cluster" --durations=10
	@echo "== a real Kubernetes (built first where there is none and Go is there: docs/local-cluster.md)"
	@$(MAKE) --no-print-directory test-cluster

coverage: setup ## branch coverage of the quick tests (it makes them two to three times slower, so it is not part of `make test`)
	@$(BIN)/python -m pytest -q -m "$(PURE) and not virtual" --cov --cov-report=term:skip-covered

soak: setup ## the long matrices: thousands of seeds, every fault kind with kill -9, repeated scenarios, and those of a real Kubernetes
	@$(BIN)/python -m tools.cluster prepare
	@HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q -m "soak" --durations=10 --timeout=3000

docs: setup ## write the reference pages of docs/ and the CustomResourceDefinitions from the code
	@$(BIN)/python tools/generate_docs.py && $(BIN)/python tools/generate_crds.py

cluster: setup ## a real Kubernetes for tests: the one of KUBECONFIG, kind's, or one built here (docs/local-cluster.md)
	@$(BIN)/python -m tools.cluster up

cluster-down: setup ## take that Kubernetes away; nothing is left but the cache of what was built
	@$(BIN)/python -m tools.cluster down

images: setup ## headgate, headgate-agent, headgate-spark; loaded into the cluster that is up; PUSH=registry/prefix pushes them
	@$(BIN)/python -m tools.images build --load $(if $(PUSH),--push $(PUSH))

test-cluster: setup ## the tests that need a real Kubernetes; skipped with the reason where none can be had
	@$(BIN)/python -m tools.cluster prepare
	@$(BIN)/python -m pytest -q tests/kubernetes -m "(cluster or helm) and not soak" --durations=10

RESOLVE := pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --python-version 3.11 -q

lock: setup ## resolve the locks anew (needs `uv` in .venv): of development, and the parts of it that go into images
	@$(BIN)/uv $(RESOLVE) --all-extras -o requirements.lock
	@$(BIN)/uv $(RESOLVE) --extra operator -c requirements.lock -o requirements-image.lock
	@awk '/^[a-z]/ { wanted = /^(pyspark|py4j)==/ } wanted' requirements.lock >requirements-spark.lock

clean: ## remove what was made here (.venv, caches, runs)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* .import_linter_cache headgate-runs
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
