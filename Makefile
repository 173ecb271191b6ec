# The commands of the project. Each installs what it needs into .venv, and builds only what changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
CPP := $(shell find csrc tests/cpp torch_ops/include examples -name '*.cpp' -o -name '*.h')
SOURCES := $(filter csrc/% torch_ops/include/%,$(CPP)) CMakeLists.txt setup.py pyproject.toml

.PHONY: run test build bench bench-models recipes call-overhead cpp docs lint kernel-tests test-avx512 clean

run: build            ## train an autoencoder on photographs, with convtbw and with torch alone
	$(BIN)/python -m torch_ops.demo $(ARGS)

test: build           ## the test suite; ARGS="-k name" chooses
	$(BIN)/pytest $(ARGS)

bench: build          ## against torch and oneDNN; ARGS="--quick" for a first look, --help
	$(BIN)/python -m torch_ops.bench $(ARGS)

bench-models: build   ## a training step of networks from MONAI, with and without enable()
	$(BIN)/python -m torch_ops.bench_models $(ARGS)

# The whole programs take minutes each; ARGS="segmentation" chooses one.
RECIPES := $(filter-out recipe,$(basename $(notdir $(wildcard examples/*.py))))
recipes: build        ## train the recipes of examples/ with and without enable()
	for name in $(or $(ARGS),$(RECIPES)); do $(BIN)/python examples/$$name.py || exit; done

# Times the installed package; what is built here is the no-op and the clock in C++.
call-overhead: build  ## what a call costs beside the arithmetic, against a no-op
	$(BIN)/cmake -S . -B build/call-overhead -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_BUILD_TYPE=Release -DCONVTBW_CALL_OVERHEAD=ON -DCONVTBW_ONEDNN=OFF \
	  -DCMAKE_PREFIX_PATH="$$($(BIN)/python -c 'import torch; print(torch.utils.cmake_prefix_path)')"
	$(BIN)/cmake --build build/call-overhead --target call_overhead
	$(BIN)/python tests/call_overhead.py build/call-overhead/libcall_overhead.so

# The commands of docs/cpp.md.
cpp: build            ## build and run the C++ programs of examples/libtorch
	$(BIN)/cmake -S examples/libtorch -B build/libtorch -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_PREFIX_PATH="$$($(BIN)/python -c 'import torch_ops; print(torch_ops.cmake_prefix_path)')"
	$(BIN)/cmake --build build/libtorch
	build/libtorch/train_generator
	$(BIN)/python examples/libtorch/export_package.py build/libtorch
	build/libtorch/run_package build/libtorch

# Afresh every time: a page does not know which docstrings it shows.
docs: build           ## the documentation as HTML, in build/docs; a broken link is an error
	$(BIN)/sphinx-build -c docs --fail-on-warning --keep-going --fresh-env --quiet . build/docs

build: $(VENV)/.built ## compile, and install into .venv as an editable package

# Kernels without torch or Python, under AddressSanitizer and UndefinedBehaviorSanitizer.
kernel-tests: $(VENV)/.tools
	$(BIN)/cmake -S . -B build/kernel-tests -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCONVTBW_WERROR=ON -DCONVTBW_KERNEL_TESTS=ON \
	  -DCONVTBW_SANITIZE=ON -DONEDNN_ROOT=$(abspath $(VENV))
	$(BIN)/cmake --build build/kernel-tests
	$(BIN)/ctest --test-dir build/kernel-tests --output-on-failure

# The AVX-512 kernels, on a CPU that Bochs emulates if this one has no AVX-512, or if EMULATE=1.
test-avx512: build/avx512/kernel_tests
	tests/avx512.sh $< $(or $(ARGS),--target avx512 --quick)

# Static, for the emulated machine has no shared libraries.
build/avx512/kernel_tests: $(VENV)/.tools $(CPP) CMakeLists.txt
	$(BIN)/cmake -S . -B $(@D) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_BUILD_TYPE=Release -DCONVTBW_WERROR=ON -DCONVTBW_KERNEL_TESTS=ON \
	  -DCONVTBW_STATIC=ON -DCONVTBW_ONEDNN=OFF
	$(BIN)/cmake --build $(@D)
	touch $@

lint: build           ## formatting and lint, as CI runs them
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)

clean:                ## remove what was built; .venv keeps its packages
	rm -rf build dist *.egg-info torch_ops/*.so $(VENV)/.built

# What pyproject.toml asks for building, here too: the editable build is not isolated.
$(VENV)/.tools: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))\
	['build-system']['requires'], sep='\n')" > $(VENV)/build-requirements.txt
	$(BIN)/python -m pip install -qq --requirement $(VENV)/build-requirements.txt
	touch $@

$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	$(BIN)/python -m pip install -qq --no-build-isolation --editable '.[demo,test,bench,examples,lint,docs]'
	touch $@
