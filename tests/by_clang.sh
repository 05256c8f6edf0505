#!/usr/bin/env bash
# by_clang.sh WORD... instead_of COMPILER ARGUMENT...: WORD... ARGUMENT...
# CMake has one compiler for a language, and hands what it would start to a launcher.
words=()
while [[ $1 != instead_of ]]; do
  words+=("$1")
  shift
done
# An old precompiled header would be read in place of the header that it is made from.
for argument in "${@:3}"; do [[ $argument != *.gch ]] || rm -f "$argument"; done
exec "${words[@]}" "${@:3}"
