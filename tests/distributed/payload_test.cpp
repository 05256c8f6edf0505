// Tests rows that shards exchange in bfloat16 (dist::ExchangeOptions).
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/gatefold.hpp"
#include "support/payload.hpp"

using namespace gatefold;
using test::PayloadCase;

namespace {

constexpr auto anywhere = [](Index) {};
const Linear linear{.model_dim = PayloadCase::dim, .output_dim = PayloadCase::out};

/// Returns u of a mixture on two shards, with one pick of weight 1 for each item.
template <class B>
Tensor<float, 2, B> results(dist::ExchangeOptions exchange) {
  constexpr Index items = 23, dim = 16;
  Tensor<float, 2, B> u(items, dim);
  dist::Alone world;
  dist::run(world, 2, [&](auto& shard) {
    typename B::Context ctx(1);
    const dist::ExpertParallel branch{
        Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 1}}, Linear{.model_dim = dim}},
        &shard,
        {},
        exchange};
    const auto params = init_params<float, B>(branch, ctx, Seed{1});
    const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
    const auto mine = shard.part_of(items);
    infer(branch, ctx, params, x.view().rows(mine.first, mine.count), u.view().rows(mine.first, mine.count));
  });
  return u;
}

}  // namespace

TEST_CASE("payload: items, results and adjoints are rounded on every shard") {
  for (const bool keeps_results : {false, true}) {
    const PayloadCase c(keeps_results);
    for (const Index shards : {1, 2, 3})
      for (const std::vector<Index>& placement : {std::vector<Index>{}, std::vector<Index>(4, shards - 1),
                                                  std::vector<Index>{shards - 1, 0, shards / 2, 0}}) {
        CAPTURE(keeps_results);
        CAPTURE(shards);
        CAPTURE(placement);
        dist::Alone world;
        const auto wrong = [&]<class B>() {
          const auto of = [&](const auto& expert) {
            return test::wrong_of_payload(c, test::run_payload<B>(world, c, expert, shards, {placement},
                                                                  {.bfloat16 = true, .chunks = shards}, anywhere));
          };
          return keeps_results ? of(test::UnweightedLinear{linear}) : of(linear);
        };
        CHECK(wrong.operator()<Cpu>() == 0);
        CHECK(wrong.operator()<CpuBf16>() == 0);
      }
    // Without the option the values differ.
    dist::Alone world;
    CHECK(test::wrong_of_payload(c, test::run_payload<Cpu>(world, c, linear, 2, {}, {}, anywhere)) > 100);
  }
}

TEST_CASE("payload: rows have half the bytes, other traffic is unchanged") {
  const PayloadCase c(false);
  const dist::Placement placement{{2, 0, 1, 0}};
  constexpr Index shards = 3;
  dist::Alone world;
  const auto given = [&](dist::ExchangeOptions exchange, const auto& expert) {
    return test::run_payload<Cpu>(world, c, expert, shards, placement, exchange, anywhere).given;
  };
  // For each shard: the rows of items that it sends to other shards, the slots of its items on other shards, and the
  // slots of other shards' items on this shard.
  std::vector<std::uint64_t> rows(3), slots_from(3), slots_to(3);
  for (Index i = 0; i < shards; ++i) {
    const auto mine = dist::Range::of(PayloadCase::items, i, shards);
    for (Index n = mine.first; n < mine.first + mine.count; ++n) {
      std::set<Index> to;
      for (Index k = 0; k < 2; ++k) {
        const Index j = placement.shard_of[static_cast<std::size_t>(2 * c.pair[static_cast<std::size_t>(n)] + k)];
        if (j == i) continue;
        to.insert(j);
        ++slots_from[static_cast<std::size_t>(i)];
        ++slots_to[static_cast<std::size_t>(j)];
      }
      rows[static_cast<std::size_t>(i)] += to.size();
    }
  }
  const auto floats = given({}, linear), halves = given({.bfloat16 = true}, linear);
  const auto floats_of_slots = given({}, test::UnweightedLinear{linear}),
             halves_of_slots = given({.bfloat16 = true}, test::UnweightedLinear{linear});
  constexpr std::uint64_t in = PayloadCase::dim, out = PayloadCase::out;
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    // x and du are sent once for each item and other shard, z and dslots once for each slot.
    CHECK(floats[i] - halves[i] == 2 * (rows[i] * (in + out) + slots_to[i] * (out + in)));
    // dz is sent instead of du, once for each slot.
    CHECK(floats_of_slots[i] - halves_of_slots[i] ==
          2 * (rows[i] * in + slots_from[i] * out + slots_to[i] * (out + in)));
  }
}

TEST_CASE("payload: on CpuBf16 the bfloat16 exchange rounds only the results") {
  const auto plain = results<CpuBf16>({}), rounded = results<CpuBf16>({.bfloat16 = true});
  int wrong = 0;
  for (Index i = 0; i < plain.size(); ++i)
    wrong += static_cast<double>(rounded.data()[i]) != test::to_bfloat16(static_cast<double>(plain.data()[i]));
  CHECK(wrong == 0);
  // With Cpu, the bfloat16 exchange also rounds the items before the products. Some results therefore differ from the
  // rounded results of the exchange of floats.
  const auto of_floats = results<Cpu>({}), of_rounded = results<Cpu>({.bfloat16 = true});
  for (Index i = 0; i < plain.size(); ++i)
    wrong += static_cast<double>(of_rounded.data()[i]) != test::to_bfloat16(static_cast<double>(of_floats.data()[i]));
  CHECK(wrong > 0);
}

TEST_CASE("payload: doubles are exchanged unrounded") {
  constexpr Index items = 20, dim = 6;
  std::atomic<int> wrong = 0;
  dist::Alone world;
  dist::run(world, 2, [&](auto& shard) {
    Cpu::Context ctx(1);
    const auto run = [&](dist::ExchangeOptions exchange) {
      const dist::ExpertParallel branch{Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                Mlp<Gelu>{.model_dim = dim, .hidden_dim = 7}},
                                        &shard,
                                        {},
                                        exchange};
      const auto params = init_params<double, Cpu>(branch, ctx, Seed{1});
      const auto mine = shard.part_of(items);
      const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
      Tensor<double, 2, Cpu> u(mine.count, dim);
      infer(branch, ctx, params, x.view().rows(mine.first, mine.count), u);
      return std::vector<double>(u.data(), u.data() + u.size());
    };
    wrong += run({}) != run({.bfloat16 = true});
  });
  CHECK(wrong == 0);
}
