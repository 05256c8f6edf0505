#!/usr/bin/env bash
# by_clang.sh WORD... instead_of COMPILER ARGUMENT...: runs WORD... ARGUMENT...
# CMake has one compiler per language. This script is the compiler launcher, which gets the whole command line.
words=()
while [[ $1 != instead_of ]]; do
  words+=("$1")
  shift
done
# Otherwise the compiler would read an old precompiled header instead of the header that it was made from.
for argument in "${@:3}"; do [[ $argument != *.gch ]] || rm -f "$argument"; done
exec "${words[@]}" "${@:3}"
