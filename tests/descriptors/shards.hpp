#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "bitwise/bitwise.hpp"
#include "descriptors/row.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/gatefold.hpp"
#include "support/larger.hpp"

/// Compares a composition whose batch and experts are on several shards with the same composition in one process.
namespace gatefold::rows {

/// Checks that y, carry and dx have the same bits as in one process. The joined gradients of the shards' experts, and
/// the sums of all other gradients over the shards, must equal those of one process up to rounding.
template <class C>
void check_shards(const C& c) {
  const auto mixture = Mixture{c.gate(odd), c.expert.make(odd)};
  using GateT = std::remove_cvref_t<decltype(mixture.gate)>;
  // A gate that follows an attention must compute scores and mixing on the shards of the sequences.
  constexpr bool follows = !std::is_same_v<WithoutTrace<Extra<GateT, double, Cpu>>, Extra<GateT, double, Cpu>>;
  constexpr bool stays = dist::global::sees<GateT, double, Cpu>() == dist::global::Sees::mixed;
  if (c.rule.facts.meets == Meets::batch) return;  // each shard has its own norm of the batch
  // These layers take no ExpertParallel.
  constexpr bool takes_mixture = std::is_same_v<decltype(c.layer), RowOf_latent_mixture> ||
                                 std::is_same_v<decltype(c.layer), RowOf_multi_gate> ||
                                 std::is_same_v<decltype(c.layer), RowOf_competition> ||
                                 std::is_same_v<decltype(c.layer), RowOf_competition_by_norm>;
  if constexpr (!takes_mixture && (!follows || stays)) {
    constexpr Index items = 6 * odd.sequence;
    constexpr bool drops = std::is_same_v<decltype(c.layer), RowOf_dropout>;  // drops by an item's place on its shard
    const bitwise::Inputs options{.length = odd.sequence, .noise = !drops, .padding = true};
    Cpu::Context one(1);
    const auto subject_of = [&](const auto& branch) {
      const auto layer = c.layer.make(odd, c.rule.make(odd), branch);
      return bitwise::Subject<double, std::remove_const_t<decltype(layer)>>(layer, items, options);
    };
    const bitwise::Outcome expected = subject_of(mixture).trained(one, 0, items);
    for (const Index shards : {1, 2, 3, 7}) {  // of seven, one has no items; of three, the last has the first experts
      CAPTURE(shards);
      const bool backwards = shards == 3;
      auto placement = dist::Placement::even(mixture.experts(), shards);
      if (backwards)
        for (Index& j : placement.shard_of) j = shards - 1 - j;
      std::vector<bitwise::Outcome> parts(static_cast<std::size_t>(shards));
      dist::Alone world;
      dist::run(world, shards, [&](auto& shard) {
        Cpu::Context ctx(1);
        const auto sequences = shard.part_of(items / odd.sequence);
        parts[static_cast<std::size_t>(shard.index())] =
            subject_of(dist::ExpertParallel{mixture, &shard, placement})
                .trained(ctx, sequences.first * odd.sequence, sequences.count * odd.sequence);
      });
      const auto joined = [&](auto which, std::size_t i, bool from_last) {
        std::vector<double> all;
        for (std::size_t j = 0; j < parts.size(); ++j) {
          const auto& values = (parts[from_last ? parts.size() - 1 - j : j].*which)[i].values;
          all.insert(all.end(), values.begin(), values.end());
        }
        return all;
      };
      for (std::size_t i = 0; i < expected.of_items.size(); ++i)
        CHECK_MESSAGE(joined(&bitwise::Outcome::of_items, i, false) == expected.of_items[i].values,
                      expected.of_items[i].name);
      for (std::size_t i = 0; i < expected.of_all.size(); ++i) {
        const std::string& name = expected.of_all[i].name;
        const std::vector<double>& of_one = expected.of_all[i].values;
        if (!name.starts_with("grads")) continue;
        // Each shard has the gradients of its own experts, which are joined. All other gradients are added up.
        std::vector<double> sum;
        if (name.find("expert.") != std::string::npos) {
          sum = joined(&bitwise::Outcome::of_all, i, backwards);
        } else {
          sum.resize(of_one.size());
          for (const bitwise::Outcome& part : parts)
            for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += part.of_all[i].values[k];
        }
        REQUIRE_MESSAGE(sum.size() == of_one.size(), name);
        double largest = 0;
        Index wrong = 0;  // also NaN
        for (const double v : of_one) largest = support::larger(largest, std::abs(v));
        for (std::size_t k = 0; k < sum.size(); ++k) wrong += !(std::abs(sum[k] - of_one[k]) <= 1e-13 * largest);
        CHECK_MESSAGE(wrong == 0, name);
      }
    }
  }
}

}  // namespace gatefold::rows
