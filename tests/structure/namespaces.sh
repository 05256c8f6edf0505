#!/usr/bin/env bash
# namespaces.sh DIR: checks that gatefold directly contains only the namespaces for users and detail_, which holds all
# other namespaces. Any other name would collide with the same name in a program that has `using namespace gatefold;`.
# Prints "file:line: rule: text" for each mistake and fails if there is one.
cd "$1" || exit 2
allowed="check cpu data dist functor io language metric optim published update vision detail_"
mapfile -t headers < <(find . -name '*.hpp' -o -name '*.cuh' | sed 's|^\./||' | sort)
((${#headers[@]})) || { echo "no headers in $1"; exit 2; }
exec awk -v allowed="$allowed" '
BEGIN { n = split(allowed, words, " "); for (i = 1; i <= n; ++i) is_allowed[words[i]] }
function report(rule) { printf "%s:%d: %s: %s\n", FILENAME, FNR, rule, $0; bad = 1 }
FNR == 1 && depth { printf "%s:1: not-closed: a namespace has no closing comment\n", last; bad = 1 }
FNR == 1 { depth = 0; last = FILENAME }
/^(inline )?namespace [A-Za-z_:]+( [A-Z_]+(::[a-z_:]+)?)? \{$/ {
  name = $0
  sub(/^(inline )?namespace /, "", name); sub(/ \{$/, "", name)
  # The names of instruction sets begin with on_.
  sub(/inline GATEFOLD_CPU_NAMESPACE(::)?/, "", name); sub(/^GATEFOLD_CPU_NAMESPACE$/, "", name)
  sub(/::$/, "", name)
  around = depth ? place[depth] : ""
  path = around == "" || name == "" ? around name : around "::" name
  place[++depth] = path
  opened = FNR
  if (around !~ /::/ && path ~ /^gatefold::/) {
    split(path, parts, "::")
    if (!(parts[2] in is_allowed)) report("not-for-users")
  }
}
/^\}  \/\/ namespace/ && depth { --depth }
/^\}$/ && depth && FNR - opened <= 3 { --depth }  # ends a forward declaration, which needs no comment
END {
  if (depth) { printf "%s:1: not-closed: a namespace has no closing comment\n", last; bad = 1 }
  exit bad
}
' "${headers[@]}"
