# make demo    the whole thing on real data: four workers, one of them slow, six protocols
# make test    the test suite
# make check   types and style
# make long    the longer suites
# make papers  published claims beside ours, in virtual time: the tables of docs/papers.md

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test long check bench papers clean

demo: $(VENV)/installed
	@echo "Handwritten digits, 4 workers, of which worker 3 computes four times slower."
	$(BIN)/paceline compare -p bsp -p all-reduce -p ssp:bound=3 -p dssp -p sync-switch -p asp \
	  --scenario examples/scenarios/one_slow.toml --learning-rate-rule linear --target 'accuracy>=0.9' \
	  examples/digits.py --epochs 20

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

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

papers: $(VENV)/installed
	$(BIN)/python benchmarks/papers/write.py

clean:
	rm -rf $(VENV)
