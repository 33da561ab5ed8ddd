# Verbs of this repository. `make` lists them. The only tool assumed is Python >= 3.11 with venv and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Everything that can be made again lies in .cache (and .venv), so that `make clean` is complete.
CACHE := $(CURDIR)/.cache
export NUMBA_CACHE_DIR := $(CACHE)/numba
export MPLCONFIGDIR := $(CACHE)/matplotlib
export MYPY_CACHE_DIR := $(CACHE)/mypy
export RUFF_CACHE_DIR := $(CACHE)/ruff
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis
export PYTEST_ADDOPTS := -o cache_dir=$(CACHE)/pytest $(PYTEST_ADDOPTS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Some container images set it; every process of a job would then compile torch's modules again (4 s each).
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv data demo demo-cluster images test test-local test-cluster chaos soak fuzz hostile cluster-build cluster-up cluster-down check benchmark benchmark-peers benchmark-data benchmark-tables benchmark-control-plane benchmark-operator experiments lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.installed ## install everything into .venv (again only if requirements.lock or pyproject.toml change)

# uv does not read pip's settings, so it is told of a mirror.
UV = index=$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null || true)}; \
	$${index:+env UV_DEFAULT_INDEX="$$index"} $(BIN)/uv

# uv in the version and with the hashes of the lock, which names them for every package.
$(VENV)/.uv: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python >= 3.11 is needed, {sys.executable} is {sys.version.split()[0]}; say: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@awk '/^uv==/ { on = 1 } on { print } on && !/\\$$/ { exit }' requirements.lock > $(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --require-hashes -r $(VENV)/uv.txt
	@touch $@

# uv fetches in parallel: 23 s where pip takes 138 s. Where it fails, pip installs the same files.
# uv leaves the compiling of modules to their first import: better one process now than all processes of the first job.
$(VENV)/.requirements: requirements.lock | $(VENV)/.uv
	@echo "Installing the packages of requirements.lock into $(VENV): about 2.5 GB to fetch, half a minute to three minutes, once"
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock \
		|| { echo "uv could not; pip tries the same"; $(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock; }
	@$(BIN)/python -c "import aiohttp, celpy, matplotlib.pyplot, numba, pyarrow.parquet, rich, scipy.optimize, torch.fx, zmq"
	@touch $@

$(VENV)/.installed: $(VENV)/.requirements pyproject.toml
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@
	@echo "Installed. The command line is $(BIN)/heterps"

data: venv ## make the flights example's train and test sets (a few seconds, once)
	@$(BIN)/python examples/flights/prepare.py

demo: data ## train the flights example (quality, bill), then plan the paper's four models on the paper's cluster
	@$(BIN)/heterps run examples/flights/job.yaml
	@echo
	@$(BIN)/python -m experiments.headline

demo-cluster: data ## train the flights example on a real Kubernetes on this machine (ARGUMENTS=--from-images: docs/images.md)
	@$(BIN)/python -m tests.cluster demo $(ARGUMENTS)

# Both parts run, whatever the first one says; the last line sums up both.
test: data ## run all tests, those that need a Kubernetes included
	@$(BIN)/python -m tests local cluster

test-local: data ## run the tests that need no Kubernetes
	@$(BIN)/python -m tests local

test-cluster: venv ## run the tests that need a Kubernetes, on two of them
	@$(BIN)/python -m tests cluster

cluster-build: venv ## install and build the programs of the test cluster (once; docs/testing.md says what it needs)
	@$(BIN)/python -m tests.cluster build

cluster-up: venv ## start a real Kubernetes with three nodes on this machine, and say how to use it
	@$(BIN)/python -m tests.cluster up

cluster-down: venv ## end it
	@$(BIN)/python -m tests.cluster down

chaos: venv ## run jobs under faults that a seed draws (ARGUMENTS=--seed=N repeats one, --on=cluster: in pods; docs/testing.md)
	@nice -n 3 $(BIN)/python -m tests.chaos $(ARGUMENTS)

soak: venv ## run one job under faults for an hour, and show whether its processes grow (ARGUMENTS=--minutes=5)
	@nice -n 3 $(BIN)/python -m tests.soak $(ARGUMENTS)

fuzz: venv ## give each parser a million inputs, guided by coverage (ARGUMENTS="--target wire.message --seconds 60")
	@$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: -r tests/fuzz/requirements.txt
	@nice -n 15 $(BIN)/python -m tests.fuzz $(ARGUMENTS)

check: venv ## run the linters, the type checker, the import contracts and the guards on documents
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir $(CACHE)/import-linter
	$(BIN)/python -m pytest --quiet tests/repo

hostile: venv ## healthy jobs beside malformed objects and hostile coordinators (ARGUMENTS=--objects=1000: fewer)
	@$(BIN)/python -m tests.hostile $(ARGUMENTS)

ON_CLUSTER := first_step operator_scale
ON_DATA := data_streams shuffle_quality
ON_TABLES := store growth restore checkpoint feed spill replication
# The first needs a card, the second ten minutes, the others have targets of their own.
BY_HAND := accelerator precision_quality control_plane peers
ALONE := $(filter-out $(ON_CLUSTER) $(ON_DATA) $(BY_HAND) $(filter-out store,$(ON_TABLES)),$(patsubst benchmarks/%.py,%,$(wildcard benchmarks/[a-z]*.py)))

benchmark: data ## run the programs in benchmarks/ that need no Kubernetes, and print their figures
	@for name in $(ALONE); do echo "== $$name"; $(BIN)/python -m "benchmarks.$$name"; done

benchmark-peers: venv ## speed beside DDP, torchrec, torch rpc and TensorFlow, in environments of their own (ARGUMENTS="--models deep")
	@$(BIN)/python -m benchmarks.peers $(ARGUMENTS)

benchmark-data: data ## what streamed data costs: rows read, speed beside data in memory and in an object store, quality of shuffling
	@$(BIN)/python -m tests.cluster build-store
	@for name in $(ON_DATA); do echo "== $$name"; $(BIN)/python -m "benchmarks.$$name"; done

benchmark-tables: venv ## what rows cost: pulls, updates, memory, restoring them from a checkpoint, preparing batches
	@for name in $(ON_TABLES); do echo "== $$name"; $(BIN)/python -m "benchmarks.$$name"; done

benchmark-control-plane: venv ## what 10, 100 and 1,000 workers cost the coordinator, and each of them
	@$(BIN)/python -m benchmarks.control_plane $(ARGUMENTS)

benchmark-operator: data ## time from apply to first step, then what hundreds of jobs cost (ARGUMENTS=--jobs=20: fewer)
	@$(BIN)/python -m tests.cluster build-benchmark
	@$(BIN)/python -m benchmarks.first_step
	@$(BIN)/python -m benchmarks.operator_scale $(ARGUMENTS)

# Cells run side by side, so that numerical libraries get one thread each; what is done already is not done again.
experiments: venv ## repeat the paper's tables and figures and ours: docs/experiments.md (ARGUMENTS=--quick: a small part)
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m experiments $(ARGUMENTS)

LOCK_IMAGE = $(UV) pip compile --quiet --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --no-header \
	--python-version 3.11 --constraint requirements.lock

lock: $(VENV)/.uv ## resolve requirements.in again into requirements.lock (the versions in it may change)
	@$(UV) pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-header \
		--python-version 3.11 requirements.in -o requirements.lock
	@for role in operator runtime; do $(LOCK_IMAGE) pyproject.toml --extra $$role -o images/$$role.lock; done
	@$(LOCK_IMAGE) images/build.in -o images/build.lock
	@$(LOCK_IMAGE) --override <(echo 'fbgemm-gpu ; python_version < "3"') benchmarks/peers.in -o benchmarks/peers.lock

images: venv ## build the container images, with buildah (ARGUMENTS=operator: one of them; docs/images.md)
	@$(BIN)/python -m images $(ARGUMENTS)

clean: ## delete everything that make has made, training runs in .heterps included
	rm -rf $(VENV) .cache .heterps examples/*/.heterps examples/*/data dist
	find . -name __pycache__ -prune -exec rm -rf {} +
