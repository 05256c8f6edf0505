#!/usr/bin/env bash
# Builds and runs the tests. Installs the Debian packages they need, after naming them. Writes only below build/.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/install_packages.sh"

usage() {
  cat <<END
usage: bash tests/run.sh [--only WORD | --full | --neon | --platforms | --gpu [WORD] | --help]
  (none)       preset test (optimised: backend, bitwise, pairwise, golden, allocation, examples, package), sanitize
               (the own test of every header; preset test runs it too if its cases are too slow there), tsan (the thread
               sanitizer: distribution of work, and training), v3 (backend), and, if nvcc is found, cuda: the tests of
               the CUDA backend, with device code on an emulator on the CPU
  --only WORD  only the tests whose name matches the regular expression WORD: gate, package, gate/selection/top_k, ...;
               in preset cuda if WORD begins with cuda (cuda, cuda/gates, ...), otherwise in preset test
  --full       every test in every preset, also the test cases marked as slow, and compiles the programs of bench/;
               takes hours
  --neon       the tests of the CPU backend compiled for aarch64 and run by qemu: installs a cross compiler and
               qemu-user
  --platforms  the programs of examples/ with other compilers and standard libraries, which it installs: newer clang,
               libc++, and mingw-w64. Then examples and the tests of core, tensor and backend/cpu for macOS, Windows
               and musl with PyPI's ziglang; musl runs here and under qemu, Windows under wine. Restartable: a second
               call continues an interrupted one
  --gpu [WORD] the tests of the CUDA backend (those that match WORD) on this machine's GPU, with NVIDIA's own libraries;
               needs nvcc, cmake, ninja, g++ and doctest's header, installs nothing. Options for cmake:
               CMAKE_OPTIONS="-D..."
END
}

full="" only="" gpu="" neon="" platforms=""
while (($#)); do
  case $1 in
    --full) full=1 ;;
    --neon) neon=1 ;;
    --platforms) platforms=1 ;;
    --only) [[ -n ${2:-} ]] || { usage; exit 2; }; only=$2; shift ;;
    --gpu) gpu=1; [[ -z ${2:-} || $2 == -* ]] || { only=$2; shift; } ;;
    --help | -h) usage; exit 0 ;;
    *) usage; exit 2 ;;
  esac
  shift
done

command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
if [[ -n $gpu ]]; then
  command -v nvcc >/dev/null ||
    { echo "--gpu needs nvcc, which is neither in PATH nor in /usr/local/cuda/bin"; exit 2; }
  device=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
  [[ -n $device ]] || { echo "--gpu needs a CUDA device, but nvidia-smi lists none"; exit 2; }
  commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null)
  echo "== gpu: $device, $(nvcc --version | sed -n 's/.*release/CUDA/p'), $(date +%F), commit ${commit:-unknown}"
else
  install_packages g++ clang libclang-rt-14-dev libc++-14-dev libc++abi-14-dev lld cmake ninja-build pkg-config \
    doctest-dev libeigen3-dev nlohmann-json3-dev zlib1g-dev libcli11-dev librapidcheck-dev libopenmpi-dev openmpi-bin \
    clang-format python3-pip || exit 1
fi
export GATEFOLD_CI=1  # CMakePresets.json shows the presets of this script only with it
if [[ -n $platforms ]]; then
  install_packages clang-22 clang-19 libc++-19-dev libc++abi-19-dev g++-mingw-w64-x86-64-posix libeigen3-dev \
    nlohmann-json3-dev python3-venv qemu-user wine64 || exit 1
  exec bash "$root/tests/platforms.sh"
fi
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache \
  CCACHE_SLOPPINESS=pch_defines,time_macros  # for precompiled headers
cd "$root" || exit 1
jobs=$(nproc)
# Unity builds for full runs (three times faster); one file at a time with --only.
unity=-DGATEFOLD_UNITY_BYTES=200000
passed=0 failed=0

# configure PRESET CMAKE_OPTION...: writes its output to build/PRESET.log.
configure() {
  mkdir -p "$root/build"
  cmake --preset "$@" >"$root/build/$1.log" 2>&1
}

# If the script is stopped, the build that runs next to the tests is stopped, too.
building=
trap '[[ -z $building ]] || kill -- "-$building" 2>/dev/null' EXIT

# build PRESET NICENESS: builds the programs of the tests, or only those of the chosen tests.
build() {
  local preset=$1 targets=()
  if [[ -n $only ]]; then
    # Only the programs that the chosen tests start or pass to a script.
    mapfile -t targets < <(find "build/$preset" -name CTestTestfile.cmake -exec cat {} + |
      awk -v only="$only" -v build="$root/build/$preset/" '
        /^add_test\(/ {
          name = $0; sub(/^add_test\((\[=\[|")/, "", name); sub(/(\]=\]|").*/, "", name)
          if (name !~ only) next
          n = split($0, part, "\"")
          for (i = 2; i <= n; ++i) if (index(part[i], build) == 1) print substr(part[i], length(build) + 1)
        }' | LC_ALL=C sort -u |
      LC_ALL=C comm -12 - <(ninja -C "build/$preset" -t targets all | sed 's/: [^ ]*$//' | LC_ALL=C sort -u))
    targets=("${targets[@]:-help}")
  fi
  [[ -n $full && $preset == test ]] && targets=(all all_verify_interface_header_sets)
  ((${#targets[@]} == 0)) || targets=(--target "${targets[@]}")
  exec nice -n "$2" cmake --build --preset "$preset" -j "$jobs" "${targets[@]}" -- -k 0
}
configured() { grep -q "^-- Build files have been written" "$root/build/$1.log"; }

# stage PRESET [NEXT]: builds and tests one configured preset, and adds up the results of ctest. NEXT is built at the
# same time, because tests leave processors idle: many wait, and some use both.
stage() {
  local preset=$1 next=${2:-} log=$root/build/$1.log begin=$SECONDS built
  if ! configured "$preset"; then
    echo "== $preset: configure FAILED"
    cat "$log"
    ((++failed))
  else
    echo "== $preset: build"
    if [[ -n $building ]]; then
      tail -n +1 -f -s 0.2 --pid="$building" "$root/build/$preset.build.log"
      wait "$building"
    else
      (build "$preset" 0)
    fi || { ((++failed)); echo "== $preset: build FAILED"; }
  fi
  building=
  built=$SECONDS
  if [[ -n $next ]] && configured "$next"; then
    set -m  # in a separate process group, which is stopped as a whole
    (build "$next" 19) >"$root/build/$next.build.log" 2>&1 &
    building=$!
    set +m
  fi
  configured "$preset" || return
  echo "== $preset: test"
  local test=(--preset "$preset" -j "$jobs")
  [[ -n $only ]] && test+=(-R "$only")
  ctest "${test[@]}" 2>&1 | tee "$log"
  local summary='% tests passed(, ([0-9]+) tests? failed)? out of ([0-9]+)'  # newer ctest omits "0 tests failed"
  if [[ $(<"$log") =~ $summary ]]; then
    ((failed += BASH_REMATCH[2], passed += BASH_REMATCH[3] - BASH_REMATCH[2]))
  else
    ((++failed))  # ctest found no tests
  fi
  echo "== $preset: built after $((built - begin)) s, tested in $((SECONDS - built)) s"
}

if [[ -n $gpu ]]; then
  read -ra options <<<"${CMAKE_OPTIONS:-}"
  # The architecture with Hopper's own instructions, which `native` does not include.
  [[ $device == *", 9.0, "* ]] && options=(-DGATEFOLD_CUDA_ARCHITECTURES=90a "${options[@]}")
  configure gpu "${options[@]}"
  stage gpu
elif [[ $only == cuda* ]]; then
  configure cuda -DGATEFOLD_UNITY_BYTES=0
  stage cuda
elif [[ -n $neon ]]; then
  install_packages g++-aarch64-linux-gnu qemu-user || exit 1
  configure neon
  stage neon
elif [[ -n $only ]]; then
  configure test -DGATEFOLD_TESTS_LEFT_OUT=
  stage test
else
  if [[ -n $full ]]; then
    install_packages debootstrap gcovr python3-venv libbenchmark-dev
    all=("$unity" -DGATEFOLD_SLOW_TESTS=ON -DGATEFOLD_TEST_PROJECT=ON -DGATEFOLD_TEST_FOLDERS=
      -DGATEFOLD_TESTS_LEFT_OUT= -DGATEFOLD_TEST_FOLDERS_UNOPTIMISED= -DGATEFOLD_TEST_FOLDERS_BY_CLANG=)
    test=("${all[@]}" "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -march=native" -DCMAKE_VERIFY_INTERFACE_HEADER_SETS=ON
      -DGATEFOLD_DIFFERENTIAL_SECONDS=1800 -DGATEFOLD_BUILD_BENCH=ON)
    all+=(-DGATEFOLD_MUTATION_TESTS=OFF)  # one preset runs them
    checks="-fsanitize=address,undefined -fno-sanitize-recover=all"
    sanitize=("${all[@]}" -DGATEFOLD_KERNELS_OPTIMISATION=-O3
      "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -gline-tables-only $checks")
    tsan=("${all[@]}" -DGATEFOLD_FUZZ_SECONDS=10)
    v3=("${tsan[@]}")
    cuda=(-DGATEFOLD_SLOW_TESTS=ON -DCMAKE_CUDA_HOST_COMPILER=g++ -DCMAKE_CUDA_FLAGS=
      "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" "-DCMAKE_CUDA_FLAGS_RELEASE=-O1 -DNDEBUG")
  else
    # The own test of a header is built once, with the sanitizers. These tests are built in preset test too: those with
    # cases that are left out with the sanitizers (slow_build), those of backend/, those of MPI, because mpirun also
    # runs them, and those that name --icf=all, because preset test links that way.
    mapfile -t folders < <(cd include/gatefold && find . -mindepth 1 -maxdepth 1 -type d ! -name backend)
    once=$(cd tests && find "${folders[@]}" -name '*_test.cpp' ! -name 'golden_*' ! -name 'mpi*' \
      -exec grep -LE 'slow_build|__OPTIMIZE__|icf=all' {} + | sed 's|^\./||' | tr '\n' '|')
    # Studies use code that the tests of the library cover; run them with --full, or --only examples/studies.
    studies='^examples/studies/'
    test=("$unity" "-DGATEFOLD_TESTS_LEFT_OUT=^(${once%|})\$|$studies") sanitize=() tsan=() v3=() cuda=()
  fi
  presets=(test sanitize tsan v3 cuda)
  command -v nvcc >/dev/null || { echo "== cuda: skipped, no nvcc"; unset "presets[4]"; }
  echo "== ${presets[*]}: configure"
  for preset in "${presets[@]}"; do  # in parallel, because much of it is waiting
    declare -n options=$preset
    configure "$preset" "${options[@]}" &
  done
  wait
  for ((i = 0; i < ${#presets[@]}; ++i)); do stage "${presets[i]}" "${presets[i + 1]:-}"; done
fi
echo "total time $SECONDS s"
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
