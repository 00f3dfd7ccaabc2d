# Everything this project can do for you. `make` alone prints the list.
.POSIX:
.PHONY: help setup jars demo test check fmt lint type crash soak bench bench-peers docs lock clean docs-check

BIN = .venv/bin
SETUP = .ci/setup
TYPED = delivery dedup sinks connectors
# What builds the site, in an environment of its own: the lock knows nothing of it.
MKDOCS = mkdocs==1.6.1
MATERIAL = mkdocs-material==9.6.23

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do printf '  make %-11s %s\n' "$$target" "$$text"; done

setup: ## Bring .venv to what requirements.lock says; a second run does nothing
	@$(SETUP)

jars: setup ## Fetch the jars of the servers and of Spark, once for all checkouts
	@$(BIN)/python -c 'from delivery.services.jars import Tree, jars; [jars(tree) for tree in Tree]'

demo: setup ## Two stages beside plain PySpark, both killed on the way; DEMO="--catalog cassandra --keep"
	@$(BIN)/python examples/order_pricing.py $(DEMO)

test: lint type jars ## Lint, types and every test but the slow ones, on real servers
	@$(BIN)/python -m pytest

check: lint type ## The inner loop: lint, types and the tests that need no server
	@$(BIN)/python -m pytest $$(ls -d tests/tidy tests/unit tests/property 2>/dev/null)

fmt: setup ## Format, and repair what the linter can repair
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

lint: setup ## Look for mistakes and for unformatted code
	@.ci/section lint sh -c '$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .'

type: setup ## Check the types of the four packages, and of the benchmarks
	@.ci/section types sh -c '$(BIN)/mypy && $(BIN)/mypy --package bench'

crash: setup jars ## The slow tests: crashes, in depth (about an hour and a half)
	@$(BIN)/python -m tests.crash

soak: setup jars ## Kill everything at random for ten minutes and judge what came out; SOAK_SECONDS, SOAK_SEED
	@$(BIN)/python -m tests.acceptance.soak

docs-check: setup ## Look at the report in a real browser, light and dark, on a phone and a desk; pictures in .cache/looks
	@$(BIN)/python -m tests.acceptance.looks

bench: setup jars ## Measure, beside the barest thing that does the same; BENCH="NAME... --quick" narrows it
	@$(BIN)/python -m bench $(BENCH)

bench-peers: setup jars ## Ours beside its peers, each in an environment of its own; BENCH="NAME... --quick" narrows it
	@$(BIN)/python -m bench.peers.environments
	@$(BIN)/python -m bench.peers $(BENCH)

docs: setup ## Build the documentation site, in strict mode, into .cache/site
	@$(BIN)/uv tool run --quiet --from $(MKDOCS) --with $(MATERIAL) mkdocs build --strict --site-dir .cache/site
	@echo "the site is .cache/site/index.html"

lock: setup ## Resolve pyproject.toml anew into requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras --group pyproject.toml:dev --no-annotate --no-header pyproject.toml --output-file requirements.lock

clean: ## Stop this checkout's servers and remove everything set-up and runs have left
	@if [ -x $(BIN)/delivery ]; then $(BIN)/delivery down; fi
	@rm -rf .venv .cache .delivery dedup/compiled/libkernels.* bench/results .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
