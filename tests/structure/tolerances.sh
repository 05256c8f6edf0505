#!/usr/bin/env bash
# tolerances.sh ROOT: checks that every doctest::Approx in tests/ and examples/ gives its tolerance (the default of
# doctest is 1.2e-5). A tolerance above 1e-6 needs a comment on its line that gives the reason. Prints "file:line: rule:
# text" for each mistake and fails if there is one.
cd "$1" || exit 2
find tests examples -path tests/structure/fixtures -prune -o \
  \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' \) -print |
  LC_ALL=C sort | xargs awk '
function report(line, rule, text) { printf "%s:%d: %s: %s\n", FILENAME, line, rule, text; bad = 1 }
# A statement with an Approx may have several lines. It is checked at the line with its semicolon.
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
