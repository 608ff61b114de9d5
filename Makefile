# make demo    the whole thing on real data: four workers, one of them slow, six protocols
# make test    the test suite
# make check   types and style
# make numeric the tests of what is computed, as another processor computes it
# make long    the longer suites
# make docs    the documentation's site, into build/site; make docs-serve shows it while it is edited
# make prose   how long the sentences of README and the guides are
# make papers  published claims beside ours, in virtual time: the tables of docs/papers.md
#
# The first of them installs all into .venv. With TORCH_INDEX=https://download.pytorch.org/whl/cpu it takes torch from
# there, without CUDA; by default it takes the torch that pip finds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test numeric long check bench docs docs-serve prose papers clean

demo: $(VENV)/installed
	@echo "Handwritten digits, 4 workers, of which worker 3 computes four times slower."
	$(BIN)/paceline compare -p bsp -p all-reduce -p ssp:bound=3 -p dssp -p sync-switch -p asp \
	  --scenario examples/scenarios/one_slow.toml --learning-rate-rule linear --target 'accuracy>=0.9' \
	  examples/digits.py --epochs 20

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The kernels that torch would take on another processor, and another number of threads: `make test` takes its own.
CAPABILITY ?= default
THREADS ?= 1
NUMERIC := tests/training/test_averages.py tests/training/test_equals_plain.py tests/training/test_optimizers.py \
  tests/training/test_own_optimizers.py tests/training/test_own_step.py tests/fabric/test_groups.py \
  tests/runtime/test_forged_data.py tests/runtime/test_momentum.py tests/runtime/test_old_ledgers.py \
  tests/runtime/test_replay.py tests/sim/test_gradients.py tests/sim/test_own_updates.py tests/habits/test_pickles.py

numeric: $(VENV)/installed
	ATEN_CPU_CAPABILITY=$(CAPABILITY) OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n 2 --dist loadfile $(NUMERIC)

AVX2 := $(shell grep -qw avx2 /proc/cpuinfo && echo avx2 || echo default)

long: $(VENV)/installed
	$(BIN)/python -m pytest -m "long or not long"
	$(MAKE) numeric CAPABILITY=$(AVX2) THREADS=2

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
ifdef TORCH_INDEX
	@$(PIP) --no-deps --index-url $(TORCH_INDEX) torch
endif
	@$(PIP) --editable '.[dev]'
	@touch $@

# The variable silences a notice of the theme's makers about another program, which a build would show each time.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

prose: $(VENV)/installed
	$(BIN)/python docs/tools/prose.py

papers: $(VENV)/installed
	$(BIN)/python benchmarks/papers/write.py

clean:
	rm -rf $(VENV)
