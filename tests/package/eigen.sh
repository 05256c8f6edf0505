#!/usr/bin/env bash
# eigen.sh versions WORK SOURCE COMPILER: checks that CMake finds the first of several Eigen packages whose version is
# 3.4 or 5.
# eigen.sh 5 WORK SOURCE COMPILER QUICKSTART: checks gatefold with Eigen 5.0.1, which pip downloads from PyPI. Installs
# gatefold, finds it with CMake and pkg-config, and runs some tests of the CPU backend. The program of README.md must
# print the same as QUICKSTART, the program built with this machine's Eigen. Exits with 77 if there is no network.
set -euo pipefail
unset CXXFLAGS CPPFLAGS LDFLAGS
here=$(cd "$(dirname "$0")" && pwd)
way=$1 work=$2 source=$3 compiler=$4 quickstart=${5:-}
rm -rf "$work"
mkdir -p "$work"
hidden=$(find /usr/share /usr/lib /usr/local -name Eigen3Config.cmake -printf '%h;' 2>/dev/null)

# package VERSION [HEADERS]: makes an installed Eigen in WORK/VERSION. Its version file accepts the same versions as
# Eigen's.
package() {
  local prefix=$work/$1 folder=$work/$1/share/eigen3/cmake
  mkdir -p "$folder" "$prefix/include" "$prefix/share/pkgconfig"
  [[ -z ${2:-} ]] || ln -s "$2" "$prefix/include/eigen3"
  cat >"$folder/Eigen3Config.cmake" <<END
if(NOT TARGET Eigen3::Eigen)
  add_library(Eigen3::Eigen INTERFACE IMPORTED)
  set_target_properties(Eigen3::Eigen PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "$prefix/include/eigen3")
endif()
END
  cat >"$work/version.cmake" <<END
include(CMakePackageConfigHelpers)
write_basic_package_version_file($folder/Eigen3ConfigVersion.cmake VERSION $1 COMPATIBILITY SameMajorVersion
                                 ARCH_INDEPENDENT)
END
  cmake -P "$work/version.cmake"
  printf '%s\n' "Name: Eigen3" "Description: Eigen" "Version: $1" "Cflags: -I$prefix/include/eigen3" \
    >"$prefix/share/pkgconfig/eigen3.pc"
}

# found EXPECTED OPTION...: EXPECTED is a version, or a regular expression for the error message if no version fits.
found() {
  local expected=$1 got
  shift
  rm -rf "$work/build"
  cmake -S "$work/project" -B "$work/build" -DCMAKE_IGNORE_PATH="$hidden" "$@" >"$work/log" 2>&1
  got=$(sed -n 's/^-- found: //p' "$work/log")
  [[ $got =~ ^$expected$ ]] || { cat "$work/log"; echo "FAILED: $*: expected $expected, got $got"; exit 1; }
}
if [[ $way == versions ]]; then
  for version in 3.3.9 3.4.0 5.0.1 6.0.0; do package "$version"; done
  mkdir "$work/project"
  cat >"$work/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(found LANGUAGES NONE)
include($source/cmake/gatefold_dependencies.cmake)
gatefold_find_eigen(reason)
if(reason)
  message(STATUS "found: \${reason}")
else()
  get_target_property(folder Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
  string(REGEX REPLACE ".*/([0-9.]+)/include/eigen3" "\\\\1" folder \${folder})
  message(STATUS "found: \${folder}")
endif()
END
  found 3.4.0 -DCMAKE_PREFIX_PATH="$work/3.4.0;$work/5.0.1"
  found 5.0.1 -DCMAKE_PREFIX_PATH="$work/5.0.1;$work/3.4.0"
  found 5.0.1 -DCMAKE_PREFIX_PATH="$work/3.3.9;$work/6.0.0;$work/5.0.1;$work/3.4.0"
  found 5.0.1 -DCMAKE_PREFIX_PATH="$work/3.4.0" -DEigen3_DIR="$work/5.0.1/share/eigen3/cmake"
  found 5.0.1 -DCMAKE_PREFIX_PATH="$work/5.0.1" -DCMAKE_REQUIRE_FIND_PACKAGE_Eigen3=ON
  found "gatefold: Eigen: expected version 3\.4 or 5, found 3\.3\.9 .*, found 6\.0\.0 .*; install it .*" \
    -DCMAKE_PREFIX_PATH="$work/3.3.9;$work/6.0.0"
  found "gatefold: Eigen: expected version 3\.4 or 5, found none; install it .*"

  echo "headers of Eigen 3.3 without CMake"
  mkdir -p "$work/include/Eigen"
  printf '#define EIGEN_VERSION_AT_LEAST(x, y, z) ((x) < 3 || ((x) == 3 && (y) <= 3))\n' >"$work/include/Eigen/Core"
  ! "$compiler" -std=c++20 -I"$source/include" -isystem "$work/include" -fsyntax-only "$here/consumer.cpp" 2>"$work/log"
  head -n 5 "$work/log" | grep -q "gatefold: Eigen: expected version 3.4 or 5, got an older one" ||
    { head "$work/log"; exit 1; }
  exit
fi

# Any wheel will do, for example that for Python 3.11, because all contain the same headers.
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux2014_x86_64 \
  --dest "$work" eigency==5.0.1.1 ||
  { echo "skipped: pip did not download Eigen 5 (eigency 5.0.1.1) from PyPI"; exit 77; }
python3 -m zipfile -e "$work"/eigency-*.whl "$work/wheel"
eigen=$work/wheel/eigency/eigen
grep -q 'EIGEN_VERSION_STRING "5.0.1"' "$eigen/Eigen/Version"
package 5.0.1 "$eigen"

echo "installed and found by CMake: the program of README.md"
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$work/5.0.1" \
  -DGATEFOLD_CUDA=OFF -DGATEFOLD_KERNELS_FOR= -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON >"$work/log" ||
  { cat "$work/log"; exit 1; }
grep -q "^Eigen3_DIR:.*=$work/5.0.1/" "$work/build/CMakeCache.txt"
cmake --install "$work/build" --prefix "$work/prefix" >/dev/null
mkdir "$work/app"
cat >"$work/app/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(app LANGUAGES CXX)
find_package(gatefold REQUIRED COMPONENTS kernels)
add_executable(app $source/examples/quickstart.cpp)
target_link_libraries(app PRIVATE gatefold::gatefold)
add_executable(tests tests.cpp)
target_link_libraries(tests PRIVATE gatefold::gatefold)
target_include_directories(tests PRIVATE $source/tests)
target_compile_options(tests PRIVATE -O0)
END
printf '#include "main.cpp"\n' >"$work/app/tests.cpp"
for test in packet register register_access tile pack instruction_set; do
  printf '#include "backend/cpu/%s_test.cpp"\n' "$test"
done >>"$work/app/tests.cpp"
echo '#include "papers/eigenvalues_test.cpp"' >>"$work/app/tests.cpp"
cmake -S "$work/app" -B "$work/app/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DGATEFOLD_KERNELS_FOR= \
  -DCMAKE_PREFIX_PATH="$work/5.0.1;$work/prefix" -DCMAKE_BUILD_TYPE=None \
  -DCMAKE_CXX_FLAGS="-O1 -march=native -Wall -Wextra -Werror" >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/app/build"
"$work/app/build/app" | tee "$work/losses"
diff "$work/losses" <("$quickstart")
"$work/app/build/tests" | tee "$work/log"
grep -q "test cases: *[1-9]" "$work/log"

echo "by pkg-config"
flags=$(PKG_CONFIG_PATH=$work/prefix/share/pkgconfig:$work/5.0.1/share/pkgconfig pkg-config --cflags gatefold)
[[ $flags == *"-I$work/5.0.1/include/eigen3"* ]]
