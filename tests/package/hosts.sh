#!/usr/bin/env bash
# hosts.sh SOURCE WORK COMPILER...: compiles the headers after macros of other headers (<complex.h> under gnu++20
# defines I; <windows.h> defines near and far), without vector instructions, and in a program that traps divisions by
# zero and prints numbers with its own locale.
set -euo pipefail
source=$1 work=$2
shift 2
rm -rf "$work"
mkdir -p "$work"
# program COMPILER FLAG...
program() {
  "$@" -I"$source/include" -isystem /usr/include/eigen3 -pthread "$source/tests/package/hosts.cpp" -o "$work/hosts"
  "$work/hosts"
}
# One program for each compiler: each set of flags is compiled by one of them.
program "$1" -std=gnu++20 -Dnear= -Dfar= -DEIGEN_MAX_ALIGN_BYTES=0
program "${*: -1}" -std=c++20 -funsigned-char -DEIGEN_DONT_VECTORIZE
