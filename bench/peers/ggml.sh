#!/usr/bin/env bash
# Builds the CPU backend of ggml and bench/peers/ggml_layer.cpp into build/bench/ggml/libggml_layer_<ISA>.so, which
# bench/quantised.cpp loads. The sources of ggml come from PyPI (llama-cpp-python); a second call builds nothing.
#
# usage: bash bench/peers/ggml.sh [native|v3]...    v3: without AVX-512, for x86-64-v3
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=0.3.36 sources=$root/bench/peers
out=$root/build/bench/ggml tree=$out/llama_cpp_python-$version/vendor/llama.cpp/ggml
mkdir -p "$out"
cd "$out"

if [[ ! -d $tree ]]; then
  [[ -f llama_cpp_python-$version.tar.gz ]] ||
    timeout 300 python3 -m pip download -q --no-deps --no-binary :all: \
      ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} "llama-cpp-python==$version"
  tar xzf "llama_cpp_python-$version.tar.gz" "llama_cpp_python-$version/vendor/llama.cpp/ggml"
  touch "$tree/ggml.pc.in"  # PyPI's sources lack this file, and CMake needs it
fi
for isa in "${@:-native}"; do
  library=libggml_layer_$isa.so
  [[ $library -nt $sources/ggml_layer.cpp ]] && continue
  case $isa in
    native) cmake_options=(-DGGML_NATIVE=ON) flags=(-march=native) ;;
    v3)
      cmake_options=(-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON -DGGML_FMA=ON
        -DGGML_F16C=ON)
      flags=(-march=x86-64-v3)
      ;;
    *) echo "ggml.sh: expected native or v3, got $isa" >&2; exit 2 ;;
  esac
  # The options of llama.cpp's own build, as static libraries. Static libraries keep two builds of ggml apart.
  cmake -S "$tree" -B "$isa" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_LLAMAFILE=ON \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF "${cmake_options[@]}" \
    >"$isa.log" 2>&1 || { tail -5 "$isa.log"; exit 1; }
  cmake --build "$isa" ${GATEFOLD_BUILD_JOBS:+-j"$GATEFOLD_BUILD_JOBS"} >>"$isa.log" 2>&1 ||
    { tail -5 "$isa.log"; exit 1; }
  g++ -std=c++17 -O2 "${flags[@]}" -Wall -Wextra -shared -fPIC -fvisibility=hidden -I"$tree/include" \
    "$sources/ggml_layer.cpp" -Wl,--exclude-libs,ALL -Wl,--start-group "$isa"/src/*.a -Wl,--end-group -fopenmp \
    -lpthread -ldl -o "$library"
done
