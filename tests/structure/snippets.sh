#!/usr/bin/env bash
# snippets.sh ROOT: checks that every C++ block in README.md and docs/ is a copy of compiled code. The line before the
# block is <!-- snippet: examples/foo.cpp#name -->. In that file, the code is between "// [snippet name]" and "//
# [/snippet]", and its common indentation is removed. Prints "file:line: rule: text" for each mistake and fails if there
# is one.
cd "$1" || exit 2
mapfile -t files < <(find README.md docs -name '*.md' 2>/dev/null | sort)
((${#files[@]})) || exit 0

exec awk '
function report(rule, text) { printf "%s:%d: %s: %s\n", FILENAME, start, rule, text; bad = 1 }

# Returns the marked text of a source file. If there is none, returns "" and sets `problem` to the rule that is broken.
function snippet(path, name, line, lines, n, i, width, indent, out) {
  problem = ""
  n = 0
  indent = 1000
  while ((i = (getline line < path)) > 0) {
    if (line ~ /\/\/ \[\/snippet\]/ && n) break
    if (n) {
      lines[n++] = line
      match(line, /^ */)
      if (line !~ /^ *$/ && RLENGTH < indent) indent = RLENGTH
    } else if (index(line, "// [snippet " name "]")) {
      n = 1
    }
  }
  close(path)
  if (i < 0) problem = "missing-file"
  else if (!n) problem = "missing-snippet"
  else if (i == 0) problem = "open-snippet"
  out = ""
  for (i = 1; i < n; ++i) out = out substr(lines[i], indent + 1) "\n"
  return out
}

FNR == 1 { in_block = 0; marker = "" }
in_block && /^ *```/ {
  in_block = 0
  expected = snippet(path, name)
  if (problem) report(problem, source)
  else if (block != expected) report("different", source " is now:\n" expected)
  next
}
in_block == 1 { block = block $0 "\n" }
in_block { next }
/^ *```(cpp|c\+\+|cc|cuda)/ {
  start = FNR
  source = marker
  block = ""
  if (match(source, /#/)) {
    path = substr(source, 1, RSTART - 1)
    name = substr(source, RSTART + 1)
  }
  if (source == "") report("no-marker", $0)
  else if (path !~ /^(examples|tests|bench)\/.*\.(cpp|cu|hpp)$/) report("not-compiled", source)
  else in_block = 1
}
{
  marker = $0
  if (!(sub(/^<!-- snippet: */, "", marker) && sub(/ *-->[ \t]*$/, "", marker))) marker = ""
}
END { exit bad }
' "${files[@]}"
