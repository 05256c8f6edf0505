#include "gatefold/layer/noisy_extra.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/gate/gates.hpp"

using namespace gatefold;

TEST_CASE("NoisyExtra: forks noise per layer, also inside") {
  const Noise noise{Random{Seed{9}, 4}};
  const NoisyExtra<Noise> both{noise, noise}, third = at_layer(both, 3);
  CHECK(third.noise.random->seed.value == noise.at(3).random->seed.value);
  CHECK(third.branch.random->seed.value == noise.at(3).random->seed.value);
  CHECK(third.noise.random->seed.value != noise.random->seed.value);
  CHECK_FALSE(at_layer(NoisyExtra<Noise>{}, 3).noise.random);

  using Gate = Extra<SoftmaxTopK, float, Cpu>;
  const NoisyExtra<Gate> once = without_auxiliary(NoisyExtra<Gate>{noise, {}});
  CHECK_FALSE(once.branch.count_auxiliary);
  CHECK(once.noise.random->seed.value == 9);
}

TEST_CASE("NoisyExtra: a trace reaches the part that accepts it") {
  using Plain = NoisyExtra<Extra<SoftmaxTopK, float, Cpu>>;
  static_assert(std::is_same_v<WithoutTrace<Plain>, Plain>);
  using Aware = NoisyExtra<Extra<AttentionAware<SoftmaxTopK>, float, Cpu>>;
  static_assert(!std::is_same_v<WithoutTrace<Aware>, Aware>);
  AttentionTrace<const float, Cpu> trace{};
  trace.length = 7;
  const Aware joined = with_trace<Aware>(WithoutTrace<Aware>{{Random{Seed{9}, 4}}, {}}, trace);
  CHECK(joined.branch.mixing.trace.value.length == 7);
  CHECK(joined.noise.random->seed.value == 9);
}
