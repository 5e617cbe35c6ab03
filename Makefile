# make run: set up .venv, execute the notebooks in order, leave them with HTML pages in build/, and there also the peak
#   memory of attention as memory.csv and memory.png
# make test: the same, then lint, every test on every supported simulator (and a GPU if there is one), and the
#   notebooks cell by cell (nbval)
# make notebooks: execute the notebooks and keep the results, before a commit that touches them
# make figure: remake the README's pictures, and its table of the ladder, from notebooks/recorded/h200.json
# make clean: remove what was installed and built

PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$name -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$name && break; done)
BIN := .venv/bin
FLOORS := .venv-floors/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PYTEST := -m pytest -n auto --maxprocesses 4
# On the other simulators: of the attention steps, the comparison with the reference is enough.
ELSEWHERE := $(PYTEST) --ignore tests/test_compile.py --ignore tests/test_torch.py --ignore tests/test_trace.py \
	--ignore tests/test_work.py \
	-k "not (test_step3 or test_step4 or test_step5 or attention_inputs or properties) or (against_the_reference and not kernels)"
# PyTorch without CUDA, for the tests: for Linux, PyPI has it with gigabytes of CUDA only. First PyTorch alone, from its
# own index, which may be out of reach, then from PyPI what it needs.
TORCH := torch==2.13.0$(if $(filter Darwin,$(shell uname)),,+cpu)
TORCH_INDEX := --index-url https://download.pytorch.org/whl/cpu --timeout 10 --retries 1

.PHONY: run test lint notebooks figure clean

run: .venv/installed
	$(BIN)/fa-numba run --output build
	$(BIN)/fa-numba memory --output build

test: run lint .venv-floors/installed
	@echo "== the compiler, for every architecture"
	$(BIN)/python -m pytest tests/test_compile.py
	@echo "== on the simulator"
	FA_NUMBA_DEVICE=simulator $(BIN)/python $(PYTEST) --ignore tests/test_compile.py tests
	@echo "== on the simulator inside numba, as on macOS"
	FA_NUMBA_DEVICE=simulator $(BIN)/python $(ELSEWHERE) -p bundled tests
	@echo "== with the lowest supported versions, on both simulators"
	FA_NUMBA_DEVICE=simulator $(FLOORS)/python $(ELSEWHERE) tests
	FA_NUMBA_DEVICE=simulator $(FLOORS)/python $(ELSEWHERE) -p bundled tests
	@if [ -n "$$($(PYTHON) fa_numba/selection.py)" ]; then echo "== on the GPU"; \
		$(BIN)/python $(PYTEST) --ignore tests/test_compile.py tests; fi
	@echo "== the notebooks, cell by cell"
	$(BIN)/python $(PYTEST) --dist loadscope --nbval --nbval-current-env --nbval-cell-timeout 300 notebooks

lint: .venv/tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

notebooks: .venv/installed
	$(BIN)/fa-numba run --output build
	for notebook in notebooks/*.ipynb; do cp "build/$$(basename "$$notebook")" notebooks/; done

figure: .venv/installed
	$(BIN)/python docs/front_page.py

clean:
	rm -rf .venv .venv-floors build

.venv/installed: pyproject.toml
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
		{ echo "fa_numba needs Python 3.10 to 3.13; none was found (PYTHON=$(PYTHON))"; exit 1; }
	@$(PYTHON) -m venv --clear .venv || \
		{ echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Installing into .venv: about 0.7 GB, a few minutes the first time."
	@extra=$$($(PYTHON) fa_numba/selection.py); \
		echo "CUDA packages: $${extra:-none, as there is no NVIDIA driver}"; \
		$(BIN)/python $(PIP_INSTALL) --editable ".$${extra:+[$$extra]}"
	@$(BIN)/python -c "import matplotlib.font_manager"  # builds the font cache, which would warn in a notebook
	@touch $@

.venv/tests-installed: .venv/installed
	@echo "Installing what the tests need."
	@$(BIN)/python $(PIP_INSTALL) --editable ".[test]"
	@if [ -z "$$($(PYTHON) fa_numba/selection.py)" ]; then \
		$(BIN)/python $(PIP_INSTALL) --no-deps $(TORCH_INDEX) $(TORCH) && $(BIN)/python $(PIP_INSTALL) $(TORCH); \
	fi 2>/dev/null; $(BIN)/python -c "import torch" 2>/dev/null || \
		echo "PyTorch is not in .venv, and was not installed: its tests are skipped."
	@touch $@

.venv-floors/installed: pyproject.toml tests/floors.txt .venv/tests-installed
	@echo "Installing the lowest supported versions into .venv-floors, for the tests."
	@$(PYTHON) -m venv --clear .venv-floors
	@$(FLOORS)/python $(PIP_INSTALL) --constraint tests/floors.txt --editable ".[test]"
	@$(FLOORS)/python -c "import matplotlib.font_manager"
	@touch $@
