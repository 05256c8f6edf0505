#!/usr/bin/env bash
# Measures the processor time in seconds to compile the program of the README, a small language model, and
# examples/language_model with all four networks and with one. Each is compiled header-only and with gatefold::kernels.
# Also measures the library itself, and the slowest of the largest test files built in build/test.
# usage: bash bench/compile_time.sh OUTPUT.json
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tests=$root/build/test
object=$(mktemp --suffix .o)
one_network=$(mktemp --suffix .cpp) small_model=$(mktemp --suffix .cpp)
file="" rows=""
trap 'rm -f "$object" "$object.d" "$one_network" "$small_model"' EXIT
cat >"$one_network" <<'END'
#include <gatefold/gatefold.hpp>

#include "language_model/network.hpp"

std::unique_ptr<language::Model> language::make_model(const Options& o, Index vocabulary) {
  const update::HeavyBall rule{.mu = o.mu, .gamma = o.gamma};
  return std::make_unique<Network<Cpu, update::HeavyBall, OneProcess>>(o, vocabulary, rule, OneProcess{});
}
END
cat >"$small_model" <<'END'
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
#include <vector>
using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const LanguageSizes s{.vocabulary = 90, .model_dim = 64, .heads = 4, .window = 32, .depth = 2};
  const SoftmaxTopK gate{.scores = {.experts = 8}, .selection = {.k = 2}};
  Trainer trainer{ctx, switch_model(s, update::HeavyBall{.mu = 0.7}, Mixture{gate, Mlp<Gelu>{64, 128}}), s.loss(),
                  optim::Clipped{optim::AdamW{.lr = 3e-3}, 1.0}, Seed{1}};
  const std::vector<Index> ids(64, 1), next(64, 2);
  const auto extra = extra_of<decltype(trainer)::Extra>(Segment<float, Cpu>{.length = 32});
  trainer.step(ids, next, extra);
  Tensor<float, 2, Cpu> y(64, 64), z(1, 90);
  trainer.infer(ids, y, extra);
  trainer.loss.logits(ctx, trainer.params.loss, trainer.model(), std::as_const(y).view().rows(63, 1), z.view());
  save_checkpoint("state.safetensors", trainer);
  load_checkpoint("state.safetensors", trainer);
}
END

TIMEFORMAT=%U  # processor time, which other load does not change
compiler=(g++ -std=c++20 -O3 -march=native -DNDEBUG -I"$root/include" -I"$root/examples" -isystem /usr/include/eigen3)
set=$(echo GATEFOLD_CPU_ABI | "${compiler[@]}" -include gatefold/backend/cpu/instruction_set.hpp -x c++ -E -P - |
  tail -1)
add() {  # NAME COMMAND...
  local seconds
  seconds=$({ time "${@:2}" >/dev/null; } 2>&1 | tail -1)
  rows+="${rows:+, }{\"name\": \"compile_time/$1\", \"real_time\": $seconds, \"time_unit\": \"s\"}"
}
kernels=("-DGATEFOLD_KERNELS=\" $set \"")
programs=("quickstart $root/examples/quickstart.cpp"
          "small_language_model $small_model"
          "language_model/networks $root/examples/language_model/networks.cpp"
          "language_model/one_network $one_network")
for program in "${programs[@]}"; do
  read -r name source <<<"$program"
  add "$name" "${compiler[@]}" -c "$source" -o "$object"
  add "$name/kernels" "${compiler[@]}" "${kernels[@]}" -DGATEFOLD_KERNELS_IO -c "$source" -o "$object"
done
add kernels "${compiler[@]}" "${kernels[@]}" -c "$root/cmake/gatefold_kernels.cpp" -o "$object"
add kernels_io "${compiler[@]}" -c "$root/cmake/gatefold_kernels_io.cpp" -o "$object"

if [[ -d $tests ]]; then
  # Compiles the three largest test files again, because times of a build depend on other load and a compiler cache.
  most=0
  for output in $(find "$tests" -name '*_test.cpp.o' -printf '%s %P\n' | sort -rn | head -3 | cut -d ' ' -f 2); do
    command=$(ninja -C "$tests" -t commands "$output" | tail -1)
    command=${command//"$output"/"$object"}
    seconds=$({ time (cd "$tests" && CCACHE_DISABLE=1 bash -c "$command") } 2>&1 | tail -1)
    if awk "BEGIN { exit !($seconds > $most) }"; then most=$seconds file=${output##*.dir/}; fi
  done
  ((${#file})) && rows+=", {\"name\": \"compile_time/slowest_test/$file\", \"real_time\": $most, \"time_unit\": \"s\"}"
fi
echo "{\"context\": {}, \"benchmarks\": [$rows]}" >"$1"
