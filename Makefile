# Two commands: `make demo` shows the whole loop on this machine, `make test` proves it (`make test-all` at length).
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two processes share the files of tests; each keeps a pool of ranks of its own. Files come in the order of folders: by
# their numbers of tests, as xdist has it, those that start ranks would all be left to the end.
TESTS := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test types tests test-all oracle docs dist clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m meshwright.demo

# mypy runs beside the tests, which leave it time: ranks wait for one another.
test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory --jobs=2 types tests

types:
	$(BIN)/mypy

tests:
	$(TESTS)

# What is drawn at random is new each time; the seed of the fuzzer is printed, to draw the same again.
test-all: export THOROUGH = 1
test-all: export PYTEST_TIMEOUT = 1800
test-all: export FUZZ_SEED := $(or $(FUZZ_SEED),$(shell date +%s))
test-all:
	@echo "FUZZ_SEED=$(FUZZ_SEED)"
	$(MAKE) test

# Whether a change that is to move no answer moves none, in some minutes; with FAULTS=1 also how many faults tests notice.
oracle: $(STAMP)
	$(BIN)/python tools/faults.py --check
	$(BIN)/python tools/oracle.py
	$(if $(FAULTS),$(BIN)/python tools/faults.py)

# Guides, concepts and reference as a site.
docs: $(STAMP)
	$(BIN)/python tools/site.py dist/docs

# What is published: wheel, sdist, notes from the changelog, and what the extras EXTRAS (say `run`) install, in CycloneDX.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[release]"
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tools/release_notes.py $(VERSION) > dist/release-notes.md
	$(PYTHON) -m venv dist/installed
	dist/installed/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		"$$(echo dist/*.whl)$(if $(EXTRAS),[$(EXTRAS)])"
	dist/installed/bin/python -m pip uninstall --quiet --yes setuptools pip
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json dist/installed/bin/python
	rm -rf dist/installed

clean:
	rm -rf $(VENV) demo-output build dist
