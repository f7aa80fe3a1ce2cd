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

LLAMA  := $(shell sed -nE 's/^ +"(llama-cpp-python==[0-9.]+)",/\1/p' pyproject.toml)

SOURCES := $(shell find engine_native server \( -name '*.py' -o -name '*.cpp' -o -name '*.cc' \
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

.PHONY: help install build run serve test test-py test-clients test-cpp asan tsan lint types fmt bench golden check clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

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
$(VENV)/.kazeia-build: $(VENV)/.kazeia-native $(SOURCES)
	$(call with_progress,Compiling and installing Kazeia,$(PIP) install -v --no-build-isolation .)
	@touch $@

$(VENV)/.kazeia-dev: pyproject.toml | $(BIN)/python
	@$(PIP) install -q -U 'pip>=25.1'
	$(PIP) install -q --group dev
	@touch $@

test: test-cpp test-py ## the C++ and the Python tests

test-py: install ## the Python tests; ARGS="-k name" passes options on
	$(BIN)/python -m pytest $(ARGS)

test-clients: install ## the speech classes of livekit and pipecat against the server (Python 3.11 or newer)
	$(PIP) install -q --group clients
	$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

# $(1): build folder, $(2): CMake options
define ctest
$(BIN)/cmake -S engine_native -B $(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DCMAKE_PREFIX_PATH="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" \
  -DKAZEIA_BUILD_TESTS=ON -DKAZEIA_WERROR=ON $(2)
$(BIN)/cmake --build $(1)
$(BIN)/ctest --test-dir $(1) --output-on-failure --no-tests=error
endef

test-cpp: $(VENV)/.kazeia-native ## the C++ tests
	$(call ctest,build/test,-DCMAKE_BUILD_TYPE=Release)

asan: $(VENV)/.kazeia-native ## the C++ tests under the address and undefined-behaviour sanitizers
	$(call ctest,build/asan,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DKAZEIA_SANITIZE=address$(,)undefined)

tsan: $(VENV)/.kazeia-native ## the C++ tests under the thread sanitizer
	$(call ctest,build/tsan,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DKAZEIA_SANITIZE=thread)

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

golden: ## regenerate tests/golden with the official package, in an environment of its own
	$(PYTHON) -m venv build/golden
	build/golden/bin/pip install -q torch==2.13.0 transformers==4.57.3 accelerate==1.12.0 einops \
	  librosa soundfile onnxruntime sox sentencepiece safetensors gguf
	build/golden/bin/pip install -q --no-deps qwen-tts==0.1.1
	build/golden/bin/pip download -q --no-deps --no-binary :all: -d build/golden/src $(LLAMA)
	tar -xzf build/golden/src/*.tar.gz --strip-components=1 -C build/golden/src
	build/golden/bin/python tests/golden/make_golden.py --llama-cpp build/golden/src/vendor/llama.cpp

check: lint types test asan tsan ## what CI runs

clean: ## remove build folders (the virtual environment stays)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache hello.wav
	rm -f $(VENV)/.kazeia-build
