# make demo    the whole thing on real data: four workers, one of them slow, three protocols
# make test    the test suite
# make check   types and style
# make long    the longer suites

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test long check bench clean

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed
	$(BIN)/python -m pytest

long: $(VENV)/installed
	$(BIN)/python -m pytest -m "long or not long"

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python benchmarks/step.py

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Paceline needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into $(VENV) (a few minutes, the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV)
