# Two commands on a fresh machine: `make serve` and `make test`. Needs Python >= 3.11 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev

# Tests start hundreds of processes. Where the environment forbids bytecode, compiling the sources anew is a third of
# what each start takes; in a folder of its own it litters nothing. Of what is installed few modules are ever imported.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.PHONY: serve test unit compiled flow lint format proto bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# As users install it, the serving path compiled.
$(STAMP): pyproject.toml setup.py compile.ini $(shell find hybrid profiles -type f -not -name '*.pyc') | $(BIN)/python
	@echo 'installing; where there is a C compiler this takes a minute or two'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[demo]'
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile 'kserve==0.21.0'  # it pins an old psutil
	@touch $@ $(STAMP)

# Whoever develops serves what lies in the checkout.
serve: $(if $(wildcard $(DEV)),$(DEV),$(STAMP))  ## serve the built-in models on 127.0.0.1:8000
	$(BIN)/hybrid serve $(ARGS)

# The unit tests are pure: two processes at once do not disturb each other. What counts processes, or measures how long
# something takes under load, wants the machine for itself. Not `loadfile`, which never ends after a process has crashed.
PARALLEL := -n 2 --dist worksteal
COMPILED := tests/flow/test_compiled.py
# Tests with real processes that mostly look at answers; their limits of time and memory leave room for one beside them.
PATIENT  := tests/docs $(addprefix tests/flow/test_, $(addsuffix .py, \
	batch_files batch_resume batch_static cli cli_loading client clients_plain clients_real clients_triton openai_clients \
	grpc_calls grpc_clients behaviour_errors behaviour_identity behaviour_lengths behaviour_onnx behaviour_security \
	engines_served faults_start profile_verb repository_http))

# Compiling keeps one CPU busy for half a minute, so the unit tests run beside it.
test: $(DEV)  ## everything CI runs
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target unit compiled
	$(BIN)/python -m pytest $(PARALLEL) $(PATIENT)
	$(BIN)/python -m pytest $(addprefix --ignore=, tests/unit $(COMPILED) $(PATIENT))

unit: $(DEV)
	$(BIN)/python -m pytest $(PARALLEL) tests/unit

compiled: $(DEV)
	$(BIN)/python -m pytest $(COMPILED)

flow: $(DEV)
	$(BIN)/python -m pytest tests/flow

lint: $(DEV)
	$(BIN)/python -m pytest tests/unit/test_tidy.py

format: $(DEV)
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

PROTO := hybrid/protocol/grpc

# The pool of its own is explained in hybrid/protocol/grpc/__init__.py. Newer tools make code for newer protobufs only.
proto: $(DEV)  ## generate the messages of gRPC again
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.72.2'
	$(BIN)/python -m grpc_tools.protoc -I $(PROTO) --python_out=$(PROTO) --pyi_out=$(PROTO) grpc_predict_v2.proto
	sed -i 's/_descriptor_pool[.]Default()/_descriptor_pool.DescriptorPool()/' $(PROTO)/grpc_predict_v2_pb2.py

bench: $(DEV)  ## prints tables and writes bench/results/*.json
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build
