#include "gatefold/optim/clone.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/train/in_groups.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto model() {
  return Chain{Embedding{.vocabulary = 7, .model_dim = 4},
               Stack{Residual{update::HeavyBall{}, Mixture{SigmoidTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                           Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}}},
                     2}};
}
const std::vector<Index> ids{1, 2, 5, 2, 0, 1}, next{2, 3, 1, 2, 3, 0};

}  // namespace

TEST_CASE("clone: parameters have equal names and bits, in other memory") {
  Cpu::Context ctx(1);
  Trainer trainer{ctx, model(), CrossEntropy{}, optim::AdamW{}, Seed{1}};
  trainer.step(ids, next);
  const auto best = clone(ctx, trainer.params);
  static_assert(std::is_same_v<decltype(best), const decltype(trainer.params)>);
  CHECK(same_bits(values(best), values(trainer.params)));
  expect_like("test", "best", trainer.params, best);
  for_each_tensor([](const Name&, const auto& a, const auto& b) { CHECK((a.size() == 0 || a.data() != b.data())); },
                  best, trainer.params);

  const auto before = values(trainer.params);
  trainer.step(ids, next);
  CHECK(!same_bits(values(best), values(trainer.params)));
  CHECK(same_bits(values(best), before));
  copy_pack(ctx, best, trainer.params);
  CHECK(same_bits(values(trainer.params), before));
}

TEST_CASE("clone: runs with cloned parameters and state take equal steps") {
  Cpu::Context ctx(1);
  const optim::Clipped optimizer{
      InGroups{+[](const Name& name) { return name.str().find("gate") != std::string::npos; },
               optim::Sgd{.lr = 0.1, .momentum = 0.9}, optim::AdamW{.lr = 0.01}}};
  Trainer first{ctx, model(), CrossEntropy{}, optimizer, Seed{1}};
  for (int t = 0; t < 3; ++t) first.step(ids, next);
  Trainer second{ctx, model(), CrossEntropy{}, optimizer, Seed{2}};
  second.params = clone(ctx, first.params);
  second.state = clone(ctx, first.state);
  CHECK(second.state.step == 3);
  CHECK(same_bits(values(second.state), values(first.state)));
  for (int t = 0; t < 3; ++t) CHECK(first.step(ids, next) == second.step(ids, next));
  CHECK(same_bits(values(second.params), values(first.params)));
}

TEST_CASE("clone: copies one tensor; deferred zeros throw until written") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{4}, 1, 3, 5);
  CHECK(same_bits(values(clone(ctx, x)), values(x)));
  CHECK(clone(ctx, Tensor<float, 2, Cpu>{}).size() == 0);
  Tensor<float, 3, Cpu> zeros(2, 2, 2);
  fill(ctx, zeros, 3);
  zeros.defer_zeros(ctx);
  CHECK_THROWS_AS(clone(ctx, zeros), Error);
  write_zeros(zeros);
  CHECK(values(clone(ctx, zeros)) == std::vector<double>(8, 0));
}

namespace {

struct Counted {
  Tensor<float, 1, Cpu> m;
  Index step = 0;
  GATEFOLD_PACK(m)
};
struct Listed {
  Counted inner;
  double rate = 0;
  Index step = 0;  // not listed
  GATEFOLD_PACK(inner)
  static void counters(auto&& f, auto&... s) { f("rate", s.rate...); }
};
struct Owner {
  std::vector<Counted> many;
  std::tuple<Listed, Counted> pair;
  GATEFOLD_PACK(many, pair)
};

}  // namespace

TEST_CASE("for_each_counter: visits listed counters, or `step` without a list") {
  Owner owner;
  owner.many.resize(2);
  owner.many[1].step = 3;
  std::get<0>(owner.pair).rate = 0.5;
  std::get<0>(owner.pair).inner.step = 5;
  std::get<1>(owner.pair).step = 7;
  std::string found;
  optim::for_each_counter(
      [&](const Name& name, const auto& number) { found += name.str() + "=" + std::to_string(number) + " "; }, Name{},
      std::as_const(owner));
  CHECK(found == "many.0.step=0 many.1.step=3 pair.0.rate=0.500000 pair.0.inner.step=5 pair.1.step=7 ");
  optim::for_each_counter([](const Name&, auto& number) { number = 11; }, Name{}, owner);
  CHECK(owner.many[0].step == 11);
  CHECK(std::get<0>(owner.pair).rate == 11);
  CHECK(std::get<0>(owner.pair).step == 0);
}

TEST_CASE("counters: integers and floating-point numbers are restored exactly") {
  CHECK(optim::kept(Index(7)) == 7);
  CHECK(optim::restored<int>(optim::kept(7)) == 7);
  CHECK(optim::kept(1.0) == std::uint64_t{0x3ff0000000000000});
  CHECK(optim::kept(1.0f) == std::uint32_t{0x3f800000});
  for (const double x : {0.1, -0.0, std::numeric_limits<double>::infinity(), 5e-324})
    CHECK(optim::kept(optim::restored<double>(optim::kept(x))) == optim::kept(x));
  CHECK(optim::restored<float>(optim::kept(0.1f)) == 0.1f);
}
