#!/usr/bin/env bash
# order.sh DIR [write]: in the umbrella headers of DIR each header stands after those that it includes at its head, so
# that what a compiler prints before an error in it ("In file included from ...") names the umbrellas and the user's
# file, and nothing else. Folders stand in the order of their includes too, a folder's headers together; where that
# leaves a choice, by name. Prints "file:line: rule: text" for a header out of place and fails if there is one; `write`
# moves all to their places.
cd "$1" || exit 2
export LC_ALL=C
mapfile -t umbrellas < <(find . -maxdepth 1 -name '*.hpp' -o -maxdepth 1 -name '*.cuh' | sed 's|^\./||' | sort)
((${#umbrellas[@]})) || { echo "no umbrella headers in $1"; exit 2; }
mapfile -t headers < <(find . -mindepth 2 -name '*.hpp' -o -mindepth 2 -name '*.cuh' | sed 's|^\./||' | sort)

bad=0
for umbrella in "${umbrellas[@]}"; do
  awk -v umbrella="$umbrella" -v write="${2:-}" '
    function folder(path) { sub(/\/.*/, "", path); return path }
    # The header of a folder that a line includes, or nothing.
    function included(text) {
      if (text !~ /^#include "gatefold\/[^"]*\//) return ""
      gsub(/^[^"]*"gatefold\/|".*/, "", text)
      return text
    }
    # The first by name among `left` that needs none of them.
    function next_of(left, needs, name, first, pair, ends, waits) {
      for (pair in needs) {
        split(pair, ends, SUBSEP)
        if (ends[1] in left && ends[2] in left) waits[ends[1]]
      }
      for (name in left) if (!(name in waits) && (first == "" || name < first)) first = name
      return first
    }

    FNR == 1 { head = 1 }
    /^(#if|namespace)/ { head = 0 }
    FILENAME != umbrella {
      if (!head || (name = included($0)) == "") next
      needs[FILENAME, name]
      if (folder(FILENAME) != folder(name)) folder_needs[folder(FILENAME), folder(name)]
      next
    }
    { line[FNR] = $0 }
    (name = included($0)) != "" {
      at[++count] = FNR
      listed[count] = name
      folders[folder(name)]
    }
    END {
      while ((top = next_of(folders, folder_needs)) != "") {
        delete folders[top]
        for (i = 1; i <= count; ++i) if (folder(listed[i]) == top) left[listed[i]]
        while ((name = next_of(left, needs)) != "") {
          delete left[name]
          place[name] = ++placed
          sorted[placed] = name
        }
      }
      if (placed < count) {
        printf "%s:1: cycle: headers that include each other at their heads\n", umbrella
        exit 1
      }
      for (i = 1; i <= count && listed[i] == sorted[i]; ++i) {}
      if (i > count) exit 0
      if (write != "") {
        for (i = 1; i <= count; ++i) line[at[i]] = "#include \"gatefold/" sorted[i] "\""
        for (i = 1; i <= FNR; ++i) print line[i] >umbrella
        exit 0
      }
      if (listed[i + 1] != sorted[i]) for (name = sorted[i]; listed[i] != name;) ++i
      j = place[listed[i]]
      printf "%s:%d: order: %s belongs %s\n", umbrella, at[i], listed[i], j == 1 ? "first" : "after " sorted[j - 1]
      exit 1
    }' "${headers[@]}" "$umbrella" || bad=1
done
exit $bad
