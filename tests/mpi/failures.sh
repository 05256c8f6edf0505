#!/usr/bin/env bash
# failures.sh PROGRAM LAUNCHER...: checks runs in which one process of PROGRAM (failures.cpp) fails. All processes must
# end with an exit status that is not 0, and those that can print the reason must do so. LAUNCHER is mpirun with its
# options for 3 processes.
program=$1
shift
launcher=("$@")
guard=40  # seconds; a run that takes longer has hung, because all runs are much shorter
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check WAY TIMEOUT SENTENCE...: runs PROGRAM so that rank 1 ends in the given way. The output must have each SENTENCE.
check() {
  local way=$1 timeout=$2 log=$work/$1 begin=$SECONDS status sentence
  shift 2
  mkdir "$log.tmp"  # a separate folder: mpirun would remove an empty folder that another run uses
  TMPDIR=$log.tmp timeout --kill-after=2 $guard "${launcher[@]}" "$program" "$way" "$timeout" >"$log" 2>&1 </dev/null
  status=$?
  {
    ((SECONDS - begin < guard)) || echo "$way: it hangs"
    case $way in
      none) ((status == 0)) || echo "$way: exit status $status" ;;
      *) ((status != 0)) || echo "$way: exit status 0" ;;
    esac
    for sentence in "$@"; do grep -qE "^$sentence" "$log" || echo "$way: nobody says: $sentence"; done
  } >"$log.wrong"
  [[ ! -s $log.wrong ]] || cat "$log.wrong" "$log"
}

late="(rank [02]: )?Mpi.exchange: nothing (from|received by) rank 1 within 1 s"
other="Mpi.exchange: rank 1 sent 150000 bytes, but 300000 bytes were expected: the ranks do not run the same program"
check none 300 &
check throw 300 "rank 0: rank 1: no more data" "rank 1: no more data" "rank 2: rank 1: no more data" &
check memory 300 "rank 0: rank 1: std::bad_alloc" "rank 2: rank 1: std::bad_alloc" &
check busy 300 "rank 0: rank 1: no more data" "rank 1: no more data" &
check size 300 "rank 0: rank 2: $other" "rank 1: rank 2: $other" "rank 2: $other" &
check unwind 300 &
check stop 1 "rank 0: $late" "rank 2: $late" &
check return 1 "rank 0: $late" "rank 2: $late" &
check kill 300 &
check exit 300 &
wait
# Failures during an exchange.
begun="(rank [02]: )?Mpi.exchange: nothing (from|received by) rank [012] within 1 s"
check throw.begun 300 "rank 0: rank 1: no more data" "rank 1: no more data" "rank 2: rank 1: no more data" &
check memory.begun 300 "rank 0: rank 1: std::bad_alloc" "rank 2: rank 1: std::bad_alloc" &
check unwind.begun 300 &
check stop.begun 1 "rank 0: $begun" "rank 2: $begun" &
check kill.begun 300 &
check exit.begun 300 &
wait
[[ -z $(find "$work" -name '*.wrong' -size +0) ]]
