#!/usr/bin/env bash
# unique.sh DIR: checks that in the headers of DIR, each type that is thrown and each variable of static storage that is
# not constant has the mark GATEFOLD_UNIQUE. The shared objects of a process then share it even if they hide their
# names. Prints "file:line: rule: text" for each mistake and fails if there is one.
cd "$1" || exit 2
mapfile -t headers < <(find . -name '*.hpp' -o -name '*.cuh' | sed 's|^\./||' | sort)
((${#headers[@]})) || { echo "no headers in $1"; exit 2; }
exec awk '
function report(rule) { printf "%s:%d: %s: %s\n", FILENAME, FNR, rule, $0; bad = 1 }
{ sub(/\/\/.*/, "") }
/GATEFOLD_UNIQUE/ { next }
/^ *(struct|class) [A-Za-z]+ *(final)? *: *(public )?[A-Za-z_:]*([Ee]rror|[Ee]xception) *\{/ { report("hidden-error") }
/^ *(static|inline|thread_local) [^()]*[;={]/ && !/(^| )(const|constexpr|constinit const|namespace|struct|class)( |$)/ {
  report("hidden-variable")
}
END { exit bad }
' "${headers[@]}"
