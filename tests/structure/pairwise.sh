#!/usr/bin/env bash
# pairwise.sh DIR: the files of tests/pairwise/ make every two policies of different families meet, in at most 120
# compositions and at most 12 a file. The policies stand in pairwise.hpp between // [family] lines. Prints
# "file:line: rule: text" for each mistake and fails if there is one.
cd "$1" || exit 2
exec awk '
function report(file, line, rule, text) { printf "%s:%d: %s: %s\n", file, line, rule, text; bad = 1 }
FNR == 1 { in_file = 0 }
FILENAME ~ /\.hpp$/ && /^\/\/ \[[a-z]+\]/ { family = $2; if (family != "[end]") families[++count] = family; next }
FILENAME ~ /\.hpp$/ && family != "" && family != "[end]" && /^(using|struct) / {
  of[$2] = count
  name[count, ++size[count]] = $2
  next
}
/^GATEFOLD_PAIRWISE\(/ {
  ++all
  if (++in_file == 13) report(FILENAME, FNR, "many-in-a-file", in_file)
  text = $0
  gsub(/^GATEFOLD_PAIRWISE\(|\).*| /, "", text)
  n = split(text, p, ",")
  if (n != count) report(FILENAME, FNR, "wrong-number", text)
  for (i = 1; i <= n; ++i) {
    if (of[p[i]] != i) report(FILENAME, FNR, "unknown-policy", p[i])
    for (j = 1; j < i; ++j) met[p[j], p[i]] = 1
  }
}
END {
  if (count < 2) report("pairwise.hpp", 1, "no-families", count)
  if (all > 120) report("pairwise.hpp", 1, "too-many", all)
  for (a = 1; a <= count; ++a)
    for (b = a + 1; b <= count; ++b)
      for (i = 1; i <= size[a]; ++i)
        for (j = 1; j <= size[b]; ++j)
          if (!met[name[a, i], name[b, j]]) report("pairwise.hpp", 1, "never-meet", name[a, i] " " name[b, j])
  exit bad
}
' pairwise.hpp $(ls | grep '_test\.cpp$')
