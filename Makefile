# `make demo` and `make test` install what they need; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin
# tests without processes use every core, a few tests at a time; some wait for sockets, with limits that a busy machine keeps
PURE := not processes and not spark and not scenario and not soak and not cluster and not helm
CORES := -n auto --maxprocesses=4 --maxschedchunk=4
# tests with processes mostly wait, so more files than cores run side by side; long files start first; a file stays on one worker
BY_FILE := --dist loadfile --no-loadscope-reorder
FILES := -n 3 $(BY_FILE)
# each worker collects all files that it is given, which takes 10 s for all of them: a stage names those with its markers
VIRTUAL := $(sort $(shell grep -rl 'mark\.virtual' tests --include='test_*.py'))
REAL := tests/e2e $(sort $(shell grep -rlE 'mark\.(processes|spark|scenario)' tests --include='test_*.py' --exclude-dir=e2e))
# tests of pods wait even more: for the scheduler, the kubelet, readiness and each other
PODS := -n 4 $(BY_FILE)
# tests in virtual time depend on no clock: they run beside the others, on what those leave of the processors
IDLE := $(if $(shell chrt --idle 0 echo yes 2>/dev/null),chrt --idle 0,nice -n 19)
# with cached bytecode, every process starts 0.6 s of CPU sooner; some base images turn the cache off
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
# of the machine, or the one that `make cluster` built
HELM = PATH="$$PATH:$$HOME/.cache/headgate/cluster/bin" helm
.PHONY: help setup demo check lint test coverage soak bench docs cluster cluster-down images chart test-cluster lock clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: ## .venv with the locked packages, and Java 17 (installed as root on Debian, else asked for)
	@bash tools/setup.sh

demo: setup ## kill a TaskManager, and see in the report which timeout cost each second
	@$(BIN)/headgate run scenarios/02-taskmanager-killed --variant downstream

LINT = echo "== format and lint"; $(BIN)/ruff format --check -q .; $(BIN)/ruff check -q .; \
	echo "== types"; $(BIN)/mypy --no-error-summary; echo "== layers"; $(BIN)/lint-imports | tail -n 3
lint: setup ## format, lint, types, layers
	@$(LINT)

check: lint ## the quick part: lint and the tests without processes (4 to 5 minutes on two cores, no root)
	@echo "== quick tests"; $(BIN)/python -m pytest -q $(CORES) -m "$(PURE) and not virtual"

test: setup ## everything that needs no Kubernetes: lint, quick tests, virtual time, real processes, real Spark, scenarios (10 to 20 minutes on two cores)
	@$(BIN)/python -m tools.cluster packages; log=$$(mktemp); trap 'rm -f $$log; kill $$virtual 2>/dev/null || true' EXIT; \
	$(IDLE) $(BIN)/python -m pytest -q $(CORES) $(VIRTUAL) -m "$(PURE) and virtual" --durations=10 >$$log 2>&1 & virtual=$$!; \
	echo "== scenarios in virtual time run beside all that follows, at the lowest priority; their output comes last"; \
	$(LINT); \
	echo "== quick tests"; \
	$(BIN)/python -m pytest -q $(CORES) -m "$(PURE) and not virtual" --durations=10; \
	echo "== real processes, real Spark and scenarios from YAML to verdict"; \
	$(BIN)/python -m pytest -q $(FILES) $(REAL) -m "(processes or spark or scenario) and not soak and not cluster" --durations=10; \
	echo "== scenarios in virtual time"; tail -n +1 -f --pid=$$virtual $$log; \
	code=0; wait $$virtual || code=$$?; virtual=; exit $$code
	@echo "== passed; the tests on a real Kubernetes: make test-cluster"

coverage: setup ## branch coverage of the quick tests (it makes them two to three times slower, so it is not part of `make test`)
	@$(BIN)/python -m pytest -q -m "$(PURE) and not virtual" --cov --cov-report=term:skip-covered

soak: setup ## the long matrices: thousands of seeds, every fault kind with kill -9, repeated scenarios, and those of a real Kubernetes
	@$(BIN)/python -m tools.cluster prepare
	@code=0; if ! $(BIN)/python -m tools.cluster status >/dev/null 2>&1; then \
		$(BIN)/python -m pytest -q tests/kubernetes/test_local_cluster_goes.py -m "soak" || code=$$?; \
		trap '$(BIN)/python -m tools.cluster down' EXIT; \
		$(BIN)/python -m tools.cluster up --nodes 2 || echo "soak: tests that need a Kubernetes of two nodes will be skipped"; \
	fi; \
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q -m "soak" --durations=10 --timeout=3000 || code=$$?; exit $$code

bench: setup ## the ratios of speed, each against its own limit in the same run (5 minutes; Flink needs Maven and a JDK)
	@$(BIN)/python benchmarks/bench.py

docs: setup ## write the reference pages of docs/ and the CustomResourceDefinitions from the code
	@$(BIN)/python -m tools.generate_docs && $(BIN)/python -m tools.generate_crds

cluster: setup ## a real Kubernetes for tests: the one of KUBECONFIG, kind's, or one built here (docs/local-cluster.md); NODES=2
	@$(BIN)/python -m tools.cluster up $(if $(NODES),--nodes $(NODES))

cluster-down: setup ## stop and remove that Kubernetes; only the cache of what was built stays
	@$(BIN)/python -m tools.cluster down

images: setup ## headgate, headgate-agent, headgate-spark; loaded into the cluster that is up, or with PUSH=registry/prefix pushed there
	@$(BIN)/python -m tools.images build $(if $(PUSH),--push $(PUSH),--load)

chart: setup ## package the Helm chart into dist/; PUSH=registry/prefix pushes it to registry/prefix/charts, SIGN=key signs it with GnuPG
	@mkdir -p dist; rm -f dist/headgate-*.tgz*
	@$(HELM) package helm/headgate --destination dist $(if $(SIGN),--sign --key '$(SIGN)' --keyring "$${GNUPGHOME:-$$HOME/.gnupg}/secring.gpg")
	@$(if $(PUSH),$(HELM) push dist/headgate-*.tgz 'oci://$(PUSH)/charts')

test-cluster: setup ## the tests on a real Kubernetes, built first if it is missing (20 to 30 minutes once it is built; docs/local-cluster.md)
	@$(BIN)/python -m tools.cluster prepare
	@export HEADGATE_TEST_JOURNAL=$$(mktemp); code=0; \
	if ! $(BIN)/python -m tools.cluster status >/dev/null 2>&1; then \
		trap '$(BIN)/python -m tools.cluster down' EXIT; \
		echo "== an empty cluster: it starts, installs from a registry, and leaves nothing when it stops"; \
		$(BIN)/python -m pytest -q tests/kubernetes/test_local_cluster_goes.py tests/kubernetes/test_registry.py -m "cluster and not soak" || code=$$?; \
	fi; \
	echo "== files side by side"; \
	$(BIN)/python -m pytest -q tests/kubernetes $(PODS) -m "(cluster or helm) and not disruptive and not soak" --durations=10 || code=$$?; \
	echo "== tests that need the cluster for themselves"; \
	$(BIN)/python -m pytest -q tests/kubernetes -m "cluster and disruptive and not soak" --durations=10 || code=$$?; \
	rm -f "$$HEADGATE_TEST_JOURNAL"; exit $$code

RESOLVE := pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --python-version 3.11 -q

lock: setup ## resolve the locks anew (needs `uv` in .venv): of development, and the parts of it that go into images
	@$(BIN)/uv $(RESOLVE) --all-extras -o requirements.lock
	@$(BIN)/uv $(RESOLVE) --extra operator --extra tls --extra otel -c requirements.lock -o requirements-image.lock
	@awk '/^[a-z]/ { wanted = /^(pyspark|py4j)==/ } wanted' requirements.lock >requirements-spark.lock

clean: ## remove .venv, caches and runs
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* .import_linter_cache headgate-runs
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
