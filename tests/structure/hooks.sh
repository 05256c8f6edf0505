#!/usr/bin/env bash
# hooks.sh ROOT [print]: checks that docs/reference/optional_members.md has the table of optional members, between "<!--
# hooks -->" and "<!-- /hooks -->". The script makes the table from the rows of
# include/gatefold/policy/{named,hooks}.hpp. Also checks that `all` of each family looks up each of its members. Prints
# "file:line: rule: text" for each mistake and fails if there is one. With `print`, prints the table.
cd "$1" || exit 2
nested=include/gatefold/policy/named.hpp hooks=include/gatefold/policy/hooks.hpp
page=docs/reference/optional_members.md
rows=$(awk '
# Puts a statement on one line and joins adjacent strings.
/^GATEFOLD_(TYPE|FLAG|MEMBER|PLAIN_MEMBER|MEMBER_OF_NESTED)\(/ { text = ""; open = 1; first = FNR }
open {
  text = text " " $0
  line = $0; deep += gsub(/\(/, "", line); deep -= gsub(/\)/, "", line)
  if (deep == 0) {
    open = 0
    gsub(/"  *"/, "", text); sub(/^ */, "", text)
    print first "\t" text
  }
}
/^GATEFOLD_ALL\(/ { all = $0; while (all !~ /\)$/) { getline; all = all $0 } print FNR "\tall " all }
/^constexpr bool all\(\)/ { getline; all = $0; while (all !~ /;/) { getline; all = all $0 } print FNR "\tall " all }
/^}  \/\/ namespace/ { print FNR "\tend" }
' "$nested" "$hooks")
table() {
  awk -F'\t' '
  function strings(text, out, n) {
    n = 0
    while (match(text, /"[^"]*"/)) {
      out[++n] = substr(text, RSTART + 1, RLENGTH - 2)
      text = substr(text, RSTART + RLENGTH)
    }
    return n
  }
  function word(text) { sub(/^ */, "", text); sub(/[,)].*/, "", text); return text }
  { text = $2; kind = text; sub(/\(.*/, "", kind) }
  kind == "GATEFOLD_TYPE" {
    strings(text, s); sub(/^[^(]*\(/, "", text)
    row("a policy", "`" word(text) "<T, B>`", s[1])
  }
  kind == "GATEFOLD_FLAG" {
    strings(text, s); sub(/^[^,]*, */, "", text); type = word(text); sub(/^[^,]*, */, "", text); name = word(text)
    sub(/^[^,]*, */, "", text)
    row(s[1], "`static constexpr " type " " name "` (default " word(text) ")", s[2])
  }
  kind ~ /MEMBER/ { strings(text, s); row(s[1], "`" s[2] "`", s[3]) }
  function row(whose, member, what) {
    printf "| %s | %s | %s |\n", whose != last ? whose : "", member, what
    last = whose
  }
  BEGIN { print "| of | member | meaning |\n|---|---|---|" }
  ' <<<"$rows"
}
[[ ${2:-} != print ]] || { table; exit; }
bad=0
diff <(table) <(sed -n '/^<!-- hooks -->$/,/^<!-- \/hooks -->$/p' "$page" | sed '1d;$d') >/dev/null || {
  at=$(grep -n '^<!-- hooks -->$' "$page" | cut -d: -f1 | grep . || echo 1)
  echo "$page:$at: old-table: replace it with the output of tests/structure/hooks.sh . print"
  bad=1
}
awk -F'\t' -v file="$hooks" '
{ kind = $2; sub(/\(.*/, "", kind) }
function named(text) { sub(/,.*/, "", text); name[++n] = text; at[n] = $1 }
kind == "GATEFOLD_FLAG" { text = $2; sub(/^[^,]*,[^,]*, */, "", text); named(text) }
kind == "GATEFOLD_MEMBER" || kind == "GATEFOLD_PLAIN_MEMBER" { text = $2; sub(/^[^,]*, */, "", text); named(text) }
kind ~ /^all / || $2 ~ /^all / { all = $2 }
$2 == "end" {
  if (all != "") for (i = 1; i <= n; ++i) if (all !~ "[ (]" name[i] "<") {
    printf "%s:%d: not-asked: %s\n", file, at[i], name[i]
    bad = 1
  }
  n = 0; all = ""
}
END { exit bad }
' <<<"$rows" || bad=1
exit $bad
