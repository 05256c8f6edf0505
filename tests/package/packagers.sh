#!/usr/bin/env bash
# packagers.sh deb|fetch_content|conan WORK SOURCE COMPILER: uses gatefold through a Debian package (cpack), through
# CMake's FetchContent of a `git archive`, or through Conan (installed from PyPI into a virtual environment below WORK).
# Each variant builds and runs consumer.cpp.
set -euo pipefail
unset CXXFLAGS CPPFLAGS LDFLAGS
here=$(cd "$(dirname "$0")" && pwd)
way=$1 work=$2 source=$3 compiler=$4
rm -rf "$work"
mkdir -p "$work"
case $way in
  deb)
    cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler"
    (cd "$work/build" && cpack)
    dpkg-deb -x "$work"/build/libgatefold-dev_*_all.deb "$work/root"
    cmake -S "$here/project" -B "$work/consumer" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCOMPONENTS="io;data" \
      -DCMAKE_PREFIX_PATH="$work/root/usr"
    cmake --build "$work/consumer"
    "$work/consumer/consumer"
    ;;
  fetch_content)
    git -C "$source" archive --prefix=gatefold/ -o "$work/gatefold.tar.gz" HEAD
    cat >"$work/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(gatefold URL file://$work/gatefold.tar.gz DOWNLOAD_EXTRACT_TIMESTAMP ON)
FetchContent_MakeAvailable(gatefold)
add_executable(consumer $here/consumer.cpp)
target_link_libraries(consumer PRIVATE gatefold::gatefold)
END
    cmake -S "$work" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler"
    cmake --build "$work/build"
    "$work/build/consumer"
    ;;
  conan)
    python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q conan || { echo "no Conan from PyPI"; exit 77; }
    export CONAN_HOME=$work/home CXX=$compiler
    "$work/venv/bin/conan" profile detect
    mkdir -p "$work/tree/cmake" "$work/tree/tests"  # a copy, because Conan builds in the folder of its recipe
    cp -r "$source/cmake/conan" "$work/tree/cmake/"
    cp -r "$source/include" "$source/LICENSE" "$work/tree/"
    cp -r "$here" "$work/tree/tests/"
    "$work/venv/bin/conan" create "$work/tree/cmake/conan"
    ;;
  *) echo "unknown way $way"; exit 2 ;;
esac
