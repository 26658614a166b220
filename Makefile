# Everything runs in .venv, which is made on first use: `make quickstart` and `make test` need only Python and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

LESSONS := $(sort $(wildcard notebooks/0*.ipynb))
# the notebooks whose numbers come from the committed records
FROM_RECORDS := $(filter-out your_own,$(basename $(notdir $(filter-out $(LESSONS),$(sort $(wildcard notebooks/*.ipynb))))))

.PHONY: install quickstart test test-oldest test-avalanche figures docs clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "ucl needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

quickstart: install
	@echo "Four methods learn a stream of small images three times each, in a few minutes"
	$(BIN)/ucl reproduce 00_quickstart --output reproduced

# the lessons get the outputs of this execution
figures: install
	$(BIN)/ucl reproduce $(LESSONS) $(FROM_RECORDS) --jobs 2 --output reproduced
	$(BIN)/python -m ucl.reproduction.pages reproduced $(LESSONS)
	$(BIN)/python -m ucl.report.pages
	@echo "Tables and pictures are in figures/, pages to browse in reproduced/index.html"

# Lessons are shown with their committed outputs. The other notebooks are executed again only after a change of them, of
# the package or of the records.
docs: build/executed/.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "The site is in site/; to browse it: $(BIN)/python -m http.server --directory site"

build/executed/.done: $(filter-out $(LESSONS),$(wildcard notebooks/*.ipynb)) $(shell find ucl -name '*.py') $(wildcard figures/runs/*.json figures/alone/*.json) | install
	rm -rf build/executed
	mkdir -p build/executed/figures
	$(BIN)/ucl reproduce $(FROM_RECORDS) your_own --jobs 2 --output build/executed -p output build/executed/figures
	touch $@

# Bytecode is written even where PYTHONDONTWRITEBYTECODE is set: without it, every process compiles ucl anew, and every
# worker its tests.
test: export PYTHONDONTWRITEBYTECODE =
test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist worksteal

# the tests with the oldest versions that pyproject.toml allows, which have no builds for newer Pythons
test-oldest:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12) and "the oldest versions need Python 3.10 or 3.11: make test-oldest PYTHON=python3.11")'
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-oldest/bin/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct -e '.[test]'
	.venv-oldest/bin/python -m pytest -n auto --dist worksteal

# the tests that need avalanche-lib
test-avalanche:
	$(PYTHON) -m venv .venv-avalanche
	.venv-avalanche/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,avalanche]'
	.venv-avalanche/bin/python -m pytest tests/test_avalanche.py tests/notebooks -k "avalanche or your_own"

clean:
	rm -rf .venv .venv-oldest .venv-avalanche figures/your_own reproduced runs/quickstart build/executed site
