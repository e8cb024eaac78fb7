# Needs git, make, Python 3.11 or newer, pip. Everything else is installed into .venv from the hash-locked requirements.

.DEFAULT_GOAL := help
SHELL := /bin/sh

# Other Python: make setup PYTHON=python3.13. Arguments: make test ARGS="-k journal".
PYTHON ?=
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TYPED := $(wildcard src tests examples apps proofs bench rigs deploy)
COMPILE := .venv-lock/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml

# Journals wait for the disk at each commit, and the workers share one disk: in memory the tests take much less time. Only
# where there is room for them, and where what they compile may be loaded. `make cover` and the long proofs use the disk.
TEST_TMP = $(shell room_kb=$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print int($$4)}'); \
	if [ -n "$$TMPDIR" ]; then echo "$$TMPDIR"; \
	elif [ -w /dev/shm ] && [ "$$room_kb" -gt 8000000 ] && ! grep -q ' /dev/shm .*noexec' /proc/mounts; then echo /dev/shm; \
	else echo /tmp; fi)

# Tests start many processes. Each would compile all of src anew if none may keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup check format test cover prove nightly demo demo-edge bench web pictures dashboards drawings lock clean

help: ## Say what each target does (the default).
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: .venv/.dev ## Make .venv from the locked requirements; at once when nothing changed.

check: setup ## Check format, lint, types and the direction of imports.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports

format: setup ## Format the code and fix what can be fixed safely.
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

test: setup .venv/.compiled ## Run the tests (ARGS="-k name -x" goes to pytest).
	@begin=$$(date +%s); TMPDIR=$(TEST_TMP) $(BIN)/python -m pytest $(ARGS); code=$$?; \
	echo "make test: $$(($$(date +%s) - begin)) s"; exit $$code

cover: setup ## Run the tests and fail unless every branch of core and crdt is covered.
	STIGMERGY_EXAMPLES=100 $(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered $(ARGS)

prove: setup .venv/.prove .venv/.bench ## Run the long proofs (ARGS goes to proofs).
	$(BIN)/python -m proofs $(ARGS)

nightly: setup .venv/.prove .venv/.bench ## Run all long proofs at full counts: about 9 hours on two cores, 14 at most.
	$(BIN)/python -m proofs

demo: setup ## Fly 500 drones with jobs; kill a dispatcher, close a zone, fail two drones; then the findings (2.5 minutes).
	$(BIN)/python -m apps.drones --drones 500 --minutes 1 --share 1.2 --around 300 --drain 330 --speed 3 \
		--faults two-drones,dispatcher,zone $(ARGS)

demo-edge: setup ## Fly the edge agent over a real broker, kill it, cut its link, prove what is promised.
	$(BIN)/python -m apps.edge_agent.demo $(ARGS)

bench: setup .venv/.bench ## Measure (ARGS goes to the benchmarks).
	$(BIN)/python -m bench $(ARGS)

web: web/node_modules/.package-lock.json ## Check web/ and build the page into src/stigmergy/serve/web (needs Node 20.19 or newer).
	cd web && npm run --silent check && npm run --silent build

dashboards: setup ## Make deploy/ and the tables of docs/metrics.md and docs/logging.md anew from their lists.
	$(BIN)/python -m deploy

pictures: setup ## Take the pictures of the page in docs/images anew (needs chromium).
	$(BIN)/python -m rigs.pictures

drawings: setup ## Draw the pictures in docs/images anew from their texts.
	$(BIN)/python docs/images/draw.py docs/images/*.txt

lock: setup .venv-lock/.lock ## Resolve pyproject.toml anew into requirements/ (ARGS="--upgrade" takes newer versions).
	$(COMPILE) $(ARGS) --group dev -o requirements/dev.txt
	$(COMPILE) $(ARGS) -c requirements/dev.txt -o requirements/base.txt
	$(COMPILE) $(ARGS) -c requirements/dev.txt --group dev --group prove -o requirements/prove.txt
	$(COMPILE) $(ARGS) -c requirements/dev.txt --group bench -o requirements/bench.txt
	for group in lock node; do \
		.venv-lock/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 $(ARGS) \
			--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
			--group $$group -o requirements/$$group.txt || exit 1; \
	done

clean: ## Remove the environments, caches and build results; data files stay.
	rm -rf .venv .venv-lock .venv.lock build dist web/node_modules htmlcov .coverage .coverage.* \
		.mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests examples apps proofs bench rigs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A lock names every package, so nothing is left to resolve (--no-deps): pip 23 would look for coverage[toml] among all
# versions, and refuse the newest because it has no hash.

# The stamps. Two makes at once in one checkout take turns, where flock exists.
.venv/.dev: requirements/dev.txt pyproject.toml
	@exec 9>.venv.lock; if command -v flock >/dev/null 2>&1; then flock 9; fi; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		found=; \
		for python in $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14 python); do \
			if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "setup: no Python 3.11 or newer found (tried: $(or $(PYTHON),python3, python3.11 to python3.14, python))." >&2; \
			echo "setup: install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; \
		fi; \
		if ! "$$found" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
			echo "setup: $$found cannot make environments; install its venv package (Debian: apt install python3-venv)." >&2; exit 1; \
		fi; \
		echo "setup: making .venv with $$found"; \
		"$$found" -m venv --clear .venv || exit 1; \
	fi; \
	$(PIP) install --no-deps --no-compile --use-pep517 --require-hashes -r requirements/dev.txt && \
	$(PIP) install --no-deps --no-build-isolation --editable . && \
	touch $@

# Tests run in several processes. In a new clone each would compile all of src and tests by itself, at the same moment.
.venv/.compiled: .venv/.dev
	@$(BIN)/python -m compileall -q -j 0 src apps examples proofs bench rigs
	@for part in "tests/[a-c]*" "tests/[d-z]*"; do \
		$(BIN)/python -m pytest -n 0 --collect-only -qq -p no:cacheprovider $$part >/dev/null & \
	done; wait; touch $@

.venv/.prove: requirements/prove.txt .venv/.dev
	@$(PIP) install --no-deps --use-pep517 --require-hashes -r requirements/prove.txt && touch $@

.venv/.bench: requirements/bench.txt .venv/.dev
	@$(PIP) install --no-deps --require-hashes -r requirements/bench.txt && touch $@

web/node_modules/.package-lock.json: web/package-lock.json
	cd web && npm ci --silent && touch node_modules/.package-lock.json

.venv-lock/.lock: requirements/lock.txt .venv/.dev
	@$(BIN)/python -m venv .venv-lock && \
	.venv-lock/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r requirements/lock.txt && touch $@
