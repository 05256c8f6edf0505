#!/usr/bin/env bash
# links.sh ROOT: checks that links have targets. Links are those of Markdown pages, and references to pages in the
# messages of headers, for example "see docs/how-to/extending.md#expert". A link names an existing file, and its anchor
# a heading of that page. Prints "file:line: rule: text" for each mistake and fails if there is one.
cd "$1" || exit 2
mapfile -t pages < <(find . -name '*.md' -not -path './build/*' -not -path './.git/*' -not -path '*/fixtures/*' |
  sed 's|^\./||' | LC_ALL=C sort)
mapfile -t headers < <(find include examples cmake \( -name '*.hpp' -o -name '*.cuh' -o -name '*.cmake' -o \
  -name '*.in' \) 2>/dev/null | LC_ALL=C sort)
((${#pages[@]})) || exit 0
exec awk '
function report(rule, text) { printf "%s:%d: %s: %s\n", FILENAME, FNR, rule, text; bad = 1 }

# Removes "." and ".." from a path.
function normal(path, part, n, i, m, out, kept) {
  n = split(path, part, "/")
  m = 0
  for (i = 1; i <= n; ++i) {
    if (part[i] == "" || part[i] == ".") continue
    if (part[i] == ".." && m > 0) { --m; continue }
    kept[++m] = part[i]
  }
  out = ""
  for (i = 1; i <= m; ++i) out = out (i > 1 ? "/" : "") kept[i]
  return out
}
function exists(path) {
  if (!(path in found)) found[path] = system("test -e \"" path "\"") == 0
  return found[path]
}
# Reads the anchors that GitHub makes from the headings of a page.
function read_anchors(path, line, code) {
  if (path in anchors_read) return
  anchors_read[path] = 1
  while ((getline line < path) > 0) {
    if (line ~ /^ *```/) code = !code
    if (code || line !~ /^#+ /) continue
    sub(/^#+ /, "", line)
    line = tolower(line)
    gsub(/[][`*(){}<>.,:;!?"+=\/|&%…’“”×−–]|\047/, "", line)
    gsub(/ /, "-", line)
    anchors[path "#" line] = 1
  }
  close(path)
}
function check(target, folder, path, anchor) {
  if (target ~ /^[a-z]+:/) return
  anchor = ""
  path = target
  if (match(target, /#/)) {
    anchor = substr(target, RSTART + 1)
    path = substr(target, 1, RSTART - 1)
  }
  path = path == "" ? FILENAME : normal(folder path)
  if (!exists(path == "" ? "." : path)) { report("no-file", target); return }
  if (anchor == "" || path !~ /\.md$/) return
  read_anchors(path)
  if (!((path "#" anchor) in anchors)) report("no-heading", target)
}
FNR == 1 { code = 0; folder = FILENAME; if (!sub(/\/[^\/]*$/, "/", folder)) folder = "" }
FILENAME ~ /\.md$/ {
  if ($0 ~ /^ *```/) code = !code
  if (code) next
  text = $0
  gsub(/`[^`]*`/, "", text)
  while (match(text, /\]\([^() ]+\)/)) {
    target = substr(text, RSTART + 2, RLENGTH - 3)
    text = substr(text, RSTART + RLENGTH)
    check(target, folder)
  }
  next
}
{
  text = $0
  while (match(text, /(docs\/[a-z_\/-]+|README|CONTRIBUTING|CHANGELOG)\.md(#[a-z0-9-]+)?/)) {
    target = substr(text, RSTART, RLENGTH)
    text = substr(text, RSTART + RLENGTH)
    check(target, "")
  }
}
END { exit bad }
' "${pages[@]}" "${headers[@]}"
