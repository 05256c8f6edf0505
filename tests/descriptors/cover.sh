#!/usr/bin/env bash
# cover.sh KIND OUT [MOST]: writes the tests made from the rows of this folder into OUT/, with at most MOST (12)
# compositions per file, and prints what they cover. KIND is
#   pairwise           any two rows of different families that can meet: gradients and bits   OUT/<rule>*_test.cpp
#   bitwise            every row: bits of batches of many items and on shards, saved
#                      parameters, initial values                            OUT/policies_<experts>_test.cpp
#   bfloat16           every row: values and bits on CpuBf16                 OUT/policies_<experts>_test.cpp
#   bfloat16_pairwise  any two rows that can meet, on CpuBf16                OUT/<rule>*_test.cpp
#   cuda               every row without .once, on the device                OUT/policies_<experts>_test.cu
#   cuda_bfloat16      every expert with the simplest other rows, on CudaBf16   OUT/bfloat16_<experts>_test.cu
#   cuda_pairwise      any two rows that can meet, on the device             OUT/<rule>*_test.cu
#   list               every row as ROW(row), for benchmarks                 OUT/<family>.inc
# With GATEFOLD_SLOW_TESTS, the tests of cuda and cuda_pairwise also run on CudaBf16. Test files that would not change
# keep their time. Other test files in OUT are removed.
set -euo pipefail
kind=$1 out=$2 most=${3:-12}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
headers=()
for family in scores mixing selection gate auxiliary layer rule expert; do headers+=("$here/$family.hpp"); done

if [[ $kind == list ]]; then
  mkdir -p "$out"
  awk -v out="$out" -f "$here/rows.awk" -f <(echo 'END {
    for (i = 1; i <= count; ++i) print "ROW(" name[i] ")" >(out "/" family[i] ".inc")
    if (!bad) printf "list: %d rows\n", count
    exit bad
  }') "${headers[@]}"
  exit
fi

want=each ending=cpp by=expert
[[ $kind == *pairwise ]] && want=pairs by=rule
[[ $kind == cuda* ]] && ending=cu
[[ $kind == cuda ]] && want=each_policy
[[ $kind == cuda_bfloat16 ]] && want=experts
case $kind in
  pairwise) include=descriptors/pairwise.hpp call='check_gradients(%s);' ;;
  bitwise)
    include=descriptors/pairwise.hpp
    call='check_bits_of_many(%s);\n  check_shards(%s);\n  check_saved(%s);\n  check_initial_values(%s);'
    ;;
  bfloat16 | bfloat16_pairwise) include=descriptors/bfloat16.hpp call='check_bfloat16(%s);' ;;
  cuda | cuda_pairwise) include=descriptors/parity.cuh call='check_on_device(%s);' ;;
  cuda_bfloat16) include=descriptors/parity.cuh call='check_bfloat16(%s);' ;;
  *) echo "$0: no such kind: $kind" >&2; exit 2 ;;
esac

mkdir -p "$out"
made=$(mktemp -d "$out/made.XXXXXX")
trap 'rm -rf "$made"' EXIT
awk -v want=$want -f "$here/rows.awk" -f "$here/cover.awk" "${headers[@]}" >"$made/compositions" ||
  { cat "$made/compositions" >&2; exit 1; }
awk -v by=$by -v kind="$kind" -v most="$most" -v include="$include" -v call="$call" -v ending=$ending -v made="$made" '
# Reads the order of the experts in their header.
FILENAME ~ /\.hpp$/ { if (/^GATEFOLD_ROW/) { split($0, part, /[(,]/); rank[part[2]] = ++rows } next }
{
  key = by == "rule" ? ($6 == "-" ? "no_rule" : $6) : "every"
  if (!(key in size)) keys[++groups] = key
  for (i = ++size[key]; i > 1 && rank[expert[key, i - 1]] > rank[$7]; --i) {
    expert[key, i] = expert[key, i - 1]
    line[key, i] = line[key, i - 1]
  }
  expert[key, i] = $7
  line[key, i] = $0
}
END {
  for (g = 1; g <= groups; ++g) {
    key = keys[g]
    files = int((size[key] + most - 1) / most)
    for (f = 1; f <= files; ++f) {
      first = int((f - 1) * size[key] / files) + 1
      last = int(f * size[key] / files)
      range = expert[key, first] (expert[key, first] == expert[key, last] ? "" : "_to_" expert[key, last])
      by_expert = (kind == "cuda_bfloat16" ? "bfloat16_" : "policies_") range
      name = by != "rule" ? by_expert : files > 1 ? key "_" range : key
      path = made "/" name "_test." ending
      if (path in written) path = made "/" name "_" f "_test." ending
      written[path] = 1
      print "// Made by tests/descriptors/cover.sh from the rows beside it." >path
      printf "#include \"%s\"\n\nusing namespace gatefold::rows;\n", include >path
      for (i = first; i <= last; ++i) {
        text = line[key, i]
        split(text, part, " ")
        argument = "Composition{"
        for (p = 1; p <= 7; ++p) argument = argument (p > 1 ? ", " : "") (part[p] == "-" ? "absent" : part[p])
        body = call
        gsub(/%s/, argument "}", body)
        gsub(/ -|- /, "", text)
        gsub(/ /, ", ", text)
        printf "\nTEST_CASE(\"%s: %s\") {\n  %s\n}\n", kind, text, body >path
      }
      close(path)
    }
  }
}' "${headers[@]: -1}" "$made/compositions"

for file in "$out"/*_test."$ending"; do
  [[ -e $made/${file##*/} || ! -e $file ]] || rm "$file"
done
count=0
for file in "$made"/*_test."$ending"; do
  ((++count))
  cmp -s "$file" "$out/${file##*/}" || mv "$file" "$out/"
done
awk -v made=$count -v kind="$kind" -f "$here/rows.awk" -f "$here/covered.awk" "${headers[@]}" "$made/compositions"
