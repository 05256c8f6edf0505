#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <utility>

#include "gatefold/core/types.hpp"
#include "gatefold/dist/shards.hpp"
#include "gatefold/expert/experts.hpp"
#include "gatefold/tensor/pack.hpp"

/// Experts dealt over the shards, in order. Host backends.
namespace gatefold::dist {

/// A pack of which every shard holds a part. Its tensors have the names of the whole, and whatever is done to packs is
/// done to the part; a visitor of for_each_tensor that has `sharded(name, pack...)` is told of it instead.
template <class P>
struct Sharded {
  static constexpr bool sharded = true;
  P part;
  static void each(auto&& f, auto&... s) { P::each(f, s.part...); }
};

namespace sharded {

/// Of the tensors of all experts those of a range: rows of the first extent.
struct TakeExperts {
  Range range;
  template <class P>
  void operator()(P& part, const P& all) const {
    const auto resize = [&]<std::size_t... D>(std::index_sequence<D...>) {
      part.resize(range.count, all.extent(D + 1)...);
    };
    resize(std::make_index_sequence<static_cast<std::size_t>(P::rank - 1)>{});
    if (part.size() == 0) return;
    std::memcpy(part.data(), all.data() + range.first * (part.size() / range.count),
                static_cast<std::size_t>(part.size()) * sizeof(*all.data()));
  }
};

/// Which of the experts [range) are of kind `kind`, numbered within the kind.
template <std::size_t N>
Range of_kind(const Range& range, const std::array<Index, N>& counts, std::size_t kind) {
  Index before = 0;
  for (std::size_t i = 0; i < kind; ++i) before += counts[i];
  const auto within = [&](Index e) {
    return e < before ? Index(0) : e > before + counts[kind] ? counts[kind] : e - before;
  };
  const Index first = within(range.first);
  return {first, within(range.first + range.count) - first};
}

}  // namespace sharded

/// The policy of some of its experts.
template <class E>
E some_experts(const E& expert, const Range&) {
  return expert;
}
template <class... K>
Experts<K...> some_experts(const Experts<K...>& experts, const Range& range) {
  Experts<K...> some = experts;
  for (std::size_t i = 0; i < some.counts.size(); ++i)
    some.counts[i] = sharded::of_kind(range, experts.counts, i).count;
  return some;
}

/// Their parameters, out of those of all.
template <class E, class P>
void take_experts(const E&, const Range& range, P& part, const P& all) {
  pack::structure_like(part, all, sharded::TakeExperts{range});
}
template <class... K, class P>
void take_experts(const Experts<K...>& experts, const Range& range, P& part, const P& all) {
  const auto kinds = [&]<std::size_t... I>(std::index_sequence<I...>) {
    (take_experts(std::get<I>(experts.kinds), sharded::of_kind(range, experts.counts, I), std::get<I>(part.kinds),
                  std::get<I>(all.kinds)),
     ...);
  };
  kinds(std::index_sequence_for<K...>{});
}

}  // namespace gatefold::dist
