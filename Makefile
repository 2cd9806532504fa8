# Every target works from a clean clone: it makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check distributed format bench bench-data stress sanitize clean

demo: .venv/installed
	$(BIN)/mixdim demo --out demo

# Fails also if pytest finds no tests (its code 5). Once -q: with two, pytest does not print its last line.
# Two processes: each takes half of the tests in their order, and what the other has left when it is done.
test: .venv/installed distributed
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# make bench FLAGS=--quick takes less than a minute.
bench: .venv/installed
	for script in planning layer dlrm mf ncf; do $(BIN)/python benchmarks/$$script.py $(FLAGS) || exit 1; done

bench-data: .venv/installed
	$(BIN)/python benchmarks/batches.py
	$(BIN)/python benchmarks/prepare.py

# Kills by the hundred, random cases by the thousand: FLAGS='--minutes 3 --cases 500' takes a few minutes.
stress: .venv/installed
	$(BIN)/python tools/stress.py $(FLAGS)

# The kernels' tests with kernels that check every access (AddressSanitizer and UBSan; needs g++).
sanitize: .venv/installed
	$(BIN)/python hatch_build.py build/sanitize -O1 -g -fsanitize=address,undefined
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	MIXDIM_KERNELS=$(CURDIR)/build/sanitize/_mixdim_avx2.so \
	$(BIN)/python -m pytest tests/kernels --ignore=tests/kernels/test_library.py tests/layer/test_interaction.py tests/layer/test_scores.py tests/layer/test_paths.py \
	tests/models/test_layers.py tests/storages tests/optim

# torch comes first: asked for by another package, pip may take a build with gigabytes of CUDA.
.venv/installed: pyproject.toml constraints.txt hatch_build.py $(wildcard src/mixdim/kernels/*.h src/mixdim/kernels/*.cpp)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch numpy hatchling editables
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[all,dev]'
	touch $@

# TorchRec, for `mixdim train --distributed`. Asked for with its dependencies, it brings CUDA.
distributed: .venv/distributed

.venv/distributed: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt tensordict torchmetrics tqdm pyre-extensions
	touch $@

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
