#!/usr/bin/env bash
# selftest.sh FIXTURE CHECK...: checks that CHECK FIXTURE reports exactly the "file:line: rule" lines of
# FIXTURE/expected.txt.
fixture=$1
shift
found=$("$@" "$fixture") && { echo "the check found nothing"; exit 1; }
diff <(sort "$fixture/expected.txt") <(grep -oE '^[^ :]+:[0-9]+: [a-z-]+' <<<"$found" | sort)
