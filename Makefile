# make demo    the whole thing on real data: four workers, one of them slow, six protocols
# make test    the test suite, with a few real runs (tests/journeys)
# make test-runs  the other tests that make real runs
# make test-integrations  installs Lightning, transformers and Accelerate, and tests what we have for these
# make check   types and style
# make numeric the tests of what is computed, as another processor computes it
# make long    the longer suites
# make gates   what must stay the same while the code is rebuilt (tests/gates); GATES="world runs" for some of it
# make transcripts  write what protocols order in tests/protocols/transcripts anew; read the difference
# make docs    the documentation's site, into build/site; make docs-serve shows it while it is edited
# make prose   how long the sentences of README and the guides are
# make sizes   how large the code is, and where it is larger than it should be
# make papers  published claims beside ours, in virtual time: the tables of benchmarks/papers/results
#
# The first of them installs all into .venv. With TORCH_INDEX=https://download.pytorch.org/whl/cpu it takes torch from
# there, without CUDA; by default it takes the torch that pip finds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Many containers set it. Each process of the suite would compile all modules anew, and pytest all of its tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-runs test-integrations numeric long gates check bench docs docs-serve prose sizes papers transcripts clean

demo: $(VENV)/installed
	@echo "Handwritten digits, 4 workers, of which worker 3 computes four times slower."
	$(BIN)/paceline compare -p bsp -p all-reduce -p ssp:bound=3 -p dssp -p sync-switch -p asp \
	  --scenario examples/scenarios/one_slow.toml --learning-rate-rule linear --target 'accuracy>=0.9' \
	  examples/digits.py --epochs 20

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not long and not integrations and (not real_run or journey)"

# What the tests of `make test` leave out: together they are what pytest runs without a mark.
test-runs: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not long and not integrations and real_run and not journey"

test-integrations: $(VENV)/installed
	@$(PIP) --editable '.[dev,integrations]'
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/integrations

# The kernels that torch would take on another processor, and another number of threads: `make test` takes its own.
# Only what comes out differently if sums are rounded in another way is run again.
CAPABILITY ?= default
THREADS ?= 1
NUMERIC := tests/training/test_averages.py tests/training/test_equals_plain.py tests/training/test_own_step.py \
  tests/training/test_parts.py tests/habits/test_pickles.py \
  tests/fabric/test_groups.py::test_everybody_has_the_mean_of_every_dtype_and_of_buffers \
  tests/fabric/test_groups.py::test_a_weighted_sum_goes_without_what_has_no_gradient \
  tests/runtime/test_old_ledgers.py::test_a_ledger_of_an_earlier_version_is_replayed_to_the_same_bits \
  tests/journeys/test_protocols.py::test_a_run_with_a_slow_worker_and_a_death_ends_on_the_same_bits_again \
  tests/sim/test_gradients.py::test_the_same_seed_gives_the_same_bits_and_the_same_times \
  tests/sim/test_gradients.py::test_rounds_in_virtual_time_end_on_the_bits_of_a_real_run \
  tests/sim/test_gradients.py::test_each_gradient_is_that_of_the_version_and_the_batch_that_the_ledger_names

numeric: $(VENV)/installed
	ATEN_CPU_CAPABILITY=$(CAPABILITY) OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n 2 --dist loadfile $(NUMERIC)

AVX2 := $(shell grep -qw avx2 /proc/cpuinfo && echo avx2 || echo default)

long: $(VENV)/installed
	$(BIN)/python -m pytest -m "long or not long"
	$(MAKE) numeric CAPABILITY=$(AVX2) THREADS=2

# The names of some gates, and flags such as --record; by default all gates but `speed` and `faults`.
GATES ?=

gates: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m gates $(GATES)

transcripts: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m protocols.transcripts

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

sizes: $(VENV)/installed
	$(BIN)/python docs/tools/sizes.py

papers: $(VENV)/installed
	$(BIN)/python benchmarks/papers/write.py

clean:
	rm -rf $(VENV)
