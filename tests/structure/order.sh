#!/usr/bin/env bash
# order.sh DIR [write]: checks the order in the umbrella headers of DIR. Each header must come after those that it
# includes at its head. If a header has an error, the compiler then lists only the umbrellas and the file of the user
# ("In file included from ..."). Folders are in the order of their includes, too, and the headers of a folder are
# together; otherwise, the order is by name. Prints "file:line: rule: text" for a header out of place and fails if there
# is one. `write` moves all headers to their places.
cd "$1" || exit 2
export LC_ALL=C
mapfile -t umbrellas < <(find . -maxdepth 1 -name '*.hpp' -o -maxdepth 1 -name '*.cuh' | sed 's|^\./||' | sort)
((${#umbrellas[@]})) || { echo "no umbrella headers in $1"; exit 2; }
mapfile -t headers < <(find . -mindepth 2 -name '*.hpp' -o -mindepth 2 -name '*.cuh' | sed 's|^\./||' | sort)

bad=0
for umbrella in "${umbrellas[@]}"; do
  awk -v umbrella="$umbrella" -v write="${2:-}" '
    function folder(path) { sub(/\/.*/, "", path); return path }
    # Returns the header of a folder that a line includes, or "".
    function included(text) {
      if (text !~ /^#include "gatefold\/[^"]*\//) return ""
      gsub(/^[^"]*"gatefold\/|".*/, "", text)
      return text
    }
    # Returns the first header in `left`, by name, that includes no other header in `left`.
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
