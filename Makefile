# make demo   the smoke suite: DSAC-T and SAC, and a report of them
# make test   the quick tests                   make test-slow  the slow ones
# make lint   style, format and types           make clean      remove the virtual environment
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
JOBS   ?= 2

# Packages without which nothing works have no wheels for other versions of Python.
CHECK   = import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit( \
	"error: Python 3.11, 3.12 or 3.13 is needed, and $(PYTHON) is {}.{}: make PYTHON=python3.12".format(*v))
# Whether the environment that is there has pip and this version of Python; if not, it is made anew.
FITS    = import pip, sys; sys.exit(list(sys.version_info[:2]) != [int(n) for n in sys.argv[1].split(".")])

# torch comes first: without an NVIDIA driver the CPU build, which is gigabytes smaller, is preferred where pip is offered
# one (by an index or a folder of wheels in its configuration, or by PIP_EXTRA_INDEX_URL).
TORCH   = $(shell sed -n 's/^torch==//p' constraints.txt)

# Byte code is written when a module is first imported: that of all installed packages would take a minute more.
export PIP_COMPILE = 0
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow lint clean
demo: $(VENV)/.installed
	$(BIN)/python -m benchmarks.sweep smoke --out runs/demo
	$(BIN)/python -m benchmarks.report runs/demo --out runs/demo/report

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow"

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy algos envs benchmarks single_file

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -c '$(CHECK)'
	@version=$$($(PYTHON) -c 'import sys; print("{}.{}".format(*sys.version_info))'); \
	if ! $(BIN)/python -c '$(FITS)' $$version 2>/dev/null; then \
	  $(PYTHON) -m venv $$(test ! -f $(VENV)/pyvenv.cfg || echo --clear) $(VENV); \
	fi
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing torch $(TORCH), which takes about a minute"
	@if command -v nvidia-smi >/dev/null || ! $(BIN)/pip install --quiet torch==$(TORCH)+cpu 2>/dev/null; then \
	  $(BIN)/pip install --quiet torch==$(TORCH); \
	fi
	@echo "installing Seedbed and what it needs, which takes about a minute more"
	@PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'  # setuptools' advice
	@if ! $(BIN)/pip show --quiet ogbench 2>/dev/null; then \
	  $(BIN)/pip install --quiet --constraint constraints.txt dm-env dm-tree lxml && \
	  $(BIN)/pip install --quiet --constraint constraints.txt --no-deps ogbench dm_control; \
	fi  # on Python 3.13 and newer, see pyproject.toml
	@touch $@

clean:
	rm -rf $(VENV)
