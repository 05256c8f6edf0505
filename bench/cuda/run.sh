#!/usr/bin/env bash
# Runs the GPU benchmarks and their peers (PyTorch, Triton) in turn, for docs/explanation/gpu_speed.md.
#   bash bench/cuda/run.sh [WORD]   rows whose name contains WORD
# Builds the programs in build/gpu, which needs nvcc, cmake and ninja. Peers run if python3 has PyTorch.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
programs=(layer bfloat16 products gated)

command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
device=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
[[ -n $device ]] || { echo "bench/cuda/run.sh needs a CUDA device, but nvidia-smi lists none"; exit 2; }
echo "== $device, $(date +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
options=()
# Architecture 90a has Hopper's own instructions, which `native` does not include.
[[ $device == *", 9.0, "* ]] && options=(-DGATEFOLD_CUDA_ARCHITECTURES=90a)
mkdir -p build
cmake --preset gpu "${options[@]}" >build/gpu.log 2>&1 &&
  cmake --build --preset gpu --target "${programs[@]/#/cuda_bench_}" >>build/gpu.log 2>&1 ||
  { tail -n 20 build/gpu.log; exit 1; }
failed=0
run() {
  echo "== $*"
  "$@" || { echo "== failed: $*"; failed=1; }
}
for program in "${programs[@]}"; do run "build/gpu/bench/cuda/cuda_bench_$program" "$@"; done
if python3 -c "import torch" 2>/dev/null; then
  run python3 bench/peers/torch_moe_cuda.py "$@"
  python3 -c "import triton" 2>/dev/null && run python3 bench/peers/triton_moe_cuda.py "$@"
else
  echo "== no peers: python3 has no PyTorch"
fi
exit "$failed"
