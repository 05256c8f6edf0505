#!/usr/bin/env bash
# format.sh ROOT: checks that C++ files have the format of clang-format 14 (.clang-format; with a different version this
# check is skipped), and that no line of a C++ file, script, CMake file or page is longer than 120 characters, except
# for rows of tables. Prints "file:line: rule: text" for each mistake and fails if there is one.
cd "$1" || exit 2
export LC_ALL=C.UTF-8
mapfile -t files < <(
  find include tests examples bench -name '*.hpp' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' 2>/dev/null |
    grep -v -e '/fixtures/' -e '/compile_fail/' | sort)
((${#files[@]})) || { echo "no files under $1"; exit 2; }
bad=0
mapfile -t others < <(
  find . \( -path ./build -o -path ./.git -o -name fixtures \) -prune -o \( -name '*.md' -o -name '*.sh' -o \
    -name '*.awk' -o -name '*.py' -o -name '*.cmake' -o -name CMakeLists.txt \) -print | sort)
grep -nHE '^.{121,}' "${files[@]}" "${others[@]}" | grep -vE '^[^:]*\.md:[0-9]+: *\|' |
  sed -E 's/^([^:]*:[0-9]+): */\1: long-line: /' | grep . && bad=1
for clang_format in clang-format-14 clang-format; do
  [[ $("$clang_format" --version 2>/dev/null) == *" 14."* ]] || continue
  printf '%s\n' "${files[@]}" | xargs -P 2 -n 50 "$clang_format" --dry-run 2>&1 |
    sed -nE "s/^([^:]*:[0-9]+):[0-9]+: warning: .*/\1: format: $clang_format -i says how/p" | grep . && bad=1
  break
done
exit $bad
