# `make demo` and `make test` work on a fresh machine with Rust, Python 3.10+ and a C compiler: they build first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: build demo test test-full test-browser docs dist lint bench bench-table bench-paper bench-cluster bench-quick format coverage clean

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.10 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo "$$python" && break; done)
VENV := .venv
BIN := $(VENV)/bin
# The profiles that development installs and wheels are built with.
PROFILE ?= quick
WHEEL ?= release
# Tests share the processors as processes; a thread pool in each would only get in the way.
TEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest

export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CARGO_TERM_QUIET ?= true

build: $(VENV)/.built $(VENV)/.tools
	@:

# pip before 25.1 cannot read dependency groups.
$(VENV)/.venv: pyproject.toml
	@test -n "$(PYTHON)" || { echo "hap needs Python 3.10 or later; install it, or name it: make PYTHON=/path"; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/pip install --quiet --group build
	@touch $@

# maturin installs the project's own dependencies too.
$(VENV)/.built: $(VENV)/.venv Cargo.toml Cargo.lock $(shell find rust -name '*.rs')
	@echo "building the extension module and installing what it needs"
	@$(BIN)/maturin develop --profile $(PROFILE) > $(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	@touch $@

$(VENV)/.tools: $(VENV)/.venv
	@echo "installing what tests and lint need"
	@$(BIN)/pip install --quiet --group test --group lint
	@touch $@

demo: $(VENV)/.built
	@$(BIN)/python examples/demo.py

test: build
	@$(TEST) -n 2 --dist loadgroup

# Many more random examples in every property test: HAP_TEST_EXAMPLES of each.
test-full: export HAP_TEST_EXAMPLES ?= 200
test-full: build
	@$(TEST) -n 2 --dist loadgroup --timeout 1800

# The report of a plan in headless Chromium, which Debian's packages bring where it is not there.
test-browser: build
	@command -v chromium > /dev/null && command -v chromedriver > /dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
			&& { apt-get install -qq -y chromium chromium-driver > $(VENV)/apt.log 2>&1 \
				|| { apt-get update -qq >> $(VENV)/apt.log 2>&1 \
					&& apt-get install -qq -y chromium chromium-driver >> $(VENV)/apt.log 2>&1; }; }; } \
		|| { echo "no Chromium: install chromium and chromium-driver (as root, make test-browser does)"; exit 1; }
	@$(BIN)/pip install --quiet --group browser
	@$(TEST) tests/browser

# The documentation as pages, in site/. A link that leads nowhere is an error.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(VENV)/.docs: $(VENV)/.venv
	@echo "installing what the documentation needs"
	@$(BIN)/pip install --quiet --group docs
	@touch $@

lint: build
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo clippy --all-targets --features python -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/stubtest hap._core
	HF_HUB_OFFLINE=1 $(BIN)/python -m docs.coverage --check

# docs/coverage.md, with the operators of the models in tests/zoo.
coverage: build
	HF_HUB_OFFLINE=1 $(BIN)/python -m docs.coverage --models

format: build
	cargo fmt
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

bench: build
	cargo bench

# Measures all problems beside other solvers, for the table in benches/README.md; goes on where it was cut short.
bench-table: build
	@$(BIN)/pip install --quiet --group bench
	@OMP_NUM_THREADS=1 $(BIN)/python benches/table.py

bench-paper: build
	@OMP_NUM_THREADS=1 $(BIN)/python benches/paper.py

# hap beside other systems on emulated clusters: docs/benchmarks.json and .md; goes on where it was cut short.
bench-cluster: build
	@HF_HUB_OFFLINE=1 $(BIN)/python -m benches.cluster.bench

# One cluster and two workloads, in under five minutes; tells the result only.
bench-quick: build
	@HF_HUB_OFFLINE=1 $(BIN)/python -m benches.cluster.bench --quick

# The wheel and the source distribution, and a plan made by the wheel where nothing else of hap is installed.
dist: $(VENV)/.built
	@rm -rf dist
	@$(BIN)/maturin build --profile $(WHEEL) --sdist --out dist > $(VENV)/dist.log 2>&1 || { cat $(VENV)/dist.log; exit 1; }
	@$(BIN)/python tests/wheel.py dist

clean:
	rm -rf $(VENV) dist site target python/hap/*.so
