#!/usr/bin/env bash
# tolerances.sh ROOT: in tests/ and examples/, every doctest::Approx says its tolerance (doctest's own is 1.2e-5), and
# one above 1e-6 has a comment on its line that says why. Prints "file:line: rule: text" for each mistake and fails if
# there is one.
cd "$1" || exit 2
find tests examples -path tests/structure/fixtures -prune -o \
  \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' \) -print |
  LC_ALL=C sort | xargs awk '
function report(line, rule, text) { printf "%s:%d: %s: %s\n", FILENAME, line, rule, text; bad = 1 }
# The statement of an Approx, which may go on over some lines, is at hand where its semicolon is.
FNR == 1 { statement = "" }
{
  if (statement == "" && /doctest::Approx\(/) begin = FNR
  if (statement != "" || /doctest::Approx\(/) statement = statement " " $0
  if (statement != "" && /;/) {
    if (gsub(/doctest::Approx\(/, "&", statement) > gsub(/epsilon\(/, "&", statement)) report(begin, "no-tolerance", $0)
    statement = ""
  }
}
/epsilon\([0-9.]*e-[0-5]\)/ && !/\/\/ / { report(FNR, "no-reason", $0) }
END { exit bad }'
