#!/usr/bin/env bash
# provided.sh WORK SOURCE EIGEN JSON COMPILER: builds gatefold in projects that provide Eigen, nlohmann-json and the
# other dependencies as CMake targets (provided/CMakeLists.txt). Packages of these libraries on this machine are hidden.
# EIGEN and JSON are folders of headers.
set -euo pipefail
unset CXXFLAGS CPPFLAGS LDFLAGS
here=$(cd "$(dirname "$0")" && pwd)
work=$1 source=$2 eigen=$3 json=$4 compiler=$5
rm -rf "$work"
mkdir -p "$work"
hidden=$(find /usr/share /usr/lib /usr/local -name Eigen3Config.cmake -printf '%h;' -o \
  -name nlohmann_jsonConfig.cmake -printf '%h;' 2>/dev/null)

# publish NAME TARGET ALIAS FOLDER SUBFOLDER: makes a project as libraries publish it, with headers and a CMakeLists.txt
# that installs nothing.
publish() {
  mkdir "$work/$1"
  cat >"$work/$1/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.10)
project($1 LANGUAGES CXX)
add_library($2 INTERFACE)
add_library($3 ALIAS $2)
target_include_directories($2 INTERFACE
  \$<BUILD_INTERFACE:\${CMAKE_CURRENT_SOURCE_DIR}> \$<INSTALL_INTERFACE:include>)
END
  ln -s "$4/$5" "$work/$1/$5"
}
publish Eigen3 eigen Eigen3::Eigen "$eigen" Eigen
publish nlohmann_json nlohmann_json nlohmann_json::nlohmann_json "$json" nlohmann

# configure NAME OPTION...: writes its output to NAME.log.
configure() {
  local name=$1
  shift
  cmake -S "$here/provided" -B "$work/$name" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_IGNORE_PATH="$hidden" \
    -DGATEFOLD_CUDA=OFF "$@" >"$work/$name.log" 2>&1
}
succeeds() {
  echo "$1"
  configure "$@" || { cat "$work/$1.log"; exit 1; }
}
# fails NAME SENTENCE OPTION...: checks that configuring fails with a message that contains SENTENCE.
fails() {
  local name=$1 sentence=$2
  echo "$name"
  shift 2
  ! configure "$name" "$@" || { echo "FAILED: $name is configured"; exit 1; }
  tr -s '\n ' ' ' <"$work/$name.log" | grep -q "$sentence" ||
    { cat "$work/$name.log"; echo "FAILED: expected: $sentence"; exit 1; }
}
# sets NAME CONFIGURATION FLAGS...: checks that gatefold::kernels is built exactly for the instruction sets of the
# FLAGS.
sets() {
  local file=$work/$1/sets_$2 expected="" flags words set
  shift 2
  for flags; do
    read -ra words <<<"$flags"
    set=$(printf '#include <gatefold/backend/cpu/instruction_set.hpp>\nGATEFOLD_CPU_ABI\n' |
      "$compiler" -std=c++20 "${words[@]}" -I"$source/include" -isystem "$eigen" -x c++ -E -P - | tail -n 1)
    [[ " $expected " == *" $set "* ]] || expected+="${expected:+ }$set"
  done
  grep -q "GATEFOLD_KERNELS=\" $expected \"" "$file" || { cat "$file"; echo "FAILED: expected $expected"; exit 1; }
}
sources=(-DFETCHCONTENT_SOURCE_DIR_EIGEN3="$work/Eigen3" -DFETCHCONTENT_SOURCE_DIR_NLOHMANN_JSON="$work/nlohmann_json")
folders=(-DEIGEN="$eigen" -DJSON="$json")

without=()
for package in ZLIB MPI Threads; do without+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON"); done

succeeds fetched -G Ninja -DWAY=fetched "${sources[@]}" "${without[@]:0:2}" -DSOURCE="$source" \
  "-DCOMPONENTS=io;kernels" "-DGATEFOLD_KERNELS_FOR=x86-64-v3;no-such-processor" -DCMAKE_BUILD_TYPE=Debug \
  -DGATEFOLD_INSTALL=ON
sets fetched Debug -march=x86-64-v3 ""
cmake --build "$work/fetched"
cmake --install "$work/fetched" --prefix "$work/prefix" >/dev/null

succeeds overridden -G Ninja -DWAY=overridden "${sources[@]}" "${without[@]:0:2}" -DSOURCE="$source" \
  "-DCOMPONENTS=io;kernels" -DGATEFOLD_KERNELS_FOR= -DOPTIONS=-march=x86-64-v3
sets overridden "" -march=x86-64-v3

succeeds imported -G "Ninja Multi-Config" "-DCMAKE_CONFIGURATION_TYPES=Debug;Release" -DWAY=imported "${folders[@]}" \
  "${without[@]}" -DSOURCE="$source" "-DCOMPONENTS=io;data;mpi;kernels" -DGATEFOLD_KERNELS_FOR= \
  -DCMAKE_CXX_FLAGS_RELEASE=-march=x86-64-v3
sets imported Debug ""
sets imported Release -march=x86-64-v3

succeeds installed -G Ninja -DWAY=imported "${folders[@]}" "${without[@]}" -DCMAKE_PREFIX_PATH="$work/prefix" \
  "-DCOMPONENTS=io;kernels" -DGATEFOLD_KERNELS_FOR=x86-64-v3 -DCMAKE_BUILD_TYPE=Release
sets installed Release -march=x86-64-v3 ""

# Without an instruction set, there is no gatefold::kernels. A project that does not link it must still configure.
sentence="gatefold::kernels: expected an instruction set that the compiler accepts, found none; see "
succeeds no_kernels -G Ninja -DWAY=broken "${without[@]:0:2}" -DSOURCE="$source"
grep -q "$sentence" "$work/no_kernels.log"
fails kernels_linked "$sentence.*gatefold::kernels.*but the target was not found" -G Ninja -DWAY=broken \
  "${without[@]:0:2}" -DSOURCE="$source" -DLINK=gatefold::kernels
fails kernels_found "$sentence" -G Ninja -DWAY=broken -DCMAKE_PREFIX_PATH="$work/prefix" -DCOMPONENTS=kernels
