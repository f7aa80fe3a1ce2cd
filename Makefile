# The verbs of this repository; `make` alone lists them.
# Everything Python lives in the active virtual environment, or in .venv.

SHELL       := bash
, := ,
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV   := $(or $(VIRTUAL_ENV),.venv)
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --retries 10 --timeout 60
TEXT   ?= Hello, this is Kazeia speaking.
ARGS   ?=

# What was taken out of the environment since is made again.
$(foreach made,native:llama_cpp build:kazeia_engine,$(if \
  $(wildcard $(VENV)/lib/python3*/site-packages/$(word 2,$(subst :, ,$(made)))/__init__.py),,\
  $(shell rm -f $(VENV)/.kazeia-$(word 1,$(subst :, ,$(made))))))

LLAMA  := $(shell sed -nE 's/^ +"(llama-cpp-python==[0-9.]+)",/\1/p' pyproject.toml)

SOURCES := $(shell find engine_native server clients \( -name '*.py' -o -name '*.cpp' -o -name '*.cc' \
             -o -name '*.h' -o -name '*.html' -o -name '*.js' -o -name '*.css' -o -name '*.svg' -o -name CMakeLists.txt \
             -o -name '*.cmake' \) -not -path 'engine_native/tests/*')
CXX_ALL := $(shell find engine_native clients \( -name '*.cpp' -o -name '*.cc' -o -name '*.h' -o -name '*.c' \))

# Lines of a compilation shortened to "[12/193] file.cpp", the rest kept in a log.
define with_progress
@mkdir -p build; echo "$(1)"
@{ $(2) 2>&1 | tee build/install.log | sed -unE \
    -e 's#^ *(\[[0-9]+/[0-9]+\]).*/([^/ ]+\.(c|cc|cpp))( .*)?$$#\1 \2#p;t' \
    -e 's#^ *(\[[0-9]+/[0-9]+\] .{0,90}).*#\1#p'; } \
  || { tail -n 60 build/install.log; exit 1; }
endef

.PHONY: help install build run serve test test-py test-clients test-cpp vulkan asan tsan cross-arm lint types fmt bench figures golden check wheel clean

help: ## list the verbs
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: build ## speak a sentence into hello.wav: the built-in voice, or KZTTS_MODEL
	$(BIN)/kazeia say "$(TEXT)" -o hello.wav --stats $(ARGS)

serve: build ## start the HTTP and WebSocket server
	$(BIN)/kazeia serve $(ARGS)

install: $(VENV)/.kazeia-dev build ## everything for development, into the active venv or .venv

build: $(VENV)/.kazeia-build ## compile and install what changed

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The one long compilation: llama.cpp and ggml, once an environment.
$(VENV)/.kazeia-native: pyproject.toml | $(BIN)/python
	@$(PIP) install -q -U 'pip>=25.1'
	$(call with_progress,Compiling llama.cpp and ggml: once; about ten minutes on two cores,\
	  $(PIP) install -v 'scikit-build-core>=0.11$(,)<2' cmake ninja $(LLAMA))
	@touch $@

# Build isolation would compile llama.cpp a second time, for the build alone.
# The C++ tests go on from the same objects, and take warnings for errors: so does who develops.
WERROR = $(if $(shell ls $(VENV)/.kazeia-dev 2>/dev/null),-C cmake.define.KAZEIA_WERROR=ON)

$(VENV)/.kazeia-build: $(VENV)/.kazeia-native $(SOURCES)
	$(call with_progress,Compiling and installing Kazeia,$(PIP) install -v --no-build-isolation $(WERROR) .)
	@touch $@

$(VENV)/.kazeia-dev: pyproject.toml | $(BIN)/python
	@$(PIP) install -q -U 'pip>=25.1'
	$(PIP) install -q --group dev
	@touch $@

test: test-cpp test-py ## the C++ and the Python tests

test-py: install ## the Python tests, two at a time; ARGS="-k name" passes options on
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Programs with environments of their own, in build/clients.  Their tests need Python 3.11 or 3.12,
# npm with Node 20, a Chromium, and for Home Assistant a Python 3.13 of any minor version: it asks
# for 3.13.2, and runs on 3.13.0.
PYTHON313   ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.13*/bin/python3.13) python3.13)
OPEN_WEBUI  := open-webui==0.12.4
SILLYTAVERN := sillytavern@1.19.0
PROGRAMS    := $(addprefix build/clients/,home-assistant open-webui sillytavern)

build/clients/home-assistant: pyproject.toml
	rm -rf $@ && $(PYTHON313) -m venv $@
	$@/bin/python -m pip install -q -U 'pip>=25.1'
	$@/bin/python -m pip install -q --no-deps --ignore-requires-python \
	  "$$(sed -nE 's/^ +"(homeassistant==[0-9.]+)",/\1/p' pyproject.toml)"
	$@/bin/python -m pip install -q --ignore-requires-python --group home-assistant \
	  -c $@/lib/python3.13/site-packages/homeassistant/package_constraints.txt

build/clients/open-webui: pyproject.toml
	rm -rf $@ && $(PYTHON) -m venv $@
	$@/bin/python -m pip install -q -U 'pip>=25.1'
	$@/bin/python -m pip install -q --no-deps $(OPEN_WEBUI)
	$@/bin/python -m pip install -q --group open-webui 2>&1 \
	  | sed '/^open-webui .* requires/d; /dependency resolver/d' # most are left out on purpose

build/clients/sillytavern: pyproject.toml
	rm -rf $@ && mkdir -p $@
	npm install --prefix $@ --no-audit --no-fund --ignore-scripts --loglevel error $(SILLYTAVERN)

test-clients: install $(PROGRAMS) ## the programs of clients/integrations with the settings of their pages
	$(PIP) install -q --group clients
	$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

# $(1): build folder, $(2): CMake options
define ctest
$(BIN)/cmake -S engine_native -B $(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DCMAKE_PREFIX_PATH="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" \
  -DKAZEIA_BUILD_TESTS=ON -DKAZEIA_WERROR=ON $(2)
$(BIN)/cmake --build $(1)
$(BIN)/ctest --test-dir $(1) --output-on-failure --no-tests=error -j 2
endef

test-cpp: $(VENV)/.kazeia-native ## the C++ tests
	$(call ctest,build/release,-DCMAKE_BUILD_TYPE=Release)

# An environment of its own, because ggml's devices are chosen when llama-cpp-python is compiled.
build/vulkan/.native: pyproject.toml tests/vulkan/headers.sh
	$(PYTHON) -m venv build/vulkan
	build/vulkan/bin/pip install -q -U 'pip>=25.1' 'scikit-build-core>=0.11$(,)<2' cmake ninja
	headers=$$(tests/vulkan/headers.sh build/vulkan/headers); \
	CMAKE_ARGS="-DGGML_VULKAN=ON -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DVulkan_INCLUDE_DIR=$$headers/include \
	  -DSPIRV-Headers_DIR=$$headers/share/cmake/SPIRV-Headers -DCMAKE_CXX_FLAGS=-I$$headers/include" \
	build/vulkan/bin/pip install -v --no-binary llama-cpp-python $(LLAMA) > build/vulkan.log 2>&1 \
	  || { tail -n 60 build/vulkan.log; exit 1; }
	build/vulkan/bin/pip install -q --group test
	@touch $@

vulkan: build/vulkan/.native ## llama.cpp with Vulkan in build/vulkan, and the tests that need it: an hour
	build/vulkan/bin/pip install -q --no-build-isolation -C build-dir=build/vulkan/kazeia .
	export GGML_VK_VISIBLE_DEVICES=$${GGML_VK_VISIBLE_DEVICES-0}; \
	GGML_VK_DISABLE_F16=1 build/vulkan/bin/python -m pytest -m vulkan tests/engine/test_vulkan.py $(ARGS) \
	&& build/vulkan/bin/python -m pytest -m vulkan tests/engine/test_vulkan.py $(ARGS)

asan: $(VENV)/.kazeia-native ## the C++ tests under the address and undefined-behaviour sanitizers
	$(call ctest,build/asan,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DKAZEIA_SANITIZE=address$(,)undefined$(,)float-cast-overflow)

tsan: $(VENV)/.kazeia-native ## the C++ tests under the thread sanitizer
	$(call ctest,build/tsan,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DKAZEIA_SANITIZE=thread)

# Static, so that programs find it under qemu; only what every ARMv8.0 processor has, as in the engine.
build/arm/ggml/lib/libggml.a: pyproject.toml | $(VENV)/.kazeia-native
	rm -rf build/arm/sdist build/arm/llama
	mkdir -p build/arm/llama
	$(PIP) download -q --no-deps --no-build-isolation --no-binary llama-cpp-python -d build/arm/sdist $(LLAMA)
	tar -xzf build/arm/sdist/*.tar.gz --strip-components=1 -C build/arm/llama
	$(BIN)/cmake -S engine_native/cmake/ggml -B build/arm/ggml-build $(ARM_BUILD) \
	  -DGGML_SOURCE=$(abspath build/arm/llama/vendor/llama.cpp/ggml) -DGGML_NATIVE=OFF -DGGML_CCACHE=OFF \
	  -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX=$(abspath build/arm/ggml)
	$(BIN)/cmake --build build/arm/ggml-build --target install
	@touch $@

ARM_BUILD = -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_TOOLCHAIN_FILE=$(abspath engine_native/cmake/aarch64-linux-gnu.cmake)

cross-arm: build/arm/ggml/lib/libggml.a ## the C++ tests for 64-bit ARM, under qemu as processors old and new
	$(BIN)/cmake -S engine_native -B build/arm/engine $(ARM_BUILD) -DKAZEIA_BUILD_TESTS=ON -DKAZEIA_WERROR=ON \
	  -DCMAKE_PREFIX_PATH=$(abspath build/arm/ggml)
	$(BIN)/cmake --build build/arm/engine
	$(BIN)/ctest --test-dir build/arm/engine --output-on-failure --no-tests=error -j 2

lint: install ## ruff, clang-format and the import contracts
	$(BIN)/ruff check --no-cache . # a kept cache forgets that a new file can change where an import belongs
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CXX_ALL)
	$(BIN)/lint-imports

types: install ## mypy --strict
	$(BIN)/mypy

fmt: $(VENV)/.kazeia-dev ## format Python and C++ in place
	$(BIN)/ruff check --fix --exit-zero -q .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_ALL)

bench: build ## speed of random 0.6B weights in q8_0, into build/bench.json
	[ -d build/synth-0.6b-q8_0 ] || $(BIN)/kazeia synth --size 0.6b --type q8_0 -o build/synth-0.6b-q8_0
	$(BIN)/kazeia bench --model build/synth-0.6b-q8_0 --frames 64 --json build/bench.json $(ARGS)

figures: build ## draw the pictures and fill the tables of the documents from their figures again
	$(BIN)/python engine_native/figures/latency.py
	$(BIN)/python engine_native/figures/boards.py

golden: ## regenerate tests/golden with the official package, in an environment of its own
	$(PYTHON) -m venv build/golden
	build/golden/bin/pip install -q torch==2.13.0 transformers==4.57.3 accelerate==1.12.0 einops \
	  librosa soundfile onnxruntime sox sentencepiece safetensors gguf
	build/golden/bin/pip install -q --no-deps qwen-tts==0.1.1
	build/golden/bin/pip download -q --no-deps --no-binary :all: -d build/golden/src $(LLAMA)
	tar -xzf build/golden/src/*.tar.gz --strip-components=1 -C build/golden/src
	build/golden/bin/python tests/golden/make_golden.py --llama-cpp build/golden/src/vendor/llama.cpp

# Kazeia is bound to the ggml of this llama-cpp-python, hence a wheel of both. `auditwheel` names the
# oldest C library that will do; ggml's libraries stay where llama-cpp-python has them.
wheel: install ## wheels for machines without a compiler, into dist/: Kazeia and its llama-cpp-python
	rm -rf build/wheel && mkdir -p dist
	$(PIP) wheel -q --no-deps -w build/wheel $(LLAMA)
	$(PIP) wheel -q --no-build-isolation --no-deps -w build/wheel/raw .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --exclude 'libggml*' -w build/wheel build/wheel/raw/kazeia-*.whl
	rm -f dist/kazeia-*.whl dist/llama_cpp_python-*.whl # of another version: dist/*.whl is installed
	mv build/wheel/*.whl dist/

check: lint types test asan tsan cross-arm ## what CI runs

clean: ## remove build folders (the virtual environment stays)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache hello.wav
	rm -f $(VENV)/.kazeia-build
