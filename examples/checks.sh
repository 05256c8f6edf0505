# Sourced by the tests of programs. Sets $dir, a temporary folder, and defines `fail`, which prints a message and sets
# failed=1. The test then continues, and ends with exit $failed.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir  # a separate folder: mpirun would remove an empty folder that another run uses
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }
