# The two commands: `make trial` and `make test`.  Both set up all they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NODES ?= 4
KIND ?= lab
N ?= 1
# The long tests' groups, each under an hour: criteria that have such tests, FABRIC's links and
# rails, SCALING on shards, LAUNCH by guides that mislead, and where Ray is started otherwise, runs of the whole suite.
SOAKS := endings fabric gang guides hosts launch links rails restart scaling shards starts submit suite
ifneq ($(CRITERION),)
SOAK := $(filter $(shell echo '$(CRITERION)' | tr A-Z a-z),$(SOAKS))
ifeq ($(SOAK),)
$(error CRITERION is $(CRITERION), expected one of: $(SOAKS))
endif
endif
LAB_HERE := $(shell [ "$$(uname -s)" = Linux ] && [ "$$(id -u)" = 0 ] && echo yes)

# Says what it installs, and changes no package that is there.
INSTALL := sh -c 'command -v apt-get >/dev/null || exit 1; echo "as root, with apt-get: $$*"; \
  apt-get update -qq && apt-get install -y -qq --no-upgrade --no-install-recommends "$$@"' install

# The tests start some hundred Pythons: without compiled files each of them compiles all anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help trial test soak mutants healthy lint docs lab tools starters promtool browser setup clean bench gpu

help: ## what each target does
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

trial: setup tools ## rehearse the whole acceptance run on this machine
ifeq ($(LAB_HERE),yes)
	$(BIN)/python -m tests.lab run --nodes $(NODES) -- seatrial run --cluster auto --contract lab
else
	$(BIN)/seatrial run --cluster local:$(NODES) --contract local
endif

test: setup tools browser lint ## the suite's own tests; the lab's among them when root on Linux
	$(BIN)/pytest tests -m "not soak and not alone" -n 2 --dist loadfile
	$(BIN)/pytest tests -m "not soak and alone"

soak: setup tools $(if $(filter starts,$(or $(SOAK),starts)),starters) $(if $(filter suite,$(or $(SOAK),suite)),promtool) ## what takes longer; CRITERION=gang: that criterion's tests only
ifneq ($(CRITERION),)
	$(BIN)/pytest tests -m "soak(criterion='$(SOAK)')"
else
	$(BIN)/pytest tests -m soak
endif

mutants: setup ## how many small changes to the judging code the fast tests notice
	$(BIN)/python -m tests.mutants $(if $(ONLY),--only $(ONLY))

healthy: setup tools ## N whole runs on sound clusters, each a row of docs/develop/healthy-runs.md
	$(BIN)/python -m tests.lab.healthy --kind $(KIND) --runs $(N)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup ## write the pages that follow from the code; RUN=runs/... draws README's picture of it
	$(BIN)/python -m tests.project.pages
	$(BIN)/python -m tests.faults.table
	$(BIN)/python -m tests.probes.acceptance.defects
	$(if $(RUN),$(BIN)/python -m tests.project.picture $(RUN))

lab: setup tools ## a lab to work on; `python -m tests.lab down` ends it
	$(BIN)/python -m tests.lab up --nodes $(NODES)

bench: setup tools ## the figures of docs/develop/measurements.md
	for what in startup_cost large_run report fabric gang fault_search nccl_log restart loss_attribution scaling; do $(BIN)/python -m benchmarks.$$what || exit 1; done

# Nothing is installed for it: a machine that is lent for minutes may have no network.
gpu: ## what one machine with a GPU can show, by the python3 that is there
	$(PYTHON) -m benchmarks.gpu

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

# The system tools of the lab and of `seatrial sign`: installed where that is possible, else each
# says what is missing.
tools:
ifeq ($(LAB_HERE),yes)
	@command -v ip >/dev/null && command -v nft >/dev/null && command -v cc >/dev/null \
	  && command -v ssh-keygen >/dev/null && command -v ethtool >/dev/null && command -v ping >/dev/null \
	  || { $(INSTALL) iproute2 nftables util-linux gcc libc6-dev openssh-client ethtool iputils-ping; }
endif

# Prometheus's own check of its rules.  The package starts a service on a machine that has an init.
promtool:
	@command -v promtool >/dev/null || { $(INSTALL) prometheus; }

# Slurm and an ssh server, for the tests that start Ray with them.  Their packages start services on
# a machine that has an init, so that only these tests install them.
starters:
ifeq ($(LAB_HERE),yes)
	@command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null \
	  && command -v sshd >/dev/null \
	  || { $(INSTALL) slurmctld slurmd slurm-client munge openssh-server; }
endif

# The report's tests look at it in the distribution's browser.
browser:
ifeq ($(LAB_HERE),yes)
	@command -v chromium >/dev/null \
	  || { $(INSTALL) chromium; } \
	  || echo "chromium could not be installed: the tests that need it say NOT RUN"
endif

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
