#!/usr/bin/env bash
# run.sh WORK COMPILER INCLUDE...: objects compiled with different -march, or with -ffast-math, are linked in every
# order, run, and compared with programs of one of them; what a linker merges of two objects is on the list shared.txt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1 compiler=$2
shift 2
includes=()
for folder; do includes+=(-isystem "$folder"); done
rm -rf "$work"
mkdir -p "$work"
cd "$work"

# Instruction sets that this machine has, each with a name of its own in the library.
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
mixed() {  # the parts in this order
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
      # A function's own name, for a type of the standard library may have one of ours as its argument.
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
