#!/usr/bin/env bash
# run.sh WORK COMPILER INCLUDE...: compiles the same source with several -march and with -ffast-math, and links every
# two of the objects in both orders, and all of them. Each linked program must print the same as the programs that
# contain only one object. Of the names of gatefold and Eigen, the linker may merge only those that shared.txt lists.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1 compiler=$2
shift 2
includes=()
for folder; do includes+=(-isystem "$folder"); done
rm -rf "$work"
mkdir -p "$work"
cd "$work"

# Prints the library's name for an instruction set. Below, each instruction set of this machine that has a different
# name is one of the parts.
abi() {
  echo GATEFOLD_CPU_ABI |
    "$compiler" -std=c++20 "-march=$1" "${includes[@]}" -include gatefold/backend/cpu/instruction_set.hpp \
      -x c++ -E -P - | tail -1
}
declare -A march=([narrow]=x86-64 [fast]=x86-64 [middle]=x86-64-v3 [native]=native)
parts=(narrow fast)
has=$("$compiler" -march=native -dM -E -x c++ /dev/null)
if [[ $has == *__AVX2__* && $has == *__FMA__* && $has == *__BMI2__* ]]; then parts+=(middle); fi
native=$(abi native) known=
for part in "${parts[@]}"; do known+=" $(abi "${march[$part]}") "; done
if [[ $known != *" $native "* ]]; then parts+=(native); fi

"$compiler" -std=c++20 -O1 -c "$here/main.cpp"
for part in "${parts[@]}"; do
  flags=("-march=${march[$part]}")
  [[ $part != fast ]] || flags+=(-ffast-math)
  "$compiler" -std=c++20 -O1 "${flags[@]}" "${includes[@]}" "-DPART=$part" -c "$here/part.cpp" -o "$part.o"
  "$compiler" main.o "$part.o" -o "$part"
  "./$part" >"$part.txt" || { cat "$part.txt"; exit 1; }
done

status=0
mixed() {  # links the parts in the given order
  "$compiler" main.o "${@/%/.o}" -o mixed
  if ! ./mixed | sort >mixed.txt || ! diff <(sort "${@/%/.txt}") mixed.txt; then
    echo "FAILED: linked in the order $*"
    cat mixed.txt
    status=1
  fi
}
for a in "${parts[@]}"; do
  for b in "${parts[@]}"; do
    if [[ $a != "$b" ]]; then mixed "$a" "$b"; fi
  done
done
if ((${#parts[@]} > 2)); then mixed "${parts[@]}"; fi

weak() { nm "$1" | awk '$2 ~ /^[WVu]$/ { print $3 }' | sort; }
grep -v '^#' "$here/shared.txt" >allowed.txt
for a in "${parts[@]}"; do
  for b in "${parts[@]}"; do
    if [[ $a < $b ]]; then
      # Lists every shared name that contains gatefold:: or Eigen::. Functions of the standard library contain it, too,
      # if a type of gatefold is one of their arguments; shared.txt allows some of them.
      comm -12 <(weak "$a.o") <(weak "$b.o") | c++filt | grep -E 'gatefold::|Eigen::' |
        grep -vEf allowed.txt >shared.out || true
      if [[ -s shared.out ]]; then
        echo "FAILED: shared by $a and $b:"
        cat shared.out
        status=1
      fi
    fi
  done
done
echo "${parts[*]}: ${march[*]}"
exit $status
