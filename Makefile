# Every target works from a clean clone: it makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format bench clean

demo: .venv/installed
	$(BIN)/mixdim demo --out demo

test: .venv/installed
	$(BIN)/python -m pytest

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/installed
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/layer.py

# torch comes first: asked for by another package, pip may take a build with gigabytes of CUDA.
.venv/installed: pyproject.toml constraints.txt hatch_build.py $(wildcard src/mixdim/kernels/*.h src/mixdim/kernels/*.cpp)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch numpy hatchling editables
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[all,dev]'
	touch $@

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
