# Each target sets up what it needs; PYTHON picks the interpreter the environment is made with.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Checked first: an environment that was made with an older Python would stay.
MAKE_VENV = $(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make ... PYTHON=python3.12")' && $(PYTHON) -m venv $(VENV)

.PHONY: demo test browser lint format docs studio benchmark clean

$(VENV)/.demo: pyproject.toml
	@$(MAKE_VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cli]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	@$(MAKE_VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml
	@$(MAKE_VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

demo: $(VENV)/.demo  ## judge, learn, judge again; ARGS="--sql" or "--interactive" (you are the expert)
	$(BIN)/memalign demo $(ARGS)

test: $(VENV)/.dev  ## all tests; ARGS="-k name" for some
	LANGGRAPH_STRICT_MSGPACK=true $(BIN)/python -m pytest -n auto $(ARGS)

browser: $(VENV)/.dev  ## the review page in Chromium, as experts use it; ARGS="-k name" for some
	LANGGRAPH_STRICT_MSGPACK=true $(BIN)/python -m pytest -n 0 -m browser tests/browser $(ARGS)

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs  ## build the documentation in build/docs, offline; a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

studio: $(VENV)/.dev  ## serve the graphs to LangGraph Studio
	$(BIN)/langgraph dev $(ARGS)

benchmark: $(VENV)/.dev  ## compare with MLflow's MemAlign; ARGS="--quick" only shows that it runs
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .venv-peer .mypy_cache .pytest_cache .ruff_cache build dist
