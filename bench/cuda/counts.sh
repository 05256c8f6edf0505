#!/usr/bin/env bash
# counts.sh PROGRAM [--renew]: compares the output of cuda_counts with the tables in docs/explanation/gpu_speed.md. With
# --renew, writes the output into that page.
# Exit code 1 if a number differs or the program fails, 77 if the tables were made with another nvcc, whose PTX can
# differ.
set -euo pipefail
page=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/docs/explanation/gpu_speed.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$1" >"$work/counted"
awk '/<!-- \/counts -->/ { inside = 0 } inside { print } /<!-- counts -->/ { inside = 1 }' "$page" >"$work/stated"
[[ -s $work/stated ]] || { echo "$page has no <!-- counts --> … <!-- /counts -->"; exit 1; }
if [[ ${2:-} == --renew ]]; then
  awk -v table="$work/counted" '
/<!-- \/counts -->/ { inside = 0 }
!inside { print }
/<!-- counts -->/ { inside = 1; while ((getline line < table) > 0) print line }' "$page" >"$work/page"
  cp "$work/page" "$page"
  exit
fi
compiler() { grep -o 'nvcc [0-9.]*' "$1"; }
if [[ $(compiler "$work/stated") != $(compiler "$work/counted") ]]; then
  echo "not compared: the tables were made with $(compiler "$work/stated"), this is $(compiler "$work/counted")"
  exit 77
fi
if ! diff "$work/stated" "$work/counted"; then
  echo "stated (<) and counted (>) differ; to renew: bash $0 $1 --renew"
  exit 1
fi
