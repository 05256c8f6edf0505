#!/usr/bin/env bash
# Build and run the Fashion-MNIST example: bash examples/run.sh [OPTION of the example]...
# Installs the Debian packages it needs, after naming them; builds in build/release.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/install_packages.sh"

# libgomp, the OpenMP run time, comes with g++.
install_packages g++ cmake ninja-build libeigen3-dev zlib1g-dev nlohmann-json3-dev libcli11-dev gnuplot-nox \
  dataset-fashion-mnist
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
(
  cd "$root"
  mkdir -p build
  cmake --preset release >build/release.log || { cat build/release.log; exit 1; }
  cmake --build --preset release --target fashion_mnist
)
exec "$root/build/release/examples/fashion_mnist" "$@"
