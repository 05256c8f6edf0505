#!/usr/bin/env bash
# consume.sh install BUILD PREFIX
# consume.sh find_package|add_subdirectory|pkg_config WORK SOURCE PREFIX COMPILER [COMPONENTS]
set -euo pipefail
unset CXXFLAGS CPPFLAGS LDFLAGS CUDAFLAGS
here=$(cd "$(dirname "$0")" && pwd)
way=$1 work=$2

# The consumer has not set any flag, so gatefold may add only include directories and the language standard. The
# consumer compiles only its own file, and none of our tests or examples.
check_flags() {
  local commands words word
  commands=$(sed -n 's/^ *"command": "\(.*\)",\{0,1\}$/\1/p' "$work/compile_commands.json")
  (($(wc -l <<<"$commands") == 1)) || { echo "expected only the consumer, got:"; echo "$commands"; exit 1; }
  read -ra words <<<"${commands//'\"'/}"  # newer CMake quotes words with brackets
  set -- "${words[@]:1}"
  while (($#)); do
    word=$1
    shift
    case $word in
      -isystem | -I | -o | -c | -x) shift ;;
      -isystem=* | -I* | -std=*) ;;
      -forward-unknown-to-host-compiler | --generate-code=* | -ccbin=*) ;;  # CMake adds these for nvcc
      *) echo "unexpected flag '$word' in: $commands"; exit 1 ;;
    esac
  done
}

if [[ $way == install ]]; then
  rm -rf "$3"
  exec cmake --install "$work" --prefix "$3"
fi

source=$3 prefix=$4 compiler=$5 components=${6:-}
rm -rf "$work"
mkdir -p "$work"
case $way in
  find_package) from=(-DCMAKE_PREFIX_PATH="$prefix") ;;
  add_subdirectory) from=(-DGATEFOLD_SUBDIRECTORY="$source") ;;
  pkg_config)
    export PKG_CONFIG_PATH=$prefix/share/pkgconfig
    read -ra flags <<<"$(pkg-config --cflags --libs "gatefold = 0.1.0")"
    "$compiler" -std=c++20 "$here/consumer.cpp" "${flags[@]}" -o "$work/consumer"
    exec "$work/consumer"
    ;;
esac
cmake -S "$here/project" -B "$work" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  -DCOMPONENTS="$components" "${from[@]}"
check_flags
cmake --build "$work"
"$work/consumer"
