#include "gatefold/optim/optimizer.hpp"

#include <doctest/doctest.h>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "gatefold/update/plain.hpp"

using namespace gatefold;

namespace {

struct WithoutTag {
  double lr = 1;
};
struct WithoutRate {
  using IsOptimizer = void;
};

}  // namespace

TEST_CASE("optimizers carry a tag and a learning rate") {
  static_assert(optim::Optimizer<optim::Sgd> && optim::Optimizer<optim::AdamW> &&
                optim::Optimizer<optim::NormalizedGd>);
  static_assert(!optim::Optimizer<WithoutTag> && !optim::Optimizer<WithoutRate> && !optim::Optimizer<int>);
  CHECK(optim::Optimizer<optim::Sgd>);
}

TEST_CASE("update rules are no optimizers") {
  static_assert(!optim::Optimizer<update::Plain> && !optim::Optimizer<update::HeavyBall>);
  CHECK_FALSE(optim::Optimizer<update::Plain>);
}

TEST_CASE("wrappers are optimizers, in any order") {
  static_assert(optim::Optimizer<optim::Clipped<optim::AdamW>>);
  static_assert(optim::Optimizer<optim::Scheduled<optim::Clipped<optim::Sgd>, optim::Warmup>>);
  static_assert(optim::Optimizer<optim::Clipped<optim::Scheduled<optim::Sgd, optim::Warmup>>>);
  CHECK(optim::Clipped<optim::Sgd>{{.lr = 0.5}}.lr == 0.5);
}

TEST_CASE("a step count holds no tensors") {
  const optim::StepCount<Nothing<float, Cpu>> count{3};
  CHECK(count.step == 3);
  CHECK(count_values(count) == 0);
}
