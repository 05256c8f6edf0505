# Sourced by the tests of programs. Sets $dir, a temporary folder, and defines `fail`, after which a test continues.
# Tests end with exit $failed.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir  # mpirun makes a folder there; runs that share an empty folder delete it under each other
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }
