#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <utility>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/dist/group.hpp"
#include "gatefold/dist/rows.hpp"
#include "gatefold/expert/experts.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/tensor.hpp"

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

/// Of the tensors of all `total` experts those of a range: rows of the first extent.
struct TakeExperts {
  Range range;
  Index total;
  template <class T, int Rank, class B>
  void operator()(Tensor<T, Rank, B>& part, const Tensor<T, Rank, B>& all) const {
    expect(all.extent(0) == total, "ExpertParallel", "a tensor of the experts",
           Joined{"a first extent of ", total, ", the experts"}, all.extent(0));
    rows::resize(part, all, range.count);
    if constexpr (B::is_host)  // whoever counts parameters has shapes alone
      rows::copy(all.data(), range, rows::width(all), part.data());
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

/// Their parameters, out of those of all `total`.
/// @throws ArgumentError on a tensor whose first extent is not the expert
template <class E, class P>
void take_experts(const E&, Index total, const Range& range, P& part, const P& all) {
  pack::structure_like(part, all, sharded::TakeExperts{range, total});
}
template <class... K, class P>
void take_experts(const Experts<K...>& experts, Index, const Range& range, P& part, const P& all) {
  const auto kinds = [&]<std::size_t... I>(std::index_sequence<I...>) {
    (take_experts(std::get<I>(experts.kinds), experts.counts[I], sharded::of_kind(range, experts.counts, I),
                  std::get<I>(part.kinds), std::get<I>(all.kinds)),
     ...);
  };
  kinds(std::index_sequence_for<K...>{});
}

}  // namespace gatefold::dist
