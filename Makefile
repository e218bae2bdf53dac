# The two commands of the README, and what they are made of. Everything lands in build/.
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
MODEL ?=
SERVE_ARGS ?=

.PHONY: serve test test-arm test-models sanitize tidy build setup clean format

# Installs what is missing, builds, and serves a model on 127.0.0.1:8080. MODEL=folder-or-repository chooses another.
serve: build
	@tools/serve.sh $(BUILD) "$(MODEL)" $(SERVE_ARGS)

test: build
	@tools/setup.sh browser || echo "test: chromium could not be installed: the tests of the page will be skipped" >&2
	tools/test_venv.sh $(BUILD)/venv
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

# Installs a cross compiler and an emulator (68 MB) and tests the CPU kernels of 64-bit Arm.
test-arm: setup
	@tools/setup.sh arm
	tools/test_arm.sh $(BUILD)/arm

# Adds torch, which is large, to the tests' Python environment, and runs the tests that compare with transformers.
test-models: build
	tools/test_venv.sh $(BUILD)/venv models
	ctest --test-dir $(BUILD) --output-on-failure -R '^e2e_other_programs$$'

# The tests that have the most to find, with AddressSanitizer and UndefinedBehaviorSanitizer, and with ThreadSanitizer.
sanitize: setup
	JOBS=$(JOBS) tools/sanitize.sh

tidy: build
	JOBS=$(JOBS) tools/tidy.sh $(FILES)

build: setup
	@test -f $(BUILD)/build.ninja || cmake --preset default -B $(BUILD)
	cmake --build $(BUILD) -j $(JOBS)

setup:
	@tools/setup.sh

format:
	clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu' '*.mm')

clean:
	rm -rf $(BUILD) build-*
