#!/usr/bin/env bash
# platforms.sh: compiles examples and tests with compilers, standard libraries and systems that the other tests do not
# use, and runs the programs that can run here. `bash tests/run.sh --platforms` calls it and installs the compilers. A
# second call continues an interrupted one: finished programs are kept in build/platforms/ until a source changes.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$root/build/platforms
mkdir -p "$work/bin"
failed=0

# 1. The programs of one file, by newer clang, libc++ and mingw-w64.
programs=(quickstart first_layer papers serving metrics own_gate own_rule own_carry own_branch own_loss own_optimizer
          own_expert own_selection own_extra own_data written_out)
ln -sfn /usr/include/nlohmann "$work/nlohmann"  # not /usr/include, which also has the headers of this system

# platform NAME WHETHER-IT-RUNS-HERE COMPILER OPTION...
platform() {
  local name=$1 runs=$2 program count=0 begin=$SECONDS out
  shift 2
  command -v "$1" >/dev/null || { echo "$name: $1 is not installed"; failed=1; return; }
  mkdir -p "$work/$name"
  for program in "${programs[@]}"; do
    out=$work/$name/$program
    if [[ -e $out.done &&
      -z $(find "$root/include" "$root/examples/$program.cpp" -newer "$out.done" -print -quit) ]]; then
      ((++count))
    elif ! "$@" -std=c++20 -O1 -Wall -Wextra -Werror -I"$root/include" -isystem /usr/include/eigen3 -isystem "$work" \
      "$root/examples/$program.cpp" -o "$out" 2>"$out.log"; then
      echo "$name: $program does not compile:"; grep -m 3 -E "error|undefined" "$out.log"; failed=1
    elif [[ $runs == yes ]] && ! (cd "$work" && "$out" >/dev/null 2>"$out.log"); then
      echo "$name: $program fails: $(tail -n 1 "$out.log")"; failed=1
    else
      touch "$out.done"
      rm -f "$out" "$out.exe"
      ((++count))
    fi
  done
  echo "$name: $count of ${#programs[@]} programs ($("$1" -dumpversion)), $((SECONDS - begin)) s"
}

# 2. All examples whose libraries are headers, and the tests of core, tensor and backend/cpu, by the clang, libc++ and C
# libraries of PyPI's ziglang, which compiles those libraries once for each system.
export ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig
export WINEPREFIX=$work/wine WINEDEBUG=-all
[[ -x $work/python/bin/python ]] || python3 -m venv "$work/python" || exit 1
zig=$("$work/python/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__) + "/zig")' 2>/dev/null)
if [[ -z $zig ]]; then
  "$work/python/bin/python" -m pip install -q ziglang==0.17.1 || exit 1
  zig=$("$work/python/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__) + "/zig")')
fi
# The headers of libraries without those of this system's C library, which are next to them in /usr/include.
for package in libeigen3-dev nlohmann-json3-dev libcli11-dev doctest-dev; do
  mkdir -p "$work/prefix"
  dpkg -L "$package" | grep -E '^/usr/(include|share|lib)/.*\.(hpp|h|cmake)$|/Eigen/|/unsupported/' |
    while read -r file; do [[ -f $file ]] && echo "$file"; done | xargs cp -u --parents -t "$work/prefix"
done
for tool in ar ranlib; do printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" "$tool" >"$work/bin/$tool"; done

# -Wno-c2y-extensions: newer versions of clang warn about __COUNTER__ in doctest.
# system TARGET CMAKE_SYSTEM_NAME WHETHER-IT-RUNS-HERE EMULATOR [CMAKE_OPTION...]
system() {
  local target=$1 name=$2 runs=$3 emulator=$4 begin=$SECONDS build=$work/$1 state=compiled
  shift 4
  printf '#!/bin/sh\nexec "%s" c++ -target %s "$@" -Wno-c2y-extensions\n' "$zig" "$target" >"$work/bin/$target-c++"
  chmod +x "$work/bin/"*
  if ! cmake -S "$root" -B "$build" --preset platform -DCMAKE_SYSTEM_NAME="$name" \
    -DCMAKE_SYSTEM_PROCESSOR="${target%%-*}" -DCMAKE_CXX_COMPILER="$work/bin/$target-c++" -DCMAKE_AR="$work/bin/ar" \
    -DCMAKE_RANLIB="$work/bin/ranlib" -DCMAKE_RC_COMPILER=x86_64-w64-mingw32-windres \
    -DCMAKE_PREFIX_PATH="$work/prefix/usr" -DCMAKE_CROSSCOMPILING_EMULATOR="$emulator" "$@" \
    >"$work/$target.log" 2>&1; then
    echo "$target: configure FAILED"; tail -n 20 "$work/$target.log"; failed=1
    return
  fi
  if ! nice cmake --build "$build" -j 1 -- -k 0 >"$work/$target.log" 2>&1; then
    echo "$target: build FAILED:"; grep -E "error|undefined|^FAILED" "$work/$target.log" | head -n 20; failed=1
    return
  fi
  if [[ $runs == yes ]]; then
    # Leaves out scripts that start a program, because they do not start it with the emulator.
    local scripts=()
    [[ -z $emulator ]] || scripts=(-E '^examples/(same_output/|studies/[^/]+$|studies/mot/router_rates)')
    if ctest --test-dir "$build" --output-on-failure --timeout 3600 "${scripts[@]}" >"$work/$target.log" 2>&1; then
      state="compiled and run, $(grep -o 'out of [0-9]*' "$work/$target.log" | tail -n 1 | grep -o '[0-9]*') tests"
    else
      echo "$target: tests FAILED:"; sed -n '/The following tests FAILED/,$p' "$work/$target.log"; failed=1
      return
    fi
  fi
  echo "$target: $state, $((SECONDS - begin)) s"
}

platform "clang 22" yes clang++-22 -march=native
platform "clang 19, libc++" yes clang++-19 -stdlib=libc++ -march=native
platform "Windows by mingw-w64" no x86_64-w64-mingw32-g++-posix -static
system x86_64-linux-musl Linux yes ""
system aarch64-linux-musl Linux yes qemu-aarch64
# Left out for Windows, because they call POSIX themselves: tests of sockets, processes and limits, and programs of
# studies, which read the size of a terminal.
left_out='^backend/[^/]+$|^core/(config|regular_file)_test|^backend/cpu/(affinity|process|thread_pool)_test'
system x86_64-windows-gnu Windows yes /usr/lib/wine/wine64 -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON \
  "-DGATEFOLD_TESTS_LEFT_OUT=$left_out"
system aarch64-macos Darwin no ""
system x86_64-macos Darwin no ""
exit $failed
