#!/usr/bin/env bash
# run.sh ROOT [EIGEN]: every seeded fault of mutants.txt must make check.cpp fail, and without a fault it passes.
set -u
root=$1 eigen=${2:-/usr/include/eigen3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

build_and_run() {  # NUMBER: compile with the headers of $dir/NUMBER, and run
  g++ -std=c++20 -O0 -w -I"$dir/$1" -I"$root/tests" -isystem "$eigen" "$root/tests/mutation/check.cpp" -o "$dir/$1/check" \
    2>"$dir/$1/log" || return 3
  timeout 100 "$dir/$1/check" >"$dir/$1/out" 2>&1
}
one() {  # NUMBER FILE FROM TO
  mkdir -p "$dir/$1" && cp -r "$root/include/gatefold" "$dir/$1/"
  local file=$dir/$1/gatefold/$2 text
  text=$(cat "$file")
  if [ "$(grep -cF -- "$3" "$file")" -ne 1 ]; then echo "STALE: $2: not there once: $3"; return; fi
  printf '%s\n' "${text/"$3"/"$4"}" >"$file"
  build_and_run "$1"
  case $? in
    0) echo "MISSED: $2: $3" ;;
    3) echo "DOES NOT COMPILE: $2: $3: $(grep -m1 error "$dir/$1/log")" ;;
    *) echo "caught: $2: $3" ;;
  esac
  rm -rf "${dir:?}/$1"
}

mkdir -p "$dir/0" && cp -r "$root/include/gatefold" "$dir/0/"
build_and_run 0 || { echo "without a fault the checks fail:"; cat "$dir/0/log" "$dir/0/out"; exit 1; }
n=0
while IFS= read -r line; do
  [[ $line == \#* || -z $line ]] && continue
  n=$((n + 1))
  file=${line%% | *} rest=${line#* | }
  one $n "$file" "${rest%% | *}" "${rest#* | }" &
  ((n % $(nproc) == 0)) && wait
done <"$root/tests/mutation/mutants.txt" >"$dir/result"
wait
sort "$dir/result"
caught=$(grep -c '^caught' "$dir/result")
echo "$caught of $n faults caught"
[ "$caught" -eq "$n" ]
