# Every target sets up what it needs in .venv; PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(wildcard kernels/cpu/*)
CPP := $(wildcard kernels/*.cu kernels/*.cuh kernels/cpu/*pp tests/native/*.cpp tests/cuda_on_cpu/*.cpp tests/cuda_on_cpu/*.h)
EMULATOR := build/cuda_on_cpu/libcuda.so.1
FUZZ_SECONDS ?= 1200
COG := $(BIN)/cog -r -I benchmarks
PAGES := README.md docs/tutorial.md docs/benchmarks/*.md
EDITED := README.md docs/index.md docs/tutorial.md $(addprefix docs/how-to/,install.md large-data.md \
    priors-and-truncation.md read-draws.md compare-samples.md cluster.md)

.PHONY: help demo test test-gpu faults fuzz sanitize sbc lint warnings docs links bench guard bench-cpu bench-gpu clean

help:
	@echo "make demo       a simulated cytometry sample, dpmix mcmc on it, a summary and a figure (in demo/)"
	@echo "make test       all tests, those of the CUDA engine on devices emulated by the processor"
	@echo "make test-gpu   the tests of the CUDA engine on this machine's GPUs"
	@echo "make fuzz       FCS files, configs and run files by a fuzzer, FUZZ_SECONDS each (1200)"
	@echo "make sanitize   the tests of the CPU engine under address, undefined behaviour and thread sanitizers"
	@echo "make faults     60 kills, power cuts, full disks, too little memory: the table of docs/explanation/validation.md"
	@echo "make sbc        simulation-based calibration of the sampler, at length (some 10 minutes on an idle core)"
	@echo "make lint       ruff, mypy, clang-format, tables in pages match the results, words that are always wrong"
	@echo "make docs       these pages as a site in build/docs, any warning or broken link an error"
	@echo "make links      the pages' links to other sites, on a machine with a network; CI has none"
	@echo "make warnings   the native code by g++ and clang++, any warning an error"
	@echo "make bench      the tables of docs/benchmarks, half an hour on two cores; QUICK=1: to see that it works"
	@echo "make guard      some times of this machine and version beside those committed, in a minute"
	@echo "make bench-cpu  the CPU engine's speed beside this machine's sgemm and scikit-learn (some 12 minutes)"
	@echo "make bench-gpu  the CUDA engine's speed beside its floor, and ways to draw labels (some minutes)"
	@echo "make clean      remove what the others made"

$(VENV)/installed: $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The emulated CUDA devices, and PyCUDA built from source: some two minutes the first time.
$(EMULATOR): $(VENV)/installed $(wildcard tests/cuda_on_cpu/*.*)
	$(BIN)/python tests/cuda_on_cpu/build.py

demo: $(VENV)/installed
	mkdir -p demo
	$(BIN)/dpmix simulate demo/sample.fcs --overwrite
	$(BIN)/dpmix mcmc configs/demo.yaml --output demo/run.h5 --overwrite
	$(BIN)/python data/figure.py demo/run.h5 demo/figure.png

# Files of tests side by side, on up to four cores.
test: $(EMULATOR)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# On a GPU machine PyCUDA is built against its own toolkit and driver.
$(VENV)/pycuda: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[cuda]'
	touch $@

test-gpu: $(VENV)/pycuda
	DPMIX_TEST_GPU=1 $(BIN)/python -m pytest tests/engines/test_cuda_*.py

$(VENV)/atheris: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	touch $@

fuzz: $(VENV)/atheris
	for target in fcs config run_file; do \
	    mkdir -p build/fuzz/$$target && $(BIN)/python fuzz/fuzz.py $$target build/fuzz/$$target \
	        -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/$$target- || exit 1; \
	done

sanitize: $(VENV)/installed
	$(BIN)/python tests/native/sanitized.py

# Some minutes.
faults: $(VENV)/installed
	$(BIN)/python benchmarks/faults.py --kills 50

sbc: $(VENV)/installed
	$(BIN)/python benchmarks/validation.py sbc

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy dpmix cli kernels tests/cuda_on_cpu
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(COG) --check $(PAGES)
	$(BIN)/python docs/words.py $(EDITED)

# Built apart, so that a warning of a newer compiler stops this target and no user's installation.
warnings: $(VENV)/installed
	for compiler in g++ clang++; do \
	    CXX=$$compiler $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps \
	        --config-settings cmake.define.CMAKE_CXX_FLAGS=-Werror --wheel-dir build/$$compiler . || exit 1; \
	done

docs: $(VENV)/installed
	$(BIN)/python docs/figures.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet -d build/doctrees docs build/docs

links: $(VENV)/installed
	$(BIN)/python -m sphinx -b linkcheck --quiet -d build/doctrees docs build/links

# Other tools, for benchmarks/peers.py.
$(VENV)/peers: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[peers]'
	touch $@

# Tables and numbers in pages are then made anew from the results; those of quick runs are in build/benchmarks.
bench: $(VENV)/peers
	for script in paper scaling peers end_to_end; do \
	    $(BIN)/python benchmarks/$$script.py $(if $(QUICK),--quick) || exit 1; \
	done
	$(COG) $(PAGES)

guard: $(VENV)/installed
	$(BIN)/python benchmarks/guard.py

bench-cpu: $(VENV)/installed
	$(BIN)/python benchmarks/sampler.py
	$(BIN)/python benchmarks/reordering.py
	$(BIN)/python benchmarks/cpu.py

bench-gpu: $(VENV)/pycuda
	$(BIN)/python benchmarks/cuda.py
	$(BIN)/python benchmarks/cuda_variants.py

clean:
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
