#!/usr/bin/env bash
# test.sh PROGRAM: checks the variants of PROGRAM for instruction sets. Variants that this machine can run, according to
# its dynamic loader, compute the same up to rounding, and the newest of them is the default. Other variants are refused
# with one line and exit code 2.
set -u
program=$1 failed=0 best="" first=""
fail() { echo "FAILED: $*"; failed=1; }
loader=$(/lib64/ld-linux-x86-64.so.2 --help)
[[ $loader == *x86-64-v2* ]] || { echo "skipped: the dynamic loader lists no x86-64 levels"; exit 77; }

for variant in v2 v3 v4 v5; do
  out=$("$program" --variant $variant 2>&1)
  code=$?
  if [[ $loader == *"x86-64-$variant (supported"* ]]; then
    best=$out loss=${out#"x86-64-$variant: loss "}
    [[ $code -eq 0 && $loss =~ ^0\.[0-9]{6}$ ]] || fail "$variant: $code, $out"
    difference=$((10#${loss#0.} - 10#${first:=${loss#0.}}))
    ((${difference#-} <= 20)) || fail "$variant: loss $loss, the first variant's 0.$first"
  elif [[ $code -ne 2 || ! $out =~ ^variants:\ .*$variant[^$'\n']*$ ]]; then
    fail "$variant: $code, $out"
  fi
done
[[ -n $best && $("$program") == "$best" ]] || fail "the default is not the newest variant: $("$program")"
"$program" --quick >/dev/null 2>&1
[[ $? -eq 2 ]] || fail "an unknown option is accepted"
echo "$best"
exit $failed
