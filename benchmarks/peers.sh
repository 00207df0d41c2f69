#!/usr/bin/env bash
# Make the peers' virtual environments, outside the repository: benchmarks/peers.sh [DIRECTORY]
#
#   DIRECTORY/xla      torch_xla 2.9.0 with the torch 2.9.1 it was built for
#   DIRECTORY/torchax  torchax 0.0.13 with jax; it names an ATen overload that torch 2.13 no longer has, so 2.9.1 too
#
# torch 2.9.1 for x86-64 is a CUDA build on PyPI. Only its own wheel (0.9 GB) is installed; small stand-ins take the
# place of the CUDA libraries (2.5 GB) that it links against and a CPU benchmark never calls: see cuda_stubs.py.
# About 5 GB of disk and 3 minutes. PYTHON= picks the interpreter.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
home=${1:-${TORCH_PJRT_BENCH_ENV:-$HOME/.cache/torch-pjrt-bench}}
python=${PYTHON:-python3.11}
torch_needs=(filelock typing-extensions 'sympy>=1.13.3' networkx jinja2 fsspec numpy)

make_env() { # NAME 'PACKAGES WITHOUT THEIR DEPENDENCIES' 'PACKAGES WITH THEM'
  local env=$home/$1
  if [ -x "$env/bin/python" ] && [ -e "$env/complete" ]; then
    echo "$env is there already"
    return
  fi
  rm -rf "$env"
  "$python" -m venv "$env"
  # shellcheck disable=SC2086  # the lists are meant to be split
  "$env/bin/pip" install --quiet --no-deps torch==2.9.1 $2 2>&1 | { grep -v '^WARNING' || true; }
  # shellcheck disable=SC2086
  "$env/bin/pip" install --quiet $3 "${torch_needs[@]}" 2>&1 | { grep -vE '^WARNING|^ERROR: pip.s dependency|^torch 2.9.1 requires (nvidia|triton)' || true; }
  "$python" "$here/cuda_stubs.py" "$env"/lib/python3*/site-packages/torch/lib
  touch "$env/complete"
}

mkdir -p "$home"
make_env xla 'torch_xla==2.9.0' 'absl-py pyyaml requests cloud-tpu-client'
make_env torchax 'torchax==0.0.13 optax' 'jax==0.10.2 absl-py'

cd /
PJRT_DEVICE=CPU "$home/xla/bin/python" -c 'import torch, torch_xla; print("torch_xla", torch_xla.__version__, float(torch.ones(2, device="xla").sum()))'
"$home/torchax/bin/python" -c 'import torch, torchax; torchax.enable_globally(); print("torchax", torchax.__version__, float(torch.ones(2, device="jax").sum()))'
