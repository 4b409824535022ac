# On a fresh machine with Python 3.10 or later and nothing else:
#
#   make demo     inspect and dedup a small checkpoint, then load it into three variants of its model
#   make quick    run the tests of the model, the passes and the tables, which need no torch: under a minute
#   make test     run every test that is not marked as slow, of many with a sample of their cases (10 minutes on 2 slow
#                 cores); the tests of reflinks only if mkfs.xfs (xfsprogs) exists and loop devices can be mounted
#   make check    run the linter, the formatter, the type checker and the import contracts
#   make hard     run every case of every test instead of a sample: each system call of each command fails, each boundary
#                 gets each signal, 2,000 kills at any moment, the heavy tests of hostile files, every pair of layouts,
#                 and every law with five times the examples (hours)
#   make fuzz     damage files of every format with knowledge of their structure, for MINUTES=30 in PROCESSES=1; with
#                 findings, the exit status is 2 and build/fuzz/ has them
#   make fuzz-guided  fuzz the readers of TARGETS with atheris, which sees the branches that they take, SECONDS=300 each;
#                 findings are build/guided/TARGET/crash-* (atheris is installed, for x86-64 Linux and Python 3.11 or later)
#   make trials   compare COUNT=1000 random pairs of checkpoints whose truth NumPy knows, with the seeds from START=0: a
#                 false verdict of `paramtool diff`, or a map that is said to be found and is not, is printed with its seed
#   make oracles  check against other libraries: each framework runs what was converted for it, in its own environment
#                 (10 environments, 14 GB), and docs/proofs.md reports it; DeepSpeed trains, saves, and reads what it
#                 saved (one more environment, 1 GB); cuDNN is asked too, see `make cudnn`; so is the zoo of
#                 transformers and timm (one more environment, 6 GB, at most an hour; it resumes after an interruption)
#   make cudnn    compare the table of the layout `cudnn` with the answers of 5 versions of cuDNN without a GPU (4 GB)
#   make gpu      on a machine with a CUDA GPU whose Python has torch, click, numpy, ml_dtypes, safetensors and
#                 matplotlib: prove that layout on the GPU (gpu-proof), and measure what fusing is worth there (gpu-bench);
#                 nothing is installed (docs/gpu.md)
#   make bench    measure time and memory beside other tools (20 GB in TMPDIR at GB=4)
#   make scale    measure very large checkpoints, into docs/performance.md
#   make dist     build the wheel, the sdist and paramtool.pyz, and test each in an empty environment
#   make docs     build the site into build/site; a link that leads nowhere fails
#   make site     build the site, and open every page of it in Chromium: two widths, light and dark (chromium and
#                 chromedriver, npm)
#   make lowest   run the tests with the oldest versions of the packages that pyproject.toml allows
#   make claims   print the claims of README.md whose proofs ran with older libraries than are installed, or never; the
#                 exit status is then that of make for a failure (docs/claims.py)
#   make help     print this
#
# PYTHON=python3.12 chooses another interpreter, which gets its own environment.  ORACLE_PYTHON makes the environments of
# the frameworks, by default python3.11 if it exists: MXNet and Chainer need 3.11 or older, others 3.11 or later.

PYTHON ?= python3
VENV ?= .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN = $(VENV)/bin
# Compiled modules are kept, whatever the environment says: the tests start hundreds of processes, and half of the time
# of each would be spent compiling.
export PYTHONDONTWRITEBYTECODE =
# One exact version, so that every run tests the same.  A CPU build is enough, if pip is set up to find one.  It is
# installed first, so that no other package chooses another version.
TORCH = torch==2.13.0
ORACLE_PYTHON ?= $(if $(shell python3.11 --version 2>&1 | grep '^Python 3.11'),python3.11,$(PYTHON))
ORACLES = jax tf keras mxnet1 mxnet2 paddle chainer coreml oldest lightning
ENVIRONMENTS = $(VENV)-oracles
FIXTURE = fixtures/torch/tied_flattened/tied_flattened.pt
BENCHMARKS = inspect_startup as_typed content_reads content_search many_tensors rearrange_speed \
    training diff_speed lock_speed
GB ?= 4
MINUTES ?= 30
PROCESSES ?= 1
# The seed: another string gives other cases, the same string the same cases.
START ?= $(shell date +%Y-%m-%d-%H-%M-%S)
COUNT ?= 1000
# The last of cuDNN 8, some of cuDNN 9 (torch 2.11 came with 9.19.0), and the newest when this was written: the end of
# the package's name, and its version.
CUDNN = cu12==8.9.7.29 cu12==9.1.0.70 cu12==9.10.2.21 cu13==9.19.0.56 cu12==9.28.0.42
VLLM = vllm==0.33.0
# Meta's code of Llama 3, and the last transformers whose wheel has the script that reads Meta's folders.
META = llama-models==0.3.0 transformers==4.46.3
AWQ = autoawq==0.2.9
AXE = axe-core@4.14.1
SARIF = @microsoft/jest-sarif@1.0.0-beta.0
MULTITOOL = @microsoft/sarif-multitool-linux@5.7.0
ACTIONS = @actions/core@1.11.1
GPTQ = auto-gptq==0.7.1
GPU_OUT ?= build/gpu

# Rooms whose tests import no torch, but for these modules.
QUICK = tests/model tests/passes tests/parts tests/layouts tests/startup/test_imports.py tests/cli/test_table.py \
    tests/cli/test_json_text.py tests/contracts/test_weight.py tests/contracts/test_private.py
NEED_TORCH = tests/passes/test_parts_tied_heads.py tests/passes/test_parts_work.py tests/layouts/test_add_a_layout.py

.PHONY: help quick docs site dist lowest demo test hard fuzz fuzz-guided trials mutants check claims oracles cudnn gpu gpu-proof gpu-bench bench scale clean
.DELETE_ON_ERROR:

help:
	@sed -n '/^[^#]/q; /^$$/q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

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

# An environment without torch: what is run here cannot need it.
$(VENV)-quick/stamp: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet -e . --group quick
	touch $@

$(VENV)-docs/stamp: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet --group docs
	touch $@

docs: $(VENV)-docs/stamp
	NO_MKDOCS_2_WARNING=1 $(<D)/bin/mkdocs build --quiet

site: docs build/axe/stamp $(VENV)/stamp-test
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	    || { echo 'make site needs chromium and chromedriver: apt-get install chromium chromium-driver' >&2; exit 1; }
	PARAMTOOL_SITE=build/site $(BIN)/python -m pytest tests/oracles/test_site_pages.py

# The oldest versions that pyproject.toml allows, on the Python that has wheels of them: PYTHON=python3.10.  The tests of
# the main rooms; those whose judge has to be newer are skipped (tests/versions.py), and what other libraries write is
# tested with their newest versions.
LOWEST = tests/model tests/passes tests/parts tests/layouts tests/startup tests/engine tests/laws tests/formats tests/commands
$(VENV)-lowest/stamp: pyproject.toml packaging/lowest.py
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' tomli
	$(@D)/bin/python packaging/lowest.py > $(@D)/requirements.txt
	$(@D)/bin/python -m pip install --quiet -r $(@D)/requirements.txt --group lowest
	$(@D)/bin/python -m pip install --quiet --no-deps -e .
	touch $@

lowest: $(VENV)-lowest/stamp
	$(<D)/bin/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal -W ignore \
	    --ignore=tests/commands/test_sets.py $(LOWEST)

$(VENV)-dist/stamp:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' 'build>=1.2'
	touch $@

dist: $(VENV)-dist/stamp
	$(<D)/bin/python packaging/dist.py

# It runs nothing.  `make test` and `make oracles` write build/claims.json; `python docs/claims.py record` takes it over.
claims:
	@$(PYTHON) docs/claims.py stale

demo: $(VENV)/stamp-paramtool
	$(BIN)/paramtool inspect $(FIXTURE)
	@mkdir -p build
	$(BIN)/paramtool dedup $(FIXTURE) -o build/demo.safetensors --force
	$(BIN)/python docs/examples/load_variants.py build/demo.safetensors

test: $(VENV)/stamp-test
	PARAMTOOL_COVERAGE=1 $(BIN)/python -m pytest -m 'not slow' --numprocesses=auto --maxprocesses=8 --dist=worksteal

quick: $(VENV)-quick/stamp
	$(<D)/bin/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal $(QUICK) $(NEED_TORCH:%=--ignore=%)

hard: $(VENV)/stamp-test
	PARAMTOOL_HARD=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal

fuzz: $(VENV)/stamp-test
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --processes $(PROCESSES) --start '$(START)'

TARGETS ?= pickle zip protobuf safetensors tensorflow msgpack
SECONDS ?= 300
fuzz-guided: $(VENV)/stamp-test
	$(BIN)/python -m pip install --quiet 'atheris==3.0.0'
	@set -e; for target in $(TARGETS); do \
	    mkdir -p build/guided/$$target/corpus; \
	    $(BIN)/python -m tests.fuzz.guided $$target build/guided/$$target/corpus \
	        -artifact_prefix=build/guided/$$target/ -max_total_time=$(SECONDS) -timeout=20 -rss_limit_mb=3000; \
	done

# The seeds are numbers.
trials: START = 0
trials: $(VENV)/stamp-test
	$(BIN)/python -m tests.laws.diff_trials $(COUNT) $(START)

# Again for what changed since tests/mutants/record.json was made; exit 1 where a test that saw one does not any more.
mutants: $(VENV)/stamp-test
	$(BIN)/python -m tests.mutants --check

# The type checker sees torch, so that paramtool/torch is checked against it.
check: $(VENV)/stamp-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A line `# pip: ...` of the requirements has options for pip.  Without build isolation, the build dependencies of a
# package must be installed first.
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

$(ENVIRONMENTS)/ci/stamp: tests/oracles/requirements-ci.txt
	$(environment)

# Only the CPU's torch is there when it is built, so no kernel is compiled.
$(ENVIRONMENTS)/deepspeed/stamp: tests/oracles/requirements-deepspeed.txt
	$(environment)

$(CUDNN:%=$(ENVIRONMENTS)/cudnn-%/stamp): $(ENVIRONMENTS)/cudnn-%/stamp: $(VENV)/stamp-paramtool
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-deps --target $(@D) 'nvidia-cudnn-$*'
	touch $@

# Its sources are read, nothing is installed: the table of its names is compared with them (336 MB).
build/vllm/stamp: $(VENV)/stamp-pip
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) '$(VLLM)'
	touch $@

# Their sources are run, nothing is installed (14 MB).
build/meta/stamp: $(VENV)/stamp-pip
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) $(META)
	touch $@

# Their modules of pure torch are read, nothing is installed: they dequantise what was moved.
build/packed/stamp: $(VENV)/stamp-pip
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) --only-binary :all: --python-version 3.11 \
	    --platform manylinux_2_17_x86_64 '$(GPTQ)'
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) --no-binary :all: '$(AWQ)'
	touch $@

# The schema of SARIF: a package of npm, which has to be installed; without it, that test is skipped.
build/sarif/stamp: $(VENV)/stamp-pip
	@mkdir -p $(@D)
	cd $(@D) && npm pack --silent '$(SARIF)' && tar xzf microsoft-jest-sarif-*.tgz
	touch $@

# Microsoft's validator of SARIF, with a .NET of its own, for Linux on x86-64 (44 MB): elsewhere, its test is skipped.
build/multitool/stamp:
	@mkdir -p $(@D)
	cd $(@D) && npm pack --silent '$(MULTITOOL)' && tar xzf microsoft-sarif-multitool-*.tgz
	touch $@

# What actions of GitHub write workflow commands with: a package of npm; without it and node, that test is skipped.
build/actions/stamp:
	@mkdir -p $(@D)
	cd $(@D) && npm pack --silent '$(ACTIONS)' && tar xzf actions-core-*.tgz
	touch $@

# A judge of accessibility: a package of npm; without it, its tests are skipped.
build/axe/stamp:
	@mkdir -p $(@D)
	cd $(@D) && npm pack --silent '$(AXE)' && tar xzf axe-core-*.tgz
	touch $@

cudnn: $(CUDNN:%=$(ENVIRONMENTS)/cudnn-%/stamp)
	@mkdir -p build/cudnn
	@set -e; for one in $(CUDNN); do \
	    $(BIN)/python -m proof cudnn --library $(ENVIRONMENTS)/cudnn-$$one/nvidia/cudnn/lib/libcudnn.so.? \
	        -o build/cudnn/cudnn-$$(echo $$one | sed 's/.*==//; s/\.[0-9]*$$//')-no-gpu.json --force; \
	    PARAMTOOL_CUDNN_HEADERS=$(ENVIRONMENTS)/cudnn-$$one/nvidia/cudnn/include \
	        $(BIN)/python -m pytest tests/oracles/test_cudnn_headers.py; \
	done

# No environment: the interpreter of PYTHON has the torch for the GPU.  Both parts run, even if the first has findings;
# each has its own time limit (docs/gpu.md).
gpu:
	@status=0; $(MAKE) gpu-proof || status=1; $(MAKE) gpu-bench || status=1; exit $$status

gpu-proof:
	@mkdir -p $(GPU_OUT)
	$(PYTHON) -m proof cudnn -o $(GPU_OUT)/record.json --force

gpu-bench:
	@mkdir -p $(GPU_OUT)
	$(PYTHON) benchmarks/gpu_fused.py -o $(GPU_OUT)/fused.json --plot $(GPU_OUT)/fused.png --force

# The real libraries run on what paramtool read and wrote.  `make test` runs the first of these tests, too; here they run
# with all models of diffusers and PEFT, and print each verdict.  The tables of savers are made again and printed, not
# written.  Then the frameworks run.
oracles: $(VENV)/stamp-test $(ORACLES:%=$(ENVIRONMENTS)/%/stamp) $(ENVIRONMENTS)/zoo/stamp \
    docs $(ENVIRONMENTS)/deepspeed/stamp $(ENVIRONMENTS)/ci/stamp build/vllm/stamp build/meta/stamp build/packed/stamp build/sarif/stamp build/multitool/stamp build/actions/stamp build/axe/stamp cudnn
	PARAMTOOL_SITE=build/site PARAMTOOL_EVERY_MODEL=1 PARAMTOOL_DEEPSPEED=$(ENVIRONMENTS)/deepspeed/bin/python \
	    PARAMTOOL_CI=$(CURDIR)/$(ENVIRONMENTS)/ci/bin/python $(BIN)/python -m pytest -v tests/oracles tests/contracts
	$(BIN)/python docs/claims.py record build/claims.json
	$(BIN)/python docs/examples/savers_table.py
	$(BIN)/python docs/claims.py ran docs/examples/savers_table.py
	$(BIN)/python docs/examples/real_models_table.py
	$(BIN)/python tests/oracles/frameworks/prove.py --environments $(ENVIRONMENTS) \
	    -o docs/proofs.md --json build/proofs.json
	$(BIN)/python docs/claims.py ran tests/oracles/frameworks/prove.py
	$(ENVIRONMENTS)/zoo/bin/python tests/oracles/dialects/prove.py --environments $(ENVIRONMENTS) \
	    -o docs/proofs-dialects.md --json build/proofs-dialects.json --evidence paramtool/parts/proofs.json
	$(BIN)/python docs/claims.py ran tests/oracles/dialects/prove.py
	$(ENVIRONMENTS)/zoo/bin/python tests/oracles/zoo.py -o docs/proofs-models.md --json build/zoo.json

# Needs about 20 GB of free space in TMPDIR with the default GB=4.
bench: $(VENV)/stamp-test
	@set -e; for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py --gb $(GB); done

# Time and memory of very large checkpoints, written to docs/performance.md: up to 20 GB in TMPDIR, and half an hour.
scale: $(VENV)/stamp-test
	$(BIN)/python benchmarks/scale.py -o docs/performance.md

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find paramtool tests benchmarks fixtures docs -name __pycache__ -type d -prune -exec rm -rf {} +
