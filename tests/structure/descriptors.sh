#!/usr/bin/env bash
# descriptors.sh ROOT: checks the rows of tests/descriptors/. Every policy of docs/reference/catalogue.md has a row. The
# compositions made of the rows use every row, contain every pair of policies that may meet, and leave a pair out only
# with a reason. Prints "file:line: rule: text" for each mistake and fails if there is one. If ROOT/compositions.txt
# exists, the script reads it instead of the output of cover.awk.
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/../descriptors" && pwd)
cd "$1" || exit 2
headers=()
for family in scores mixing selection gate auxiliary layer rule expert; do
  [[ -e tests/descriptors/$family.hpp ]] && headers+=("tests/descriptors/$family.hpp")
done
((${#headers[@]})) || { echo "tests/descriptors: no rows"; exit 2; }
bad=0
for want in pairs each; do
  compositions=compositions.txt
  if [[ ! -e $compositions ]]; then
    compositions=$(mktemp)
    awk -v want=$want -f "$scripts/rows.awk" -f "$scripts/cover.awk" "${headers[@]}" >"$compositions" || bad=1
  elif [[ $want == each ]]; then
    continue
  fi
  kind=pairwise
  [[ $want == each ]] && kind=bitwise
  awk -v kind=$kind -f "$scripts/rows.awk" -f "$scripts/covered.awk" "${headers[@]}" "$compositions" || bad=1
  [[ $compositions == compositions.txt ]] || rm "$compositions"
done

# An expert can have its row as a kind of Experts, for example if its output is 0. Losses are not part of a layer. The
# branches listed here are no mixtures. Gates with names are compositions of rows.
if awk -f "$scripts/rows.awk" -f <(cat <<'END'
FILENAME ~ /\.hpp$/ { next }
/^## / { listed = $0 !~ /^## (gates by name|losses|branches)/; next }
listed && /^\| `/ {
  split($0, part, "`")
  sub(/<.*/, "", part[2])
  for (i = 1; i <= count; ++i) if (policy[i] == part[2] || kinds[i] ~ "[{ ]" part[2] "[{]") next
  row_error("no-row", part[2])
}
END
) "${headers[@]}" docs/reference/catalogue.md | grep '^docs/'; then bad=1; fi
exit $bad
