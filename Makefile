# Everything runs in .venv, which is made on first use: `make quickstart` and `make test` need only Python and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: install quickstart test figures lint clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "ucl needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

quickstart: install
	mkdir -p figures/quickstart
	$(BIN)/papermill notebooks/00_quickstart.ipynb figures/quickstart/00_quickstart.ipynb --no-progress-bar --cwd notebooks
	@echo "The executed notebook and its pictures are in figures/quickstart/"

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest

clean:
	rm -rf .venv figures/quickstart runs
