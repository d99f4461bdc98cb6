# make demo and make test set up all they need in .venv; a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FOR_DEMO := $(VENV)/.installed-for-demo
# Two processes share the tests: programs that start, sleep and die leave half of a core idle. More of them
# would only wait for each other on a small machine. Who has no test left takes half of the other's.
SHARED := -n 2 --dist worksteal --max-worker-restart 0 --durations 10 --durations-min 3
NATIVE := setup.py $(wildcard simpler_ref/*/src/*.[ch] simpler_ref/native_chip/include/*.h)

.PHONY: demo test test-long coverage mutants lint bench bench-compare bench-peers docs release clean
.DEFAULT_GOAL := demo

$(STAMP): EXTRAS := test,docs,examples
$(FOR_DEMO): EXTRAS := examples,remote
$(STAMP) $(FOR_DEMO): pyproject.toml $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	@touch $@ $(FOR_DEMO)

# What only tests and documents need is left out.
demo: $(FOR_DEMO)
	@$(BIN)/python examples/gaussian_process.py $(ARGS)

test: $(STAMP)
	@echo "lint, the tests, and those that drive kernels again with interpreted kernels: about eight minutes on two cores"
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest $(SHARED) tests
	NUMBA_DISABLE_JIT=1 SIMPLER_REF_FAIL_POINTS=1 $(BIN)/python -m pytest $(SHARED) -m "kernels and not long" tests

# All other cases, in named parts: make test-long ARGS=--help lists them.
test-long: $(STAMP)
	@$(BIN)/python -m tests.parts $(ARGS)

# Branches of the sources that tests take while the kernels run as Python, forked workers included.
COVERED ?= tests/conformance tests/extras tests/unit tests/vectors tests/system/test_kernel_cache.py
coverage: $(STAMP)
	@rm -rf .coverage-data && mkdir .coverage-data
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m coverage run -m pytest $(SHARED) --timeout 600 $(COVERED); status=$$?; \
	$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report && exit $$status

mutants: $(STAMP)
	@$(BIN)/python -m pytest -m long --timeout 3600 -s -q tests/mutation/test_mutants.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m pytest benchmarks --benchmark-autosave --benchmark-storage=.benchmarks

bench-compare: $(STAMP)
	$(BIN)/python benchmarks/compare.py .benchmarks $(ARGS)

bench-peers: $(STAMP)
	$(BIN)/python benchmarks/peers $(ARGS)

# sdist and wheel in dist/, built from the last commit and tried in empty environments: tools/release.py
release:
	@$(PYTHON) tools/release.py $(ARGS)

docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf $(VENV) .peers .coverage-data build dist *.egg-info simpler_ref/*/*.so simpler_ref/jit/*.nbc .mypy_cache .ruff_cache .pytest_cache docs/_build
	find . -name __pycache__ -prune -exec rm -rf {} +
