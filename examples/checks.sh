# Sourced by the tests of programs: a folder of their own, $dir, and `fail`, after which they go on; they end with
# exit $failed.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir  # where mpirun makes a folder: an empty one that runs share, one removes beneath another
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }
