#!/usr/bin/env bash
# bits.sh PROGRAM LAUNCHER FLAG PROCESSES.THREADS...: checks that PROGRAM (bits.cpp) writes the same bytes for each
# number of processes and of threads per shard, whether experts stay, move, or serve with copies. `LAUNCHER FLAG R`
# starts R processes, for example mpirun -n R.
program=$1 launcher=$2 flag=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work  # a separate folder: mpirun would remove an empty folder that another run uses
failed=0
first=
for run; do
  processes=${run%.*} threads=${run#*.} folder=$work/$run
  mkdir "$folder"
  timeout 300 "$launcher" "$flag" "$processes" "$program" "$folder" "$threads" </dev/null ||
    { echo "$processes processes, $threads threads: exit status $?"; failed=1; continue; }
  [[ -n $first ]] || { first=$folder; (($(find "$first" -type f | wc -l) == 26)) || { ls "$first"; failed=1; }; }
  diff -rq "$first" "$folder" || failed=1
  cmp "$folder/top_k" "$folder/top_k.chunks" || failed=1
  ! cmp -s "$folder/top_k" "$folder/bfloat16" || { echo "bfloat16 gives the bits of top_k"; failed=1; }
  for stays in top_k bfloat16 soft_moe sharpness_aware; do
    cmp "$folder/$stays" "$folder/$stays.moves" || failed=1
  done
  cmp "$folder/served" "$folder/served.copies" || failed=1
done
exit $failed
