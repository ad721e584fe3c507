# make wheel   a package to install with pip, here or on another machine
# make demo    train the example transformer language model (DATA=folder, SHORT=1)
# make test    build everything, run the tests and checks for each change
# make help    the other targets
#
# Everything that is made lies in .venv, build, dist and runs.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0
TIDY_SECONDS ?= 150

# Of the shells, bash alone replaces the ~ of `make install PREFIX=~/steep`.
paths := PREFIX PYTHON DATA RELEASES WHEEL_PYTHONS
$(foreach name,$(paths),$(if $(filter ~/%,$($(name))),\
  $(eval override $(name) := $(patsubst ~/%,$(HOME)/%,$($(name))))))

bin := .venv/bin
step := scripts/step
# The wheels of cmake and ninja are newer than some distributions' packages.
export PATH := $(CURDIR)/$(bin):$(PATH)
cmake_flags := -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(bin)/python

.PHONY: help setup build runtime test-runtime arm64 test-arm64 arm64-whole test-arm64-whole wasm test-wasm test test-all test-cpp test-py patterns torch-versions op_db wheel sdist install lint format without-ccache sanitize sanitize-thread fuzz fuzz-corpus attack sbom demo operators options bench growth commands docs clean

help: ## list the targets
	@grep -E '^[a-z0-9_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/ready ## .venv with all tools, and the system packages

.venv/ready: requirements-dev.txt scripts/setup
	@scripts/setup "$(PYTHON)"

build: setup ## the C++ core, the program, the Python extension and the tests
	@$(step) build/configure.log "configure" cmake -S . -B build/release $(cmake_flags)
	@$(step) build/build.log "build (the first time takes minutes)" ninja -C build/release -j$(JOBS)
	@scripts/link_package build/release

# What the demo runs, without the tests.
.PHONY: build-program
build-program: setup
	@$(step) build/configure.log "configure" cmake -S . -B build/release $(cmake_flags)
	@$(step) build/build.log "build (the first time takes minutes)" \
	  ninja -C build/release -j$(JOBS) program
	@scripts/link_package build/release

test: test-cpp test-py lint ## the tests and checks for each change; test-all adds the long ones

test-cpp: build ## C++ tests
	@$(step) -v build/test-cpp.log "C++ tests" \
	  ctest --test-dir build/release --output-on-failure -j$(JOBS)

# As many processes as cores: threads that wait must not spin.
test-py test-all test-runtime test-arm64 test-arm64-whole test-wasm patterns: export OMP_WAIT_POLICY := passive
test-py: build ## Python tests
	@$(step) -v build/test-py.log "Python tests" $(bin)/python -m pytest -n $(JOBS) --dist worksteal

test-all: test ## and more of each kind, the zoo at every opset, operators with the CPU's kernels loaded
	@$(step) -v build/test-all.log "Model matrix" $(bin)/python -m pytest -n $(JOBS) --dist worksteal -m matrix
	@$(step) -v build/test-loaded.log "Operators, the CPU's kernels loaded" \
	  env STEEP_HOST_PROVIDER="$(CURDIR)/build/release/tests/providers/plugins/libsteep_cpu.so" \
	  $(bin)/python -m pytest -n $(JOBS) --dist worksteal tests/ops

patterns: build ## 291 patterns of PyTorch code by every front door (15 minutes)
	@$(step) -v build/patterns.log "Patterns" $(bin)/python -m pytest -n $(JOBS) --dist worksteal -m patterns

torch-versions: build ## tests of capture with other releases of PyTorch (6 GB and an hour each): RELEASES="2.14.1 2.15.0 ./ENVIRONMENT"
	@scripts/torch_versions $(RELEASES)

op_db: build ## PyTorch's own operator database, by dtype and with extents that change (hours)
	@$(bin)/python scripts/op_db.py $(if $(ONLY),--only $(ONLY)) $(if $(DTYPES),--dtypes $(DTYPES))

# Another Python of your own, for the wheel of all from 3.12 on: make wheel WHEEL_PYTHONS=python3.12
WHEEL_PYTHONS ?= $(CURDIR)/$(bin)/python
wheel: setup ## dist/steep-*.whl, for Linux machines without a compiler, tried in a new environment
	@JOBS=$(JOBS) scripts/wheel $(WHEEL_PYTHONS)

sdist: setup ## dist/steep-*.tar.gz, the sources that pip builds as it builds a checkout
	@$(step) build/sdist.log "sources" $(bin)/python -c \
	  'from scikit_build_core.build import build_sdist; build_sdist("dist")'
	@ls dist/steep-*.tar.gz

PREFIX ?= /usr/local
install: build ## the program and the library for C and C++, into PREFIX
	@cmake --install build/release --prefix "$(PREFIX)" --strip

lint: build ## formatting, ruff, mypy, clang-tidy
	@$(step) build/clang-format.log "clang-format" scripts/format --dry-run -Werror
	@$(step) build/ruff.log "ruff" bash -c '$(bin)/ruff check && $(bin)/ruff format --check'
	@$(step) build/mypy.log "mypy" $(bin)/mypy
	@$(step) build/clang-tidy.log "clang-tidy (at most $(TIDY_SECONDS) s)" \
	  $(bin)/python scripts/tidy.py --build build/release --jobs $(JOBS) --seconds $(TIDY_SECONDS)

format: setup ## rewrite the sources as clang-format and ruff want them
	@scripts/format -i
	@$(bin)/ruff format
	@$(bin)/ruff check --fix

# Clang builds the instrumented core once, for the tests and for the fuzzers.
.PHONY: build-sanitize
build-sanitize: setup
	@scripts/system_packages clang
	@$(step) build/sanitize-configure.log "configure (sanitizers)" cmake -S . -B build/sanitize \
	  $(cmake_flags) -DCMAKE_CXX_COMPILER=$$(scripts/clang) -DSTEEP_BUILD_PYTHON=OFF \
	  -DSTEEP_BUILD_FUZZ=ON -DSTEEP_SANITIZE=address,undefined
	@$(step) build/sanitize-build.log "build (sanitizers)" ninja -C build/sanitize -j$(JOBS)

without-ccache: setup ## the engine as a machine without ccache builds it: with precompiled headers
	@$(step) build/plain-configure.log "configure (without ccache)" cmake -S . -B build/plain \
	  $(cmake_flags) -DCCACHE=OFF -DSTEEP_BUILD_TESTS=OFF -DSTEEP_BUILD_PYTHON=OFF
	@$(step) build/plain-build.log "build (without ccache)" ninja -C build/plain -j$(JOBS)

sanitize: build-sanitize ## C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(step) -v build/sanitize.log "C++ tests (sanitizers)" \
	  ctest --test-dir build/sanitize --output-on-failure -j$(JOBS)

.PHONY: build-sanitize-thread
build-sanitize-thread: setup
	@scripts/system_packages clang
	@$(step) build/tsan-configure.log "configure (threads)" cmake -S . -B build/tsan \
	  $(cmake_flags) -DCMAKE_CXX_COMPILER=$$(scripts/clang) -DSTEEP_BUILD_PYTHON=OFF \
	  -DSTEEP_SANITIZE=thread
	@$(step) build/tsan-build.log "build (threads)" ninja -C build/tsan -j$(JOBS) steep_tests

sanitize-thread: build-sanitize-thread ## C++ tests with many callers under ThreadSanitizer
	@$(step) -v build/tsan.log "C++ tests (threads)" ctest --test-dir build/tsan --output-on-failure

runtime: setup ## the library that trains from artifacts alone (docs/runtime.md), in build/runtime
	@$(step) build/runtime-configure.log "configure" cmake -S . -B build/runtime -G Ninja -DSTEEP_RUNTIME=ON
	@$(step) build/runtime.log "build" ninja -C build/runtime -j$(JOBS)

test-runtime: build runtime ## a program that trains with it, its size and its memory
	@$(step) -v build/test-runtime.log "Runtime" $(bin)/python -m pytest -m runtime tests/python/program

# The compiler and an emulator are installed; libraries for the other processor go to a folder.
.PHONY: arm64-tools
arm64-tools: setup
	@scripts/system_packages arm64
	@$(step) build/arm64-sysroot.log "libraries for ARM64" scripts/sysroot arm64 build/arm64-sysroot \
	  libc6-dev libgomp1 $$(scripts/system_packages libraries)

arm64: arm64-tools ## the same for processors of ARM, in build/arm64, by a cross-compiler that is installed
	@$(step) build/arm64-configure.log "configure (ARM64)" cmake -S . -B build/arm64 -G Ninja \
	  -DSTEEP_RUNTIME=ON -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake
	@$(step) build/arm64.log "build (ARM64)" ninja -C build/arm64 -j$(JOBS)

test-arm64: build arm64 ## programs that train with it in an emulator, against the whole library here
	@$(step) -v build/test-arm64.log "ARM64" $(bin)/python -m pytest -m arm64 tests/python/program

arm64-whole: arm64-tools ## the program, the libraries and the C++ tests for processors of ARM, in build/arm64-whole
	@$(step) build/arm64-whole-configure.log "configure (ARM64, whole)" cmake -S . -B build/arm64-whole \
	  $(cmake_flags) -DSTEEP_BUILD_PYTHON=OFF -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake
	@$(step) build/arm64-whole.log "build (ARM64, whole)" ninja -C build/arm64-whole -j$(JOBS)

# GTEST_FILTER='MatMul.*' for some of the C++ tests.
test-arm64-whole: build arm64-whole ## C++ tests in an emulator; digits, against the program here
	@$(step) -v build/test-arm64-whole.log "ARM64, whole" \
	  $(bin)/python -m pytest -m arm64_whole tests/python/program
	@$(step) -v build/test-arm64-cpp.log "C++ tests (ARM64)" \
	  ctest --test-dir build/arm64-whole --output-on-failure -j$(JOBS)

wasm: setup ## the same runtime for browsers and node, in build/wasm, by emscripten, which must be there
	@scripts/wasm

test-wasm: build wasm ## programs that train with it in node, against the whole library here
	@$(step) -v build/test-wasm.log "WebAssembly" $(bin)/python -m pytest -m wasm tests/python/program

fuzz: build build-sanitize ## FUZZ_SECONDS (60) of fuzzing for each target; FUZZ_SEED=N repeats a run
	@scripts/fuzz build/sanitize $(FUZZ_SECONDS) $(JOBS) $(FUZZ_SEED)

fuzz-corpus: ## add to tests/fuzz/corpus what earlier fuzzing found
	@scripts/fuzz --merge build/sanitize

attack: build ## hours of attacks, with a table of what they found: ATTACKS="saves …" for some of them
	@scripts/attack $(ATTACKS)

sbom: setup ## build/sbom.cdx.json: what the binaries link and contain (CycloneDX)
	@mkdir -p build && $(bin)/python scripts/sbom.py build/sbom.cdx.json

.PHONY: demo-says
demo-says:
	@echo "This builds Steep (12 to 25 minutes on two cores the first time, later only what changed)"
	@echo "and trains for $(if $(SHORT),a few steps,two minutes at most; SHORT=1 trains for a few steps)."

demo: demo-says build-program ## train the transformer language model: DATA=folder, SHORT=1 for a few steps
	@$(bin)/python examples/transformer_lm/train.py --out runs/transformer_lm \
	  $(if $(DATA),--data "$(DATA)") $(if $(SHORT),--short)

operators: build ## write docs/operators.md: what each of ONNX's operators can do
	@$(step) build/operators.log "docs/operators.md" $(bin)/python scripts/operators.py

options: build ## write docs/options.md: the options of training
	@$(bin)/python scripts/options.py

commands: build ## write docs/commands.md: what the program's --help prints
	@$(bin)/python scripts/commands.py

build/docs-venv/ready: docs/requirements.txt
	@rm -rf build/docs-venv
	@$(step) build/docs-venv.log "tools for the site" bash -c '"$(PYTHON)" -m venv build/docs-venv && \
	  build/docs-venv/bin/pip install -r docs/requirements.txt'
	@touch $@

docs: build build/docs-venv/ready ## the documents as a site in build/docs; a dead link fails it
	@$(step) build/docs.log "build/docs/index.html" build/docs-venv/bin/mkdocs build --strict

# Each is a script in bench/. largest.py needs root, for a limit that the system enforces.
BENCH ?= run hugging_face ddp fused_adam state_precision budgets calls breadth labels ragged long_rows \
  hidden_blocks neighbour scaling lora largest
bench: cmake_flags += -DSTEEP_BUILD_BENCH=ON
bench: build ## Steep against PyTorch (4 hours), or a part: BENCH="run breadth"; run adds to docs/benchmarks_log.md
	@failed=; for name in $(BENCH); do echo "bench/$$name.py"; \
	  words=; if [ $$name = run ]; then words="--log docs/benchmarks_log.md"; fi; \
	  $(bin)/python bench/$$name.py $$words || failed="$$failed $$name"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

growth: cmake_flags += -DSTEEP_BUILD_BENCH=ON
growth: build ## time and memory against sequence length, batch, layers, vocabulary, nodes (15 minutes)
	@$(bin)/python bench/growth.py

clean: ## remove what was built; .venv and runs stay
	@rm -rf build python/steep/_steep.*
