#!/usr/bin/env bash
# Build and run an example: bash examples/run.sh [fashion_mnist | compose] [OPTION of the example]...
# fashion_mnist trains a classifier; compose prints a table of all gates and update rules.
# Installs the Debian packages it needs, after naming them; builds in build/release.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/install_packages.sh"

program=fashion_mnist
case ${1:-} in
  fashion_mnist | compose) program=$1; shift ;;
esac

# libgomp, the OpenMP run time, comes with g++.
install_packages g++ cmake ninja-build libeigen3-dev zlib1g-dev nlohmann-json3-dev libcli11-dev gnuplot-nox \
  dataset-fashion-mnist
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
(
  cd "$root"
  mkdir -p build
  cmake --preset release >build/release.log || { cat build/release.log; exit 1; }
  cmake --build --preset release --target "$program"
)
exec "$root/build/release/examples/$program" "$@"
