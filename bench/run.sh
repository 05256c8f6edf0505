#!/usr/bin/env bash
# Builds and runs the benchmarks. Installs the Debian packages they need, after naming them. Writes only below build/.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/install_packages.sh"

usage() {
  cat <<END
usage: bash bench/run.sh [--quick | --full] [--only WORD] [--no-peers]
  --quick      few rounds of four programs, without the long rows: at most 2 minutes after the build
  --full       measure latencies for one minute each: 8 minutes longer
  --only WORD  one program (layer, gate, update, …), or the rows whose name matches the regular expression WORD
  --no-peers   do not install peers from PyPI into build/bench/venv, and do not build ggml
Results: build/bench/*.json, build/bench/*.png and the table build/bench/performance.md
END
}

quick="" only="" peers=1 limit=300
while (($#)); do
  case $1 in
    --quick) quick=1 ;;
    --full) export GATEFOLD_BENCH_FULL=1 limit=900 ;;
    --only) [[ -n ${2:-} ]] || { usage; exit 2; }; only=$2; shift ;;
    --no-peers) peers="" ;;
    --help | -h) usage; exit 0 ;;
    *) usage; exit 2 ;;
  esac
  shift
done

install_packages g++ cmake ninja-build libeigen3-dev libbenchmark-dev libdnnl2 libtbb-dev gnuplot-nox python3 \
  python3-venv || exit 1
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
cd "$root" || exit 1
out=$root/build/bench
mkdir -p "$out"
rm -f "$out"/*.json "$out"/*.png "$out"/*.dat

# The programs, in the order of the printed table, and a filter that selects their rows.
programs=(layer frozen bfloat16 quantised variant product expert gate routing update model memory language sampling
  decoder loss_optim threads server growth) filter=.
quantised_filter='olmoe/T:(1|16|512)/'  # a subset, because all rows take half an hour
[[ -n $quick ]] && programs=(layer variant gate update) filter='-H:2048/E:64|Attention'  # the - excludes rows
if [[ -n $only ]]; then
  limit=3600 quantised_filter=""
  if [[ -f bench/$only.cpp ]]; then programs=("$only"); else filter=$only; fi
fi

echo "== build"
cmake --preset release -DGATEFOLD_BUILD_BENCH=ON >build/release.log || { cat build/release.log; exit 1; }
cmake --build --preset release --target "${programs[@]/#/bench_}" || exit 1

# Installs libraries from PyPI, which the benchmarks open with dlopen at the paths in these environment variables.
if [[ -n $peers ]]; then
  venv=$out/venv
  echo "== peers from PyPI in build/bench/venv"
  if [[ ! -f $venv/done ]]; then
    if python3 -m venv "$venv" &&
      timeout 300 "$venv/bin/pip" install -q ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} \
      onednn mkl onnxruntime onnx &&
      timeout 300 "$venv/bin/pip" install -q --no-deps --prefix "$out/onednn_openmp" onednn-cpu-gomp
    then touch "$venv/done"; else echo "skipped: pip could not install them"; fi
  fi
  # This package is the last oneDNN on PyPI that multiplies bfloat16 without SYCL.
  export GATEFOLD_PEER_ONEDNN3_OPENMP=$out/onednn_openmp/lib/libdnnl.so.3
  export LD_LIBRARY_PATH=$venv/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

export PYTHONDONTWRITEBYTECODE=1
# Prints the first Python interpreter of this machine that can import the modules.
python_with() {  # MODULE[, MODULE]...
  local python
  for python in "$out/venv/bin/python3" python3 /usr/bin/python3; do
    "$python" -c "import $1" 2>/dev/null && command -v "$python" && return
  done
  return 1
}
# Sets the environment variables in which quantised.cpp finds its peers.
whole_layer_peers() {
  echo "== ggml in build/bench/ggml"
  bash bench/peers/ggml.sh || echo "skipped: ggml could not be downloaded or built"
  export GATEFOLD_PEER_GGML=$out/ggml/libggml_layer_native.so
  local python
  python=$(python_with torch) && export GATEFOLD_PEER_TORCH=$python || echo "peer torch: skipped, no python3 has torch"
  python=$(python_with "onnx, onnxruntime") && export GATEFOLD_PEER_ONNXRUNTIME=$python ||
    echo "peer onnxruntime: skipped, no python3 has onnxruntime"
}
[[ -n $peers && " ${programs[*]} " == *" quantised "* ]] && whole_layer_peers

echo "== run"
begin=$SECONDS failed=0
[[ -n $quick ]] && export GATEFOLD_BENCH_QUICK=1
for program in "${programs[@]}"; do
  rows=$filter
  [[ $program == quantised && -n $quantised_filter ]] && rows=$quantised_filter
  timeout "$limit" "build/release/bench/$program" --benchmark_filter="$rows" --benchmark_color=false \
    --benchmark_out="$out/$program.json" --benchmark_out_format=json 2>"$out/$program.log" |
    sed -uE 's,/iterations:[0-9]+/manual_time, ,' ||
      { ((++failed)); echo "$program FAILED"; tail -3 "$out/$program.log"; }
done

# Runs the benchmark of a library that has only a Python interface, with the interpreter of the virtual environment.
peer() {  # MODULE SCRIPT
  local python
  python=$(python_with "$1") || { echo "peer $2: skipped, no python3 here imports $1"; return; }
  timeout 200 "$python" "bench/peers/$2.py" "$out/peer_$2.json" ${quick:+--quick} || echo "peer $2 FAILED"
}
if [[ -z $only || layer_forward =~ $only || $only == layer ]]; then
  peer torch moe_torch
  peer onnxruntime moe_onnxruntime
fi
if [[ -z $only || language_train =~ $only || $only == language ]]; then peer torch language_torch; fi
if [[ -z $only || decoder_prefill =~ $only || $only == decoder ]]; then peer transformers decoder_torch; fi
[[ -z $only ]] && bash bench/compile_time.sh "$out/compile_time.json"

if python3 bench/table.py "$out" >"$out/performance.md"; then cat "$out/performance.md"; else ((++failed)); fi
ls "$out"/*.dat >/dev/null 2>&1 && (cd "$out" && gnuplot "$root/bench/growth.gp")
echo "benchmarks took $((SECONDS - begin)) s; table in build/bench/performance.md"
((failed == 0))
