# Sourced by the tests of programs. Sets $dir, a temporary folder, and defines `fail`, which prints a message and sets
# failed=1. The test then continues, and ends with exit $failed.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir  # mpirun makes a folder there; runs that share an empty folder delete it under each other
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }
