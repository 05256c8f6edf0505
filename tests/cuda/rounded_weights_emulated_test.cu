// The emulator counts how often weights are rounded. A step must round them once, even if several products read them.

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#include "gatefold/gatefold.cuh"
#include "support/rounded_training.hpp"

using namespace gatefold;
using namespace gatefold::support::rounded_training;

namespace {

/// Returns the number of launches by f of kernels that round floats (weights or items).
template <class F>
Index roundings_of(const F& f) {
  cuda_emulator::counters_by_kernel().clear();
  f();
  Index launches = 0;
  for (const auto& [kernel, counters] : cuda_emulator::counters_by_kernel())
    if (kernel.find("RoundRow") != std::string::npos) launches += static_cast<Index>(counters.launches);
  return launches;
}

struct Counts {
  Index first, later, last, step, evaluation;
};
Counts counts_of(bool keeps, bool recompute) {
  CudaBf16::Context ctx;
  Trainer trainer{ctx, model(recompute), MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  trainer.keeps_rounded = keeps;
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
  trainer.step(x, x);
  Counts c;
  c.first = roundings_of([&] { trainer.accumulate(x, x); });
  c.later = roundings_of([&] { trainer.accumulate(x, x); });
  c.last = roundings_of([&] { trainer.step(x, x); });
  c.step = roundings_of([&] { trainer.step(x, x); });
  c.evaluation = roundings_of([&] { trainer.evaluate(x, x); });
  return c;
}

}  // namespace

TEST_CASE("cuda: RoundedWeights: a step rounds each weight bank once") {
  for (const bool recompute : {false, true}) {
    CAPTURE(recompute);
    const Counts without = counts_of(false, recompute), with = counts_of(true, recompute);
    const Index passes = banks * (recompute ? 3 : 2);  // forward, forward again, backward
    CHECK(without.step == without.later);
    CHECK(with.step == without.step - passes + banks);
    CHECK(with.first == without.first - passes + banks);
    CHECK(with.later == without.later - passes);
    CHECK(with.last == without.last - passes);
    CHECK(with.evaluation == without.evaluation);
  }
}

TEST_CASE("cuda: RoundedWeights: a later refresh neither allocates nor waits") {
  CudaBf16::Context ctx;
  const auto params = init_params<float, CudaBf16>(model(), ctx, Seed{1});
  RoundedWeights<CudaBf16> rounded;
  rounded.refresh(ctx, params);
  CHECK(rounded.packed.size() == banks);
  cuda_emulator::calls().by_name.clear();
  CHECK(roundings_of([&] { rounded.refresh(ctx, params); }) == banks);
  for (const auto& call : cuda_emulator::calls().by_name) {
    const std::string& name = call.first;
    CAPTURE(name);
    CHECK(name.find("Malloc") == std::string::npos);
    CHECK(name.find("Free") == std::string::npos);
    CHECK(name.find("Synchronize") == std::string::npos);
    CHECK(name.find("Memcpy") == std::string::npos);
  }
}
