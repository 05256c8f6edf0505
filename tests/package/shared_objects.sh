#!/usr/bin/env bash
# shared_objects.sh SOURCE WORK EIGEN COMPILER...: builds a program with two shared objects that both contain gatefold
# and hide all names except their interface (-fvisibility=hidden). Exception types, type identities and counters must
# have one definition in the process. clang++ uses libc++ here, which compares addresses of type descriptions; libstdc++
# compares names.
set -euo pipefail
source=$1 work=$2 eigen=$3
shift 3
rm -rf "$work"
mkdir -p "$work"
for compiler; do
  flags=(-std=c++20 -O0 -fvisibility=hidden -fvisibility-inlines-hidden -I"$source/include" -isystem "$eigen" -pthread)
  if [[ $("$compiler" --version) == *clang* ]]; then
    flags+=(-stdlib=libc++)
    "$compiler" "${flags[@]}" -fsyntax-only -include stdexcept -x c++ - </dev/null 2>/dev/null ||
      { echo "$compiler has no libc++ (Debian: libc++-14-dev, libc++abi-14-dev)"; exit 77; }
  fi
  for library in thrower catcher; do
    "$compiler" "${flags[@]}" -fPIC -shared "$source/tests/package/shared_objects/$library.cpp" \
      -o "$work/lib$library.so"
  done
  "$compiler" "${flags[@]}" "$source/tests/package/shared_objects/main.cpp" "$work/libcatcher.so" \
    "$work/libthrower.so" -Wl,-rpath,"$work" -o "$work/main"
  "$work/main" || { echo "$compiler: $? expectations failed"; exit 1; }
done
