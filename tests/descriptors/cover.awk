# awk -v want=WANT -f rows.awk -f cover.awk HEADER...: prints compositions of rows, one per line. The columns are:
# scores mixing selection auxiliary layer rule expert. "-" means that the composition has no row for this column. A row
# of gate.hpp takes the column of the selection. WANT is
#   pairs        any two rows of different families that can meet are together in a composition
#   each         every row is in a composition
#   each_policy  every row is in a composition, except rows with .once
#   experts      every expert is in a composition with the simplest other rows
# The algorithm is greedy (Cohen et al. 1997, "The AETG system"): it chooses the row that adds the most new pairs.
# The number of compositions is therefore not far above the minimum, rules × experts.
END {
  if (bad || !count) exit 1
  for (i = 1; i <= count; ++i) {
    mine[i] = want == "each" || !once[i]
    for (j = 1; j < i; ++j) apart[i, j] = apart[j, i] = conflict(i, j)
  }
  # Experts and rules come first, because they have the most pairs and the files are named after them.
  split("7 6 3 5 4 2 1", order, " ")
  if (want == "experts") {
    for (i = 1; i <= count; ++i)
      if (place[i] == 7) print "linear_scores independent top_k no_loss no_residual - " name[i]
  } else if (want != "pairs") {
    for (i = 1; i <= count; ++i)
      if (mine[i] && !used[i]) compose(i, 0)
  } else {
    for (i = count; i >= 1; --i)
      for (j = i - 1; j >= 1; --j) if (mine[i] && mine[j] && !apart[i, j]) open[i, j] = open[j, i] = ++pairs
    for (a = 1; a <= places; ++a)
      for (b = a + 1; b <= places; ++b)
        for (i = 1; i <= count; ++i)
          for (j = 1; j <= count; ++j)
            if (place[i] == order[a] && place[j] == order[b] && open[i, j]) compose(i, j)
  }
  exit bad
}
function fits(i, p) {
  if (!mine[i]) return 0
  for (p = 1; p <= places; ++p) if (chosen[p] && apart[i, chosen[p]]) return 0
  return 1
}
# Returns whether place p can still get a row, or whether a chosen row excludes this place.
function can_fill(p, i) {
  for (i = 1; i <= places; ++i) if (chosen[i] && does_without(chosen[i], p)) return 1
  for (i = 1; i <= count; ++i) if (place[i] == p && fits(i)) return 1
  return 0
}
function leaves_room(i, p, ok) {
  chosen[place[i]] = i
  ok = 1
  for (p = 1; p <= places && ok; ++p) if (!chosen[p]) ok = can_fill(p)
  chosen[place[i]] = 0
  return ok
}
function compose(first, second, p, o, i, best, gain, most, line) {
  for (p = 1; p <= places; ++p) chosen[p] = 0
  chosen[place[first]] = first
  if (second) chosen[place[second]] = second
  for (o = 1; o <= places; ++o) {
    p = order[o]
    if (chosen[p]) continue
    best = 0
    most = -1
    for (i = 1; i <= count; ++i) {
      if (place[i] != p || !fits(i) || !leaves_room(i)) continue
      gain = 0
      if (want != "pairs") gain = !used[i]
      else for (q = 1; q <= places; ++q) gain += chosen[q] && open[i, chosen[q]] ? 1 : 0
      if (gain > most || (gain == most && used[i] < used[best])) { best = i; most = gain }
    }
    chosen[p] = best
  }
  for (p = 1; p <= places; ++p) {
    if (!chosen[p] && !can_fill(p)) { printf "no %s for %s\n", place_name[p], line; bad = 1 }
    ++used[chosen[p]]
    for (q = 1; q < p; ++q) if (chosen[p] && chosen[q]) { open[chosen[p], chosen[q]] = open[chosen[q], chosen[p]] = 0 }
    line = line (p > 1 ? " " : "") (chosen[p] ? name[chosen[p]] : "-")
  }
  print line
}
