#!/usr/bin/env bash
# nccl.sh PROGRAM LAUNCHER FLAG PROCESSES...: checks that PROGRAM (nccl.cu) writes the same bytes for each number of
# processes, and that a rank that waits for a late rank names it. `LAUNCHER FLAG R` starts R processes, for example
# mpirun -n R. Exits with 77 if there are fewer devices than processes.
program=$1 launcher=$2 flag=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work  # a separate folder: mpirun would remove an empty folder that another run uses
failed=0
first=
for processes; do
  timeout 200 "$launcher" "$flag" "$processes" "$program" "$work/$processes" </dev/null ||
    { status=$?; ((status == 77)) && exit 77; echo "$processes processes: exit status $status"; failed=1; continue; }
  [[ -n $first ]] || { first=$work/$processes; [[ -s $first ]] || { echo "the program wrote no file"; failed=1; }; }
  cmp "$first" "$work/$processes" || failed=1
done
begin=$SECONDS
timeout 60 "$launcher" "$flag" 2 "$program" late </dev/null >"$work/said" 2>&1 &&
  { echo "a late rank: the program ended without an error"; failed=1; }
((SECONDS - begin < 30)) || { echo "a late rank: the error came after $((SECONDS - begin)) s"; failed=1; }
grep -q 'rank 0: Mpi.exchange: nothing from rank 1 within 2 s' "$work/said" || { cat "$work/said"; failed=1; }
exit $failed
