#!/usr/bin/env bash
# check.sh SOURCE COMPILER FLAG...: SOURCE compiles without GATEFOLD_FAIL and fails with it as its first lines say;
# where they are sentences of the library, one of them is the first error.
source=$1
shift
fail() {
  echo "$source: $1"
  echo "$output"
  exit 1
}
mapfile -t expected < <(sed -n '/^\/\/ expect: /!q; s|^// expect: ||p' "$source")
((${#expected[@]})) || fail "first line must be '// expect: <regex>'"
output=$("$@" "$source" 2>&1) || fail "does not compile without GATEFOLD_FAIL"
output=$("$@" -DGATEFOLD_FAIL "$source" 2>&1) && fail "compiles with GATEFOLD_FAIL"
for expect in "${expected[@]}"; do
  grep -Eq -- "$expect" <<<"$output" || fail "fails, but nothing matches '$expect'"
done
[[ ${expected[0]} != gatefold:* ]] && exit 0
first=$(grep -m1 -E 'error:|error +[#(]' <<<"$output")
for expect in "${expected[@]}"; do
  grep -Eq -- "$expect" <<<"$first" && exit 0
done
fail "the first error is another one: $first"
