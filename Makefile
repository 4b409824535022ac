# On a fresh machine with Python 3.10 or later and nothing else:
#
#   make demo     inspect and dedup a small checkpoint, then load it into three variants of its model
#   make test     every test; those of reflinks only where mkfs.xfs (xfsprogs) is and a loop may be mounted
#   make hard     every fault instead of a sample: each call of each command fails, each boundary is met by each signal,
#                 2,000 kills at any moment, and the heavy tests of hostile files
#   make fuzz     files of every format, damaged with knowledge of their structure, for MINUTES=30 in PROCESSES=1; exit
#                 status 2 and build/fuzz/ have what was found
#   make oracles  other libraries' verdicts: each framework runs what was converted for it, in an environment of its own
#                 (10 of them, 14 GB), and docs/proofs.md tells of it; cuDNN is asked too, see `make cudnn`; the
#                 zoo of transformers and timm (one more, 6 GB, at most an hour; it goes on where it was cut short)
#   make cudnn    the table of the layout `cudnn` beside what 5 versions of cuDNN say without a GPU (4 GB)
#   make gpu      on a machine with a CUDA GPU whose Python has torch, click, numpy, ml_dtypes, safetensors and
#                 matplotlib: the proof of that layout on the GPU (gpu-proof), and what fusing is worth there (gpu-bench);
#                 nothing is installed (docs/gpu.md)
#
# PYTHON=python3.12 chooses another interpreter, which gets an environment of its own.  The frameworks' environments are
# made by ORACLE_PYTHON, python3.11 where there is one: MXNet and Chainer need 3.11 or older, others 3.11 or later.

PYTHON ?= python3
VENV ?= .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN = $(VENV)/bin
# One exact version, so that every run tests the same; a build for CPUs alone is enough, where pip is set up to find
# one. Installed before all else, so that nothing else that wants torch chooses another.
TORCH = torch==2.13.0
ORACLE_PYTHON ?= $(if $(shell python3.11 --version 2>&1 | grep '^Python 3.11'),python3.11,$(PYTHON))
ORACLES = jax tf keras mxnet1 mxnet2 paddle chainer coreml oldest lightning
ENVIRONMENTS = $(VENV)-oracles
FIXTURE = fixtures/torch/tied_flattened/tied_flattened.pt
BENCHMARKS = inspect_startup dedup_copy content_reads content_search many_tensors relayout_speed
GB ?= 4
MINUTES ?= 30
PROCESSES ?= 1
# Another text gives other cases, the same one the same.
START ?= $(shell date +%Y-%m-%d-%H-%M-%S)
# The last of cuDNN 8, some of cuDNN 9 (torch 2.11 came with 9.19.0), and the newest when this was written: the end of
# the package's name, and its version.
CUDNN = cu12==8.9.7.29 cu12==9.1.0.70 cu12==9.10.2.21 cu13==9.19.0.56 cu12==9.28.0.42
GPU_OUT ?= build/gpu

.PHONY: demo test hard fuzz check oracles cudnn gpu gpu-proof gpu-bench bench scale clean
.DELETE_ON_ERROR:

# 25.1: `pip install --group`
$(VENV)/stamp-pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	touch $@

$(VENV)/stamp-torch: $(VENV)/stamp-pip
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	touch $@

$(VENV)/stamp-paramtool: $(VENV)/stamp-torch pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/stamp-test: $(VENV)/stamp-paramtool
	$(BIN)/python -m pip install --quiet --group test
	touch $@

$(VENV)/stamp-check: $(VENV)/stamp-test
	$(BIN)/python -m pip install --quiet --group check
	touch $@

demo: $(VENV)/stamp-paramtool
	$(BIN)/paramtool inspect $(FIXTURE)
	@mkdir -p build
	$(BIN)/paramtool dedup $(FIXTURE) -o build/demo.safetensors --force
	$(BIN)/python docs/examples/load_variants.py build/demo.safetensors

test: $(VENV)/stamp-test
	$(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal

hard: $(VENV)/stamp-test
	PARAMTOOL_HARD=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal \
	    $(wildcard tests/faults tests/hostile tests/fuzz tests/contracts)

fuzz: $(VENV)/stamp-test
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --processes $(PROCESSES) --start '$(START)'

# The type checker sees torch, so that paramtool/torch is checked against it.
check: $(VENV)/stamp-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A line `# pip: ...` of the requirements has options for pip. Without build isolation, what a package is built with has
# to be there before.
define environment
	$(ORACLE_PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' \
	    $$(grep -E '^(setuptools|wheel)==' $<)
	$(@D)/bin/python -m pip install --quiet $$(sed -n 's/^# pip: //p' $<) -r $<
	touch $@
endef

$(ORACLES:%=$(ENVIRONMENTS)/%/stamp): $(ENVIRONMENTS)/%/stamp: tests/oracles/frameworks/requirements-%.txt
	$(environment)

$(ENVIRONMENTS)/zoo/stamp: tests/oracles/requirements-zoo.txt
	$(environment)

$(CUDNN:%=$(ENVIRONMENTS)/cudnn-%/stamp): $(ENVIRONMENTS)/cudnn-%/stamp: $(VENV)/stamp-paramtool
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-deps --target $(@D) 'nvidia-cudnn-$*'
	touch $@

cudnn: $(CUDNN:%=$(ENVIRONMENTS)/cudnn-%/stamp)
	@mkdir -p build/cudnn
	@set -e; for one in $(CUDNN); do \
	    $(BIN)/paramtool verify-layout cudnn --library $(ENVIRONMENTS)/cudnn-$$one/nvidia/cudnn/lib/libcudnn.so.? \
	        -o build/cudnn/cudnn-$$(echo $$one | sed 's/.*==//; s/\.[0-9]*$$//')-no-gpu.json --force; \
	    PARAMTOOL_CUDNN_HEADERS=$(ENVIRONMENTS)/cudnn-$$one/nvidia/cudnn/include \
	        $(BIN)/python -m pytest tests/oracles/test_cudnn_headers.py; \
	done

# No environment: the interpreter that PYTHON names has the torch that knows the GPU.  Both parts run, whatever the first
# one finds; each has its own time (docs/gpu.md).
gpu:
	@status=0; $(MAKE) gpu-proof || status=1; $(MAKE) gpu-bench || status=1; exit $$status

gpu-proof:
	@mkdir -p $(GPU_OUT)
	$(PYTHON) -m paramtool verify-layout cudnn -o $(GPU_OUT)/record.json --force

gpu-bench:
	@mkdir -p $(GPU_OUT)
	$(PYTHON) benchmarks/gpu_fused.py -o $(GPU_OUT)/fused.json --plot $(GPU_OUT)/fused.png --force

# The real libraries, run on what paramtool read and wrote. `make test` runs the first of these too; here they are alone,
# all models of diffusers and PEFT included, each named with its verdict, and the tables of savers are made again (shown, not written). Then the frameworks.
oracles: $(VENV)/stamp-test $(ORACLES:%=$(ENVIRONMENTS)/%/stamp) $(ENVIRONMENTS)/zoo/stamp cudnn
	PARAMTOOL_EVERY_MODEL=1 $(BIN)/python -m pytest -v tests/oracles tests/contracts
	$(BIN)/python docs/examples/savers_table.py
	$(BIN)/python docs/examples/real_models_table.py
	$(BIN)/python tests/oracles/frameworks/prove.py --environments $(ENVIRONMENTS) \
	    -o docs/proofs.md --json build/proofs.json
	$(ENVIRONMENTS)/zoo/bin/python tests/oracles/zoo.py -o docs/proofs-models.md --json build/zoo.json

# Needs about 20 GB of free space in TMPDIR at the usual GB=4.
bench: $(VENV)/stamp-test
	@set -e; for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py --gb $(GB); done

# Times and memory of very large checkpoints, into docs/performance.md: up to 20 GB in TMPDIR, and half an hour.
scale: $(VENV)/stamp-test
	$(BIN)/python benchmarks/scale.py -o docs/performance.md

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find paramtool tests benchmarks fixtures docs -name __pycache__ -type d -prune -exec rm -rf {} +
