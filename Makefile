# Two commands matter: `make demo` and `make test`. Both install what they need by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What installs everything else; the rest is pinned with hashes in requirements.lock.
UV := uv==0.13.7

.PHONY: help setup java servers demo test soak check docs coverage format lock bench clean

help:
	@echo "make setup   create .venv with everything, pinned by requirements.lock"
	@echo "make demo    the whole system on this machine: embedded broker, worker, Spark pipeline, report"
	@echo "make test    install the test servers and run all tests"
	@echo "make soak    everything at once for 30 minutes (MINUTES=5), with kills; the sums must be right"
	@echo "make check   format, lint, types, dead code, architecture, public surface, docs"
	@echo "make docs    build the documentation site into .cache/site, strictly"
	@echo "make coverage  run all tests under coverage and compare with the floors"
	@echo "make bench   compare with the peers, side by side; prints ratios"
	@echo "make lock    resolve requirements.lock anew"

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Shinar needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check $(UV)
	$(BIN)/uv pip install -q -p $(BIN)/python --no-deps --compile-bytecode -r requirements.lock
	$(BIN)/uv pip install -q -p $(BIN)/python --no-deps -e .
	@touch $@

# Spark needs a Java 17; installed from Debian's packages where there is none and we are root.
java:
	@command -v java >/dev/null || { apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless >/dev/null; } \
	  || echo "no java: Spark needs Java 17, please install it"

servers: setup java
	$(BIN)/python tests/servers/install.py

demo: setup java
	$(BIN)/python examples/demo.py

test: servers
	$(BIN)/python tests/run.py

MINUTES ?= 30
soak: servers
	$(BIN)/python tests/soak/run.py --minutes $(MINUTES)

# tests/architecture: layers, complexity, dead code (vulture), the public surface (mypy and pyright on tests/typing).
# tests/docs: snippets, links, the strict build of the site, pages that are made of code.
check: setup
	$(BIN)/ruff format --check src tests bench examples docs
	$(BIN)/ruff check src tests bench examples docs
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/architecture tests/docs

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict
	@echo "the documentation is in .cache/site/index.html"

# Subprocesses are measured too: pyproject.toml, tool.coverage.
coverage: servers
	mkdir -p .cache/coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run tests/run.py
	$(BIN)/coverage combine -q
	$(BIN)/coverage json -q -o .cache/coverage/report.json
	$(BIN)/python tests/coverage_floor.py

format: setup
	$(BIN)/ruff format src tests bench examples docs
	$(BIN)/ruff check --fix src tests bench examples docs

lock: setup
	$(BIN)/uv pip compile -q pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --no-emit-index-url --no-header --generate-hashes -o requirements.lock

bench: setup java
	$(BIN)/python bench/run.py

clean:
	rm -rf $(VENV) .cache demo-out .pytest_cache .mypy_cache .ruff_cache
