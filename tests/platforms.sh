#!/usr/bin/env bash
# platforms.sh: compile the programs of examples/ with compilers and standard libraries that the tests do not use, and
# run those that run here. Called by `bash tests/run.sh --platforms`, which installs them.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
programs=(quickstart papers serving metrics own_gate own_rule own_carry own_branch own_loss own_optimizer own_expert
          own_selection own_extra own_data written_out)
ln -s /usr/include/nlohmann "$work/nlohmann"  # alone: what else lies there is another system's
failed=0

# platform NAME WHETHER-IT-RUNS-HERE COMPILER OPTION...
platform() {
  local name=$1 runs=$2 program count=0
  shift 2
  command -v "$1" >/dev/null || { echo "$name: no $1"; failed=1; return; }
  for program in "${programs[@]}"; do
    if ! "$@" -std=c++20 -O1 -Wall -Wextra -Werror -I"$root/include" -isystem /usr/include/eigen3 -isystem "$work" \
      "$root/examples/$program.cpp" -o "$work/program" 2>"$work/log"; then
      echo "$name: $program does not compile:"; grep -m 3 -E "error|undefined" "$work/log"; failed=1
    elif [[ $runs == yes ]] && ! (cd "$work" && ./program >/dev/null 2>"$work/log"); then
      echo "$name: $program fails: $(tail -n 1 "$work/log")"; failed=1
    else
      ((++count))
    fi
  done
  echo "$name: $count of ${#programs[@]} programs ($("$1" -dumpversion))"
}

platform "clang 22" yes clang++-22 -march=native
platform "clang 19, libc++" yes clang++-19 -stdlib=libc++ -march=native
platform "Windows by mingw-w64" no x86_64-w64-mingw32-g++-posix -static
exit $failed
