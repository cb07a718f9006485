# Each target makes its own virtual environment when it is missing, from the exact versions in constraints.txt.
# Another place or interpreter: make test VENV=/tmp/venv PYTHON=python3.12

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VLLM_VENV ?= $(VENV)/vllm
VLLM_READY := $(VLLM_VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-assets test-long gemma faults vllm-env test-vllm lint check bench equivalence phenomena clean

help:
	@echo "make demo    train a small agent to repair Python on this machine (a few minutes after set-up)"
	@echo "make test    run the tests"
	@echo "make test-assets  fetch the tokenizer that some tests need (make test does it; without it they are skipped)"
	@echo "make gemma   make a folder of the pretrained Gemma 3 270M that the recipe gemma3-270m-bugfix trains (1.1 GB)"
	@echo "make test-long  run the tests that make test leaves out because they take long (minutes)"
	@echo "make faults  kill runs at many moments and compare what comes of them (minutes)"
	@echo "make test-vllm  compare a real vLLM server with the trainer, on the CPU (minutes)"
	@echo "make vllm-env  make the environment of that server (make test-vllm does it; 4 GB)"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make check   lint and tests, as CI runs them"
	@echo "make bench   run the benchmarks"
	@echo "make equivalence  compare every formula with TRL, rlax and optax (minutes: it installs them)"
	@echo "make phenomena  repeat the studies in recipes/phenomena (an hour or two)"
	@echo "make clean   remove the virtual environment and caches"

demo: $(READY)
	@echo "==> training: agentrl train bugfix-tiny"
	$(BIN)/agentrl train bugfix-tiny

test-assets: $(READY)
	@echo "==> fetching the tokenizer of Qwen3 into assets/"
	@$(BIN)/python -m agentrl.tokens.assets assets

gemma: $(READY)
	@echo "==> making assets/gemma3-270m, for agentrl train gemma3-270m-bugfix"
	$(BIN)/python -m pip install --quiet -c constraints.txt gguf
	@$(BIN)/python -m agentrl.policy.gemma assets

test: $(READY) test-assets
	@echo "==> running the tests"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-long: $(READY) test-assets
	@echo "==> running the tests that take long"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist load -m long

faults: $(READY)
	@echo "==> killing runs"
	$(BIN)/python -m pytest -m faults

vllm-env: $(VLLM_READY)

test-vllm: $(READY) $(VLLM_READY)
	@echo "==> comparing a vLLM server with the trainer"
	AGENTRL_VLLM_PYTHON=$(VLLM_VENV)/bin/python $(BIN)/python -m pytest -m vllm tests/engine tests/cli/test_parity_vllm.py

lint: $(READY)
	@echo "==> ruff"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "==> mypy"
	$(BIN)/mypy
	@echo "==> import-linter"
	$(BIN)/lint-imports

check: lint test

bench: $(READY)
	@echo "==> installing what the benchmarks compare with"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	@for name in sandbox engine rollout trl async; do echo "==> agentrl bench $$name"; \
	  AGENTRL_VLLM_PYTHON=$${AGENTRL_VLLM_PYTHON:-$(VLLM_VENV)/bin/python} $(BIN)/agentrl bench $$name || exit 1; done
	@for script in benchmarks/bench_*.py; do echo "==> $$script"; $(BIN)/python "$$script" || exit 1; done

equivalence: $(READY)
	@echo "==> installing what is compared with"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,equivalence]'
	$(BIN)/python -m pytest tests/equivalence

phenomena: $(READY)
	@echo "==> running the studies; an interrupted one goes on where it stood"
	$(BIN)/python -m recipes.phenomena

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed and $(PYTHON) is older or absent; set PYTHON, e.g. make test PYTHON=python3.12"; exit 2; }
	@echo "==> making the virtual environment $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@echo "==> installing agentrl and its libraries (torch is large: some minutes the first time)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[reasoning-gym]' || \
	  echo "==> without reasoning-gym, a part of which needs a C compiler; its tests are skipped"
	@touch $@

$(VLLM_READY): requirements-vllm.txt
	@echo "==> making the environment of vLLM $(VLLM_VENV) (torch and vLLM are large: some minutes)"
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet -c requirements-vllm.txt torch
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps -r requirements-vllm.txt
	@touch $@
