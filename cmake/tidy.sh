#!/usr/bin/env bash
# tidy.sh --format | --check-format | --lint: format the C++ and CUDA files, check their format, or run clang-tidy.
# The CMake targets `format` and `lint` run --format and --lint. Installs clang-format and clang-tidy if needed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/install_packages.sh"
cd "$root"
case ${1:-} in
  --format | --check-format)
    install_packages clang-format
    mapfile -t files < <(git ls-files '*.hpp' '*.cpp' '*.cuh' '*.cu' | grep -v '/fixtures/')
    if [[ $1 == --format ]]; then
      clang-format -i "${files[@]}"
    else
      clang-format --dry-run --Werror "${files[@]}"
    fi
    ;;
  --lint)
    install_packages clang-tidy libeigen3-dev nlohmann-json3-dev zlib1g-dev
    mkdir -p build
    # One file includes all headers, so that clang-tidy reads each of them once. WarningsAsErrors is set in .clang-tidy.
    for header in gatefold io data distributed check papers; do
      echo "#include <gatefold/$header.hpp>"
    done >build/lint.cpp
    clang-tidy --quiet build/lint.cpp -- -std=c++20 -Iinclude -isystem /usr/include/eigen3
    ;;
  *)
    echo "usage: bash cmake/tidy.sh --format | --check-format | --lint" >&2
    exit 2
    ;;
esac
