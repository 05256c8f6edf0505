# awk -v kind=KIND -f rows.awk -f covered.awk HEADER... COMPOSITIONS: prints what the compositions cover. If they do not
# cover everything or have a mistake, prints this and exits with 1. The compositions can have any author.
FILENAME !~ /\.hpp$/ {
  ++compositions
  if (NF != places) row_error("wrong-number", $0)
  for (p = 1; p <= places; ++p) at[p] = 0
  for (p = 1; p <= places && p <= NF; ++p) {
    if ($p == "-") continue
    i = at[p] = row_of[$p]
    if (!i) { row_error("unknown-row", $p); continue }
    if (place[i] != p) row_error("wrong-place", $p)
    seen[i] = 1
    for (q = 1; q < p; ++q) {
      if (!at[q]) continue
      met[i, at[q]] = met[at[q], i] = 1
      if (conflict(i, at[q])) row_error("cannot-meet", $p " " $q)
    }
  }
  for (p = 1; p <= places; ++p) {  # "-" needs a row that excludes this place, unless no row has this place
    if (p > NF || $p != "-") continue
    excused = !(p in filled)
    for (q = 1; q <= places; ++q) if (at[q] && does_without(at[q], p)) excused = 1
    if (!excused) row_error("left-out", place_name[p])
  }
}
END {
  for (i = 1; i <= count; ++i) {
    used += i in seen
    if (kind == "cuda_bfloat16" && place[i] != 7) continue
    options = kind ~ /^bitwise$|bfloat16$/  # rows with .once must also be used
    if (!(i in seen) && (options || !once[i])) { printf "%s: never-used: %s\n", where[i], name[i]; bad = 1 }
    for (j = 1; j < i; ++j) {
      if (once[i] || once[j] || place[i] == place[j]) continue
      if (conflict(i, j)) { ++excluded; continue }
      ++pairs
      if (pairwise() && !met[i, j]) { printf "%s: never-meet: %s %s\n", where[i], name[j], name[i]; bad = 1 }
    }
  }
  for (word in named)
    if (!(word in row_of) && !(word in place_of)) { printf "%s: unknown-name: %s\n", named[word], word; bad = 1 }
  if (!bad) printf "%s: %d rows in %d compositions", kind, used, compositions
  if (!bad && made) printf ", %d files", made
  if (!bad && pairwise()) printf "; %d pairs meet, %d cannot", pairs, excluded
  if (!bad) print ""
  exit bad
}
function pairwise() { return kind ~ /pairwise$/ }
