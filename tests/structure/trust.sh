#!/usr/bin/env bash
# trust.sh ROOT: checks that every test named in docs/reference/trust.md exists and that each row of its tables names
# one. A name is in backticks: `<file>` or `<file>: <case>`. The file is below tests/, or below ROOT if it begins with
# examples/. If a case runs only with --full, its row must say so; a case that only the sanitizers skip
# (support/slow_build.hpp) runs by default. Prints "file:line: rule: text" for each mistake and fails if there is one.
cd "$1" || exit 2
exec awk '
function report(rule, text) { printf "%s:%d: %s: %s\n", FILENAME, FNR, rule, text; bad = 1 }

# Returns all lines of a file, each after a line feed, or "" if there is no file.
function contents(path, line, text) {
  if (!(path in read)) {
    text = ""
    while ((getline line < path) > 0) text = text "\n" line
    close(path)
    read[path] = text
  }
  return read[path]
}

# Checks each text between backticks, if it is the name of a test.
function check(text, row, all, parts, n, i, at, file, name, path, begin, rest) {
  n = split(text, parts, "`")
  all = 0
  for (i = 2; i <= n; i += 2) {
    at = index(parts[i], ": ")
    file = at ? substr(parts[i], 1, at - 1) : parts[i]
    name = at ? substr(parts[i], at + 2) : ""
    if (file !~ /^[A-Za-z0-9_\/.]+\.(cpp|cu|sh|txt)$/) continue
    ++all
    path = file ~ /^examples\// ? file : "tests/" file
    if (contents(path) == "") report("missing-file", file)
    else if (name != "") {
      begin = 0
      rest = contents(path)
      gsub(/"\n *"/, "", rest)  # a name may be split into adjacent strings
      # Finds the test case, not a comment that quotes its name. The name may be on a separate line.
      while (!begin && (at = index(rest, "\"" name "\""))) {
        if (substr(rest, 1, at - 1) ~ /TEST_CASE(_TEMPLATE)?\([ \n]*$/) begin = 1
        else rest = substr(rest, at + 1)
      }
      if (!begin) report("missing-case", parts[i])
      else {
        rest = substr(rest, at + length(name) + 2)
        if (rest ~ /^[ \n]*\*[ \n]*doctest::skip\(/ && rest !~ /^[^)]*\(support::slow_build\)/ &&
            row !~ /--full/) report("slow-case", parts[i])
      }
    }
  }
  return all
}

/^\|/ {
  if (!in_table) {  # header
    in_table = 1
    of_tests = /\| *tests *\|$/
    next
  }
  if (/^\|[-|: ]*$/) next
  text = $0
  gsub(/\\\|/, "", text)
  cells = split(text, cell, "|")
  if (of_tests) {
    ++rows
    if (!check(cell[cells - 1], $0)) report("no-test", cell[2])
  } else {
    check($0, $0)
  }
  next
}
{ in_table = 0; check($0, $0) }
END {
  if (!rows) report("no-rows", "docs/reference/trust.md")
  exit bad
}
' docs/reference/trust.md
