# Every target installs what it needs in .venv. PYTHON chooses the interpreter (3.11 to 3.14).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A new package, as well as native code, needs a new installation.
NATIVE := CMakeLists.txt pyproject.toml kernels/limits.cuh $(wildcard kernels/*.cpp kernels/cpu/* dpmix/*/__init__.py dpmix/*/*/__init__.py)
CPP := $(wildcard benchmarks/*.cu kernels/*.cu kernels/*.cuh kernels/*pp kernels/cpu/*pp tests/native/*.cpp tests/cuda_on_cpu/*.cpp tests/cuda_on_cpu/*.h)
# The packages as the wheel has them: mypy then follows dpmix.cli and dpmix.kernels, its stubs included. With a user's script.
TYPED := build/typed
EMULATOR := build/cuda_on_cpu/libcuda.so.1
FUZZ_SECONDS ?= 1200
COG := $(BIN)/cog -I benchmarks
PAGES := README.md paper.md docs/benchmarks/*.md docs/how-to/signalling.md

.PHONY: help demo test test-all test-gpu faults fuzz native sbc lint release-check warnings docs pictures links bench guard bench-cpu bench-drift bench-gpu gpu-kit gpu-rehearsal clean

help:
	@echo "make demo       simulate a cytometry sample, find its populations, write a report (in demo/gated)"
	@echo "make test       the tests, except those marked slow; those of the CUDA engine on emulated devices"
	@echo "                 PLATFORM=macos or windows: without what only Linux has; TESTS: some files only; SLOW=1"
	@echo "make test-all   make test with the slow tests, samplers and kills at length, the browser; make native"
	@echo "make test-gpu   the tests of the CUDA engine on this machine's GPUs"
	@echo "make lint       ruff, mypy, clang-format, wrong words, and tables in pages that differ from the results"
	@echo "make docs       the documentation as a site in build/docs; a warning or broken link is an error"
	@echo "make pictures   the pictures of the page of dpmix app; needs Chromium and chromedriver"
	@echo "make fuzz       fuzz FCS files, configs, tables, workspaces and run files, FUZZ_SECONDS each (1200)"
	@echo "make native     CPU engine and CUDA kernels under sanitizers, for other processors, systems and GPUs"
	@echo "make faults     60 kills, power cuts, full disks, too little memory: the table of docs/explanation/validation.md"
	@echo "make sbc        simulation-based calibration of the sampler, at length (10 minutes on an idle core)"
	@echo "make release-check  what a release needs: build, metadata, versions, recipe, workflows, paper, what is to be filled in"
	@echo "make links      the pages' links to other sites; needs a network"
	@echo "make warnings   compile the native code with g++ and clang++; a warning is an error"
	@echo "make bench      the tables of docs/benchmarks, half an hour on two cores; QUICK=1: a check of the scripts"
	@echo "make guard      some times next to the committed ones, in a minute; fails where one has tripled"
	@echo "make bench-cpu  speed of the CPU engine, next to sgemm and scikit-learn (12 minutes)"
	@echo "make bench-drift  speed of the Gaussian processes of dpmix drift, and of recordings (15 minutes)"
	@echo "make bench-gpu  tests, limits, kernels, sweeps of the CUDA engine on this machine's GPU"
	@echo "make gpu-kit    a folder that does this on a GPU machine without a network; KIT_PYTHON: a Python 3.12"
	@echo "make gpu-rehearsal  gpu-kit for this Python, and its run on an emulated GPU; KIT_DPMIX: a wheel of dpmix"
	@echo "make clean      remove everything that the others made"

$(VENV)/installed: $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The emulated CUDA devices, and PyCUDA built from source: about two minutes the first time.
$(EMULATOR): $(VENV)/installed $(wildcard tests/cuda_on_cpu/*.*)
	$(BIN)/python tests/cuda_on_cpu/build.py

demo: $(VENV)/installed
	mkdir -p demo
	$(BIN)/dpmix simulate demo/sample.fcs --overwrite
	$(BIN)/dpmix run demo/sample.fcs --output demo --overwrite

# One process per test file, at most four at a time: one more than cores, since some tests wait for other processes.
# Files start in the order of tests/conftest.py.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, 1 + (os.cpu_count() or 1)))")
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# PLATFORM=macos or windows: Python behaves as there, where dpmix could notice (tests/other_system). SLOW=1: the slow
# tests, too, in the same processes.
test: $(EMULATOR)
	$(if $(PLATFORM),DPMIX_TEST_PLATFORM=$(PLATFORM) PYTHONPATH=tests/other_system) $(PYTEST) -m "not native $(if $(SLOW),,and not slow)" $(TESTS)

test-all: SLOW := 1
test-all: test native

# On a GPU machine, PyCUDA is built against the machine's toolkit and driver.
$(VENV)/pycuda: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[cuda]'
	touch $@

test-gpu: $(VENV)/pycuda
	DPMIX_TEST_GPU=1 $(BIN)/python -m pytest tests/engines/test_cuda_*.py tests/drift/test_cuda_*.py

$(VENV)/atheris: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	touch $@

fuzz: $(VENV)/atheris
	for target in fcs config text workspace run_file; do \
	    mkdir -p build/fuzz/$$target && $(BIN)/python fuzz/fuzz.py $$target build/fuzz/$$target \
	        -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/$$target- || exit 1; \
	done

# What depends on native code alone. Commit tests/native/passed.txt: CI then leaves this out until that code changes.
native: $(EMULATOR)
	$(BIN)/python tests/native/sanitized.py
	$(BIN)/python tests/native/cross.py
	$(PYTEST) --dist load -m native tests/engines
	$(BIN)/python tests/native/passed.py record

# Some minutes.
faults: $(VENV)/installed
	$(BIN)/python benchmarks/faults.py --kills 50

sbc: $(VENV)/installed
	$(BIN)/python benchmarks/validation.py sbc

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(TYPED) && mkdir -p $(TYPED) && cp -rL dpmix cli kernels tests/cuda_on_cpu $(TYPED)
	rm -rf $(TYPED)/dpmix/cli $(TYPED)/dpmix/kernels && mv $(TYPED)/cli $(TYPED)/kernels $(TYPED)/dpmix
	cp .ci/script.py $(TYPED)
	cd $(TYPED) && $(abspath $(BIN))/python -m mypy --cache-dir $(CURDIR)/.mypy_cache --config-file $(CURDIR)/pyproject.toml dpmix cuda_on_cpu script.py
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(COG) --check $(PAGES)
	$(BIN)/python benchmarks/gpu_cards.py --check
	$(BIN)/python docs/words.py

$(VENV)/release: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[release]'
	touch $@

release-check: $(VENV)/release
	rm -rf dist && $(BIN)/python -m build >build/release.log 2>&1 || { cat build/release.log; exit 1; }
	$(BIN)/python .ci/release_check.py

# A target of its own: a warning of a newer compiler must not stop a user's installation.
warnings: $(VENV)/installed
	for compiler in g++ clang++; do \
	    CXX=$$compiler $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps \
	        --config-settings cmake.define.CMAKE_CXX_FLAGS=-Werror --wheel-dir build/$$compiler . || exit 1; \
	done

docs: $(VENV)/installed
	$(BIN)/python docs/figures.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet -d build/doctrees docs build/docs

# Committed, like those of benchmarks: a change of the page needs them again.
pictures: $(VENV)/installed
	$(BIN)/python docs/page_pictures.py

links: $(VENV)/installed
	$(BIN)/python -m sphinx -b linkcheck --quiet -d build/doctrees docs build/links

# Other tools, for benchmarks/peers.py.
$(VENV)/peers: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[peers]'
	touch $@

# cog then updates tables and numbers in pages. Results of quick runs are in build/benchmarks.
bench: $(VENV)/peers
	for script in paper scaling peers end_to_end short_starts; do \
	    $(BIN)/python benchmarks/$$script.py $(if $(QUICK),--quick) || exit 1; \
	done
	$(COG) -r $(PAGES)

guard: $(VENV)/installed
	$(BIN)/python benchmarks/guard.py

bench-cpu: $(VENV)/installed
	$(BIN)/python benchmarks/sampler.py
	$(BIN)/python benchmarks/cpu.py

bench-drift: $(VENV)/installed
	$(BIN)/python benchmarks/drift_speed.py $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/drift_local_speed.py $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/drift_blocks.py $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/drift_recording.py $(if $(QUICK),--quick)
	$(COG) -r $(PAGES)

bench-gpu: $(VENV)/pycuda
	$(BIN)/python benchmarks/gpu.py

KIT := $(BIN)/python benchmarks/gpu_kit.py $(if $(KIT_PYTHON),--python $(KIT_PYTHON)) $(if $(KIT_DPMIX),--dpmix $(KIT_DPMIX))
gpu-kit: $(EMULATOR)
	$(KIT)

gpu-rehearsal: $(EMULATOR)
	$(KIT) --rehearse --output build/gpu-rehearsal

clean:
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
