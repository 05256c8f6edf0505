#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "descriptors/extras.hpp"
#include "descriptors/row.hpp"
#include "gatefold/dist/expert_parallel.hpp"
#include "gatefold/gatefold.hpp"

/// A composition whose batch and experts lie on several shards, beside one that has all of them.
namespace gatefold::rows {

/// What a layer computes of each item, row by row, and of all: by name.
struct OfShards {
  struct Part {
    std::string name;
    std::vector<double> values;
  };
  std::vector<Part> of_items, grads;
};

/// Forward and backward of items [first, first + count) of `items`.
template <class L>
OfShards trained_part(Cpu::Context& ctx, const L& layer, const ExtraOptions& options, Index items, Index first,
                      Index count) {
  using T = double;
  const Extras<T> extras(items, layer.in_dim());
  const auto extra = extras.of<Extra<L, T, Cpu>>(options, first, count);
  const auto params = init_params<T, Cpu>(layer, ctx, Seed{1});
  const auto x = uniform_tensor<T>(ctx, Seed{2}, 1, items, layer.in_dim());
  const auto dy = uniform_tensor<T>(ctx, Seed{3}, 1, items, layer.out_dim());
  Tensor<T, 2, Cpu> y(count, layer.out_dim()), dx(count, layer.in_dim());
  set_zero(ctx, dx);
  auto grads = zeros_like(ctx, params);
  Carry<L, T, Cpu> carry, dcarry;
  Saved<L, T, Cpu> saved;
  layer.begin(ctx, params, count, carry);
  layer.forward(ctx, params, x.view().rows(first, count), carry, y, saved, extra);
  OfShards o;
  const auto add = [](auto& parts, const std::string& name, const auto& pack) {
    for_each_tensor(
        [&](const Name& at, const auto& t) {
          parts.push_back({name + at.str(), {t.data(), t.data() + t.size()}});
        },
        pack);
  };
  add(o.of_items, "y", y);
  add(o.of_items, "carry", carry);
  layer.begin(ctx, params, count, dcarry);
  set_zero(ctx, dcarry);
  gatefold::backward(layer, ctx, params, x.view().rows(first, count), saved, dy.view().rows(first, count), dcarry, dx,
                     grads, extra);
  add(o.of_items, "dx", dx);
  add(o.grads, "", grads);
  return o;
}

/// y, carry and dx have the bits of one process that has everything; so have the experts' gradients but for the order
/// of their sums, and what the shards found of all others adds up to them.
template <class C>
void check_shards(const C& c) {
  const auto mixture = Mixture{c.gate(odd), c.expert.make(odd)};
  using GateT = std::remove_cvref_t<decltype(mixture.gate)>;
  using ExpertT = std::remove_cvref_t<decltype(mixture.expert)>;
  constexpr bool follows = !std::is_same_v<WithoutTrace<Extra<GateT, double, Cpu>>, Extra<GateT, double, Cpu>>;
  if (c.rule.facts.meets == Meets::batch) return;  // a rule's norm of the batch is that of its shard
  if constexpr (!follows) {
    constexpr Index items = 6 * odd.sequence;
    // What drops values draws by an item's place on a shard.
    constexpr bool drops = std::is_same_v<decltype(c.layer), RowOf_dropout> || hook::expert::with_noise<ExpertT>();
    const ExtraOptions options{.length = odd.sequence, .noise = !drops, .padding = true};
    Cpu::Context one(1);
    const auto layer_of = [&](const auto& branch) { return c.layer.make(odd, c.rule.make(odd), branch); };
    const OfShards expected = trained_part(one, layer_of(mixture), options, items, 0, items);
    for (const Index shards : {1, 2, 3, 7}) {  // of seven, one has no items
      CAPTURE(shards);
      std::vector<OfShards> parts(static_cast<std::size_t>(shards));
      dist::Alone world;
      dist::run(world, shards, [&](auto& shard) {
        Cpu::Context ctx(1);
        const auto sequences = shard.part_of(items / odd.sequence);
        parts[static_cast<std::size_t>(shard.index())] =
            trained_part(ctx, layer_of(dist::ExpertParallel{mixture, &shard}), options, items,
                         sequences.first * odd.sequence, sequences.count * odd.sequence);
      });
      for (std::size_t i = 0; i < expected.of_items.size(); ++i) {
        std::vector<double> joined;
        for (const OfShards& part : parts)
          joined.insert(joined.end(), part.of_items[i].values.begin(), part.of_items[i].values.end());
        CHECK_MESSAGE(joined == expected.of_items[i].values, expected.of_items[i].name);
      }
      for (std::size_t i = 0; i < expected.grads.size(); ++i) {
        const auto& of_one = expected.grads[i].values;
        // Experts' are in pieces, one after the other; others add up.
        std::vector<double> sum;
        if (expected.grads[i].name.find("expert.") != std::string::npos) {
          for (const OfShards& part : parts)
            sum.insert(sum.end(), part.grads[i].values.begin(), part.grads[i].values.end());
        } else {
          sum.resize(of_one.size());
          for (const OfShards& part : parts)
            for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += part.grads[i].values[k];
        }
        REQUIRE_MESSAGE(sum.size() == of_one.size(), expected.grads[i].name);
        double largest = 0, difference = 0;
        for (std::size_t k = 0; k < sum.size(); ++k) {
          largest = std::max(largest, std::abs(of_one[k]));
          difference = std::max(difference, std::abs(sum[k] - of_one[k]));
        }
        CHECK_MESSAGE(difference <= 1e-13 * largest, expected.grads[i].name);
      }
    }
  }
}

}  // namespace gatefold::rows
