#!/usr/bin/env bash
# checkpoints.sh PROGRAM LAUNCHER FLAG: checks that PROGRAM (checkpoints.cpp) writes the same files with 1 to 4
# processes. Then one of three processes is killed at some system call while it writes. The checkpoint must be complete,
# and two processes that continue from it must end with the same bytes. `LAUNCHER FLAG R` starts R processes, for
# example mpirun -n R.
program=$1 launcher=("$2" "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work  # a separate folder: mpirun would remove an empty folder that another run uses
failed=0
fail() { echo "FAILED: $*"; failed=1; }
# run PROCESSES FOLDER STEPS [RANK CALL]
run() {
  mkdir -p "$work/$2"
  timeout 100 "${launcher[@]}" "$1" "$program" "$work/$2" "${@:3}" >"$work/log" 2>&1 </dev/null
}
same() { diff -rq "$work/one" "$work/$1" || fail "$1: the files differ from those of one process"; }

run 1 one 8 || fail "one process: $(cat "$work/log")"
(($(find "$work/one" -name 'state-*-of-*.safetensors' | wc -l) > 2)) || fail "no parts"
for processes in 2 3 4; do
  run $processes $processes 8 || fail "$processes processes: $(cat "$work/log")"
  same $processes
done
for at in "0 5" "1 1" "0 23" "1 11" "0 41" "2 17" "0 90" "0 101" "2 90"; do
  name=killed.${at/ /.}
  run 3 "$name" 8 $at && fail "rank and call $at: no process was killed"
  [ -e "$work/$name/end" ] && fail "rank and call $at: killed after the end"
  run 2 "$name" 8 || fail "after rank and call $at: $(cat "$work/log")"
  same "$name"
done
exit $failed
