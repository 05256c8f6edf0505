# Reads the rows of the given headers. For row i of `count`: name[i], family[i] (the name of its header), place[i] in a
# composition, policy[i], kinds[i] (the text of a row of Experts), and the facts cannot_meet[i] and once[i]. conflict(i,
# j) returns whether rows i and j cannot be in one composition.
BEGIN {
  places = split("scores mixing selection auxiliary layer rule expert", place_name, " ")
  for (p = 1; p <= places; ++p) place_of[place_name[p]] = p
  place_of["gate"] = place_of["selection"]  # a gate replaces a selection and the families below
  stands_for["gate"] = " scores mixing auxiliary "
}
function row_error(rule, text) { printf "%s:%d: %s: %s\n", FILENAME, FNR, rule, text; bad = 1 }

FILENAME ~ /\.hpp$/ && /^GATEFOLD_(LAYER_)?ROW\(/ { statement = ""; depth = 0; in_row = 1 }
in_row {
  statement = statement " " $0
  text = $0
  depth += gsub(/\(/, "", text) - gsub(/\)/, "", text)
  if (depth == 0) { in_row = 0; take_row() }
}
function fact(key, found) {
  if (!match(statement, "\\." key " = +\"[^\"]*\"")) return ""
  found = substr(statement, RSTART, RLENGTH)
  sub(/^[^"]*"/, "", found)
  sub(/"$/, "", found)
  return found
}
function take_row(of, words, n, i) {
  of = FILENAME
  sub(/.*\//, "", of)
  sub(/\.hpp$/, "", of)
  if (!(of in place_of)) return
  gsub(/" +"/, "", statement)
  split(statement, words, /[(, ]+/)
  ++count
  name[count] = words[3]
  if (name[count] in row_of) row_error("twice", name[count])
  row_of[name[count]] = count
  where[count] = FILENAME ":" FNR
  family[count] = of
  place[count] = place_of[of]
  filled[place[count]] = 1
  policy[count] = words[4]
  sub(/^(gatefold::)?(update::)?/, "", policy[count])
  sub(/[^A-Za-z0-9_].*/, "", policy[count])
  kinds[count] = policy[count] == "Experts" ? statement : ""
  cannot_meet[count] = fact("cannot_meet")
  if (cannot_meet[count] != "" && cannot_meet[count] !~ /: ./) row_error("no-reason", name[count])
  sub(/:.*/, "", cannot_meet[count])
  cannot_meet[count] = " " cannot_meet[count] stands_for[of] " "
  once[count] = statement ~ /\.once = true/
  n = split(cannot_meet[count], words, " ")
  for (i = 1; i <= n; ++i) named[words[i]] = FILENAME ":" FNR
}
function bans(i, j) { return index(cannot_meet[i], " " name[j] " ") || index(cannot_meet[i], " " family[j] " ") }
function conflict(i, j) { return place[i] == place[j] || bans(i, j) || bans(j, i) }
# Returns whether row i excludes the place p: a composition with row i then has "-" there.
function does_without(i, p) { return index(cannot_meet[i], " " place_name[p] " ") > 0 }
