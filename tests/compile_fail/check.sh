#!/usr/bin/env bash
# check.sh [--fails] SOURCE COMPILER FLAG...: checks that SOURCE compiles without GATEFOLD_FAIL (not checked with
# --fails) and does not compile with it. The compiler must print each text that the first lines (// expect: <regex>)
# give, and one of them within its first five lines. If the first text is a message of the library (gatefold: ...), the
# first error must also contain one of the texts.
twin=1
[[ $1 == --fails ]] && twin="" && shift
source=$1
shift
fail() {
  echo "$source: $1"
  echo "$output"
  exit 1
}
mapfile -t expected < <(sed -n '/^\/\/ expect: /!q; s|^// expect: ||p' "$source")
((${#expected[@]})) || fail "first line must be '// expect: <regex>'"
[[ -n $twin ]] && { output=$("$@" "$source" 2>&1) || fail "does not compile without GATEFOLD_FAIL"; }
output=$("$@" -DGATEFOLD_FAIL "$source" 2>&1) && fail "compiles with GATEFOLD_FAIL"
for expect in "${expected[@]}"; do
  grep -Eq -- "$expect" <<<"$output" || fail "fails, but nothing matches '$expect'"
done
# Returns whether a text contains one of the expected texts.
one_in() {
  for expect in "${expected[@]}"; do
    grep -Eq -- "$expect" <<<"$1" && return
  done
  return 1
}
first=$(grep -m1 -E 'error:|error +[#(]' <<<"$output")
[[ ${expected[0]} == gatefold:* ]] && ! one_in "$first" && fail "the first error is another one: $first"
one_in "$(head -n 5 <<<"$output")" || fail "no sentence within the first five lines"
