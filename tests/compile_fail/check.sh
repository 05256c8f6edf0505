#!/usr/bin/env bash
# check.sh SOURCE COMPILER FLAG...: SOURCE compiles without GATEFOLD_FAIL and fails with it as its first line says.
source=$1
shift
fail() {
  echo "$source: $1"
  echo "$output"
  exit 1
}
expect=$(sed -n '1s|^// expect: ||p' "$source")
[[ -n $expect ]] || fail "first line must be '// expect: <regex>'"
output=$("$@" "$source" 2>&1) || fail "does not compile without GATEFOLD_FAIL"
output=$("$@" -DGATEFOLD_FAIL "$source" 2>&1) && fail "compiles with GATEFOLD_FAIL"
grep -Eq -- "$expect" <<<"$output" || fail "fails, but nothing matches '$expect'"
