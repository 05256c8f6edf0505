#!/usr/bin/env bash
# same_output.sh PROGRAM...: checks that all programs print the same text, with 1 thread and with 2 threads.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for program; do
  for threads in 1 2; do
    OMP_NUM_THREADS=$threads "$program" >"$dir/out" || { echo "FAILED: $program: exit code $?"; exit 1; }
    [ -s "$dir/out" ] || { echo "FAILED: $program printed nothing"; exit 1; }
    [ -e "$dir/first" ] || cp "$dir/out" "$dir/first"
    diff "$dir/first" "$dir/out" || { echo "FAILED: $program: the output on $threads threads differs"; exit 1; }
  done
done
cat "$dir/first"
