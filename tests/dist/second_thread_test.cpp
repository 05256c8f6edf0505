#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/dist.hpp"
#include "gatefold/dist/async_checkpoint.hpp"
#include "gatefold/gatefold.hpp"
#include "gatefold/train/async_checkpoint.hpp"
#include "support/pass.hpp"
#include "support/second_thread.hpp"
#include "support/temporary.hpp"

using namespace gatefold;
using support::Interrupted;
using support::Interruption;
using support::on_second_thread;
using support::same_bits;
using support::values;

namespace {

constexpr Index kDim = 6, kItems = 12, kFew = 3, kSteps = 2;
const std::string refused = support::second_thread_refused;

auto mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                 Mlp<Gelu>{.model_dim = kDim, .hidden_dim = 7}};
}
auto model(const auto& branch, Interruption& at) {
  const Residual layer{update::HeavyBall{.mu = 0.7, .gamma = 0.9}, branch};
  return Chain{layer, Interrupted{kDim, &at}, layer};
}

}  // namespace

