#!/usr/bin/env bash
# readme.sh SOURCE WORK: runs the commands of README.md that install gatefold and use it, word for word except for the
# prefix. Runs them without visible GPUs: on this machine as it is, and, if it has a CUDA toolkit, with examples and
# benchmarks and once more without the toolkit.
set -euo pipefail
unset CXXFLAGS CPPFLAGS LDFLAGS CUDAFLAGS CMAKE_GENERATOR CMAKE_TOOLCHAIN_FILE
here=$(cd "$(dirname "$0")" && pwd)
source=$1 work=$2
export CUDA_VISIBLE_DEVICES=""

# block LANGUAGE WORD: prints the first block of that language that contains WORD.
block() {
  awk -v begin="\`\`\`$1" -v word="$2" '
    $0 == begin { inside = 1; text = ""; next }
    inside && $0 == "```" { if (index(text, word)) { printf "%s", text; found = 1; exit } inside = 0 }
    inside { text = text $0 "\n" }
    END { exit !found }' "$source/README.md" || { echo "README.md has no block of $1 with $2" >&2; return 1; }
}
install=$(block sh "cmake --install")
consume=$(block cmake "find_package(gatefold")
without_cmake=$(grep -oE '`g\+\+ [^`]*pkg-config --cflags gatefold[^`]*`' "$source/README.md")
[[ $install == *" -DCMAKE_INSTALL_PREFIX=/where/you/like"* && $without_cmake == *" app.cpp"* ]]

# The commands build in a folder of the source, so they run in a copy of the source. The prefix is next to the copy.
rm -rf "$work"
mkdir -p "$work/tree" "$work/app"
for entry in CMakeLists.txt bench cmake examples include tests; do cp -r "$source/$entry" "$work/tree/"; done
run_lines() {
  (cd "$work/tree" && exec bash -ec "${install//\/where\/you\/like/$work/prefix}") >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
}

echo "installing with the packages of this machine"
run_lines
[[ -f $work/prefix/include/gatefold/gatefold.hpp && -f $work/prefix/share/cmake/gatefold/gatefoldConfig.cmake ]]

echo "a program that uses gatefold with CMake, and one without CMake"
cp "$here/consumer.cpp" "$work/app/app.cpp"
printf '%s\n' "cmake_minimum_required(VERSION 3.25)" "project(app LANGUAGES CXX)" "add_executable(app app.cpp)" \
  "$consume" >"$work/app/CMakeLists.txt"
cmake -S "$work/app" -B "$work/app/build" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
without_cmake=${without_cmake//\`/}
(cd "$work/app" && PKG_CONFIG_PATH=$work/prefix/share/pkgconfig bash -ec "$without_cmake; ./a.out")

if [[ ! -f $work/prefix/include/gatefold/gatefold.cuh ]]; then
  echo "no CUDA toolkit, so the checks with CUDA do not run"
  exit
fi
echo "configuring examples and benchmarks for CUDA without a visible GPU"
cmake -S "$work/tree" -B "$work/tree/build/all" -DGATEFOLD_BUILD_EXAMPLES=ON -DGATEFOLD_BUILD_BENCH=ON \
  >"$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
echo "installing without a CUDA toolkit"
rm -rf "$work/prefix" "$work/tree/build"
echo "set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)" >"$work/no_cuda.cmake"
CMAKE_TOOLCHAIN_FILE=$work/no_cuda.cmake PATH=$(tr ':' '\n' <<<"$PATH" | grep -v cuda | paste -sd:) run_lines
[[ -f $work/prefix/include/gatefold/gatefold.hpp && ! -e $work/prefix/include/gatefold/gatefold.cuh ]]
