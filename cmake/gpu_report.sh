#!/usr/bin/env bash
# gpu_report.sh [--check] [ARCHITECTURE...]: writes the report of ptxas about the kernels of layers of every kind
# (tests/cuda_build/layer_kernels.cu) into docs/how-to/gpu.md. With --check, writes no file.
# Needs nvcc, but no GPU. Compiles for minutes per architecture.
# Exit code 1 if one of our kernels spills registers; prints the name of each.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null ||
  { echo "gpu_report.sh needs nvcc, which is neither in PATH nor in /usr/local/cuda/bin"; exit 2; }
check=""
if [[ ${1:-} == --check ]]; then
  check=1
  shift
fi
(($#)) || set -- 75 80 90a 100 120  # 90a: Hopper's own instructions
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints one line per kernel: architecture, name, threads of a block, registers, bytes of shared memory, bytes spilled.
compile() {
  local arch=$1
  echo "compiling for sm_$arch" >&2
  mkdir "$work/$arch"
  nvcc -std=c++20 -O3 -DNDEBUG -I"$root/include" -arch="sm_$arch" -Xptxas -v --keep --keep-dir "$work/$arch" \
    -cubin "$root/tests/cuda_build/layer_kernels.cu" -o "$work/$arch/kernels.cubin" 2>"$work/$arch/log" ||
    { grep error "$work/$arch/log" | cut -c -300; return 2; }
  awk -v arch="$arch" '
    # Reads the threads of a block from the PTX.
    FNR == NR && /\.entry / { name = $0; sub(/.*\.entry +/, "", name); sub(/[( ].*/, "", name) }
    FNR == NR && /^\.(maxntid|reqntid)/ { threads[name] = $2 + 0 }
    FNR == NR { next }
    # Reads the messages of ptxas.
    /Compiling entry function/ { split($0, part, "\x27"); name = part[2] }
    /bytes spill stores/ { spilled = $5 + $9 }
    /Used [0-9]+ registers/ {
      match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
      shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
      print arch, name, threads[name] + 0, registers, shared, spilled
    }' "$work/$arch/layer_kernels.ptx" "$work/$arch/log" >"$work/$arch/kernels"
}
compiling=()
for arch in "$@"; do
  compile "$arch" &
  compiling+=($!)
  if ((${#compiling[@]} == $(nproc))); then
    wait "${compiling[0]}" || exit 2
    compiling=("${compiling[@]:1}")
  fi
done
for process in "${compiling[@]}"; do wait "$process" || exit 2; done
for arch in "$@"; do cat "$work/$arch/kernels"; done >"$work/kernels"
[[ -s $work/kernels ]] || { echo "ptxas named no kernel"; exit 2; }

# Shortens mangled names, for example to "each_kernel". CUB writes its version and the architecture into its names.
paste -d ' ' <(cut -d ' ' -f 2 "$work/kernels" | c++filt |
  sed -E -e 's/^void //; s/\(anonymous namespace\):://g; s/[<(].*//' \
    -e 's/gatefold::detail_::device:://; s/cub::.*::/cub::/') \
  "$work/kernels" >"$work/named"

awk -v architectures="$*" -v compiler="$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')" '
BEGIN {
  # Per multiprocessor: threads, blocks, KiB of shared memory (CUDA C++ Programming Guide, compute capabilities).
  split("75 80 86 89 90 100 103 120", known, " ")
  split("1024 2048 1536 1536 2048 2048 2048 1536", t, " ")
  split("16 32 16 24 32 32 32 24", b, " ")
  split("64 164 100 100 228 228 228 100", k, " ")
  for (i in known) { max_threads[known[i]] = t[i]; max_blocks[known[i]] = b[i]; max_shared[known[i]] = 1024 * k[i] }
}
function least(a, b) { return a < b ? a : b }
# Returns the percentage of the threads of a multiprocessor that can run at once. A multiprocessor has 65536 registers.
# It allocates them in units of 256 for a warp, and in units of 4 warps.
function occupancy(arch, threads, registers, shared,  warps, blocks) {
  arch += 0  # 90a is equal to 90
  warps = int((threads + 31) / 32)
  blocks = least(max_blocks[arch], int(max_threads[arch] / 32 / warps))
  blocks = least(blocks, int(int(65536 / (256 * int((registers * 32 + 255) / 256)) / 4) * 4 / warps))
  if (arch >= 80) shared += 1024  # the system uses one KiB of shared memory for each block
  if (shared > 0) blocks = least(blocks, int(max_shared[arch] / shared))
  return 100 * blocks * warps * 32 / max_threads[arch]
}
function range(low, high) { return low == high ? low : low "–" high }
{
  row = $1; arch = $2; at = row SUBSEP arch
  if ($4 == 0) next  # kernels without a bound on their threads have no row
  if (!(row in fewest)) { rows[++count] = row; fewest[row] = most[row] = $4 }
  fewest[row] = least(fewest[row], $4); most[row] = -least(-most[row], -$4)
  o = occupancy(arch, $4, $5, $6)
  if (!(at in n)) { low[at] = high[at] = $5; busy[at] = o }
  low[at] = least(low[at], $5); high[at] = -least(-high[at], -$5)
  spilled[at] = -least(-spilled[at], -$7)
  shared[at] = -least(-shared[at], -$6); busy[at] = least(busy[at], o)
  n[at]++
}
END {
  print "ptxas of CUDA " compiler ": no kernel of ours spills registers. In each cell: registers of a thread / " \
    "largest static shared"
  print "memory of a block in bytes / lowest occupancy that both allow; memory that a launch asks for is not counted."
  print ""
  columns = split(architectures, a, " ")
  printf "| kernel | variants | threads |"
  for (j = 1; j <= columns; ++j) printf " sm_%s |", a[j]
  printf "\n|---|---|---|"
  for (j = 1; j <= columns; ++j) printf "---|"
  print ""
  for (i = 1; i <= count; ++i) {
    row = rows[i]
    printf "| `%s` | %d | %s |", row, n[row, a[1]], range(fewest[row], most[row])
    for (j = 1; j <= columns; ++j) {
      at = row SUBSEP a[j]
      if (at in n) printf " %s / %d / %d %%", range(low[at], high[at]), shared[at], busy[at]
      else printf " –"
      printf "%s |", (spilled[at] > 0 ? ", spills " spilled[at] " bytes" : "")
    }
    print ""
  }
}' <(sort -s -k1,1 -k2,2n "$work/named") >"$work/table"

spilled='$7 > 0 && $1 !~ /^cub::/ { printf "sm_%s: %d bytes spilled: %s\n", $2, $7, $3 }'
if spills=$(awk "$spilled" "$work/named" | c++filt) && [[ -n $spills ]]; then
  echo "$spills"
  exit 1
fi
if [[ -n $check ]]; then
  echo "$(wc -l <"$work/kernels") kernels, none spills"
  exit 0
fi
awk -v table="$work/table" '
/<!-- \/kernels -->/ { inside = 0 }
!inside { print }
/<!-- kernels -->/ { inside = found = 1; while ((getline line < table) > 0) print line }
END { exit !found }' "$root/docs/how-to/gpu.md" >"$work/page" ||
  { echo "docs/how-to/gpu.md has no <!-- kernels --> … <!-- /kernels -->"; exit 2; }
cp "$work/page" "$root/docs/how-to/gpu.md"
echo "docs/how-to/gpu.md: $(wc -l <"$work/kernels") kernels, none spills"
