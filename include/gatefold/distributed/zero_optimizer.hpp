#pragma once

#include <utility>
#include <vector>

#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/shards.hpp"

namespace gatefold::dist {

namespace rows_of_shard {

/// Swaps the tensors of distributed experts (Sharded packs) between two packs. Leaves other tensors unchanged.
struct Swap {
  void operator()(const Name&, auto&, auto&) const {}
  void sharded(const Name&, auto& all, auto& part) const {
    part.lie_as(all);
    for_each_tensor([](const Name&, auto& a, auto& b) { std::swap(a, b); }, all, part);
  }
};
template <class M>
struct Take;
template <class M>
struct Shape;
template <class T>
struct Places;

}  // namespace rows_of_shard

/// An optimizer whose state is distributed over the shards. Of every tensor that all shards hold, each shard updates
/// some rows and keeps the optimizer state of these rows. It receives the new values of the other rows from the other
/// shards.
///
///     DataParallel{Clipped{Zero{AdamW{…}, &shard}}, &shard}
///
/// Source: ZeRO stage 1, Rajbhandari et al. 2019, arXiv:1910.02054, sec. 5.1. The wrapped optimizer must work element
/// by element (Sgd, AdamW, or InGroups of these). Results and checkpoints then have the same bits as without Zero.
/// @cost   with C shards, memory for 1/C of the state, and for copies of 1/C of the parameters and gradients that all
///         shards hold. A step needs scratch for 1 + 1/C copies of these parameters, and for each element type one
///         exchange, in which a shard receives (C − 1)/C of these parameters
template <class OptimizerT, class ShardT>
struct Zero {
  using IsOptimizer = void;
  GATEFOLD_REQUIRE(norms::Of<OptimizerT>::by_element,
                   "gatefold: put Zero inside a wrapper that computes a norm of all gradients: Clipped{Zero{optimizer, "
                   "&shard}}; see docs/how-to/distributed.md");
  GATEFOLD_REQUIRE(
      norms::Of<OptimizerT>::in_rows,
      "gatefold: Zero steps only the rows of a tensor that belong to one shard: put optim::Averaged outside, "
      "Averaged{Zero{optimizer, &shard}}; optim::ExpertRates cannot be used with Zero; see docs/how-to/distributed.md");
  static_assert(optim::check_inside<OptimizerT>());
  OptimizerT optimizer;
  ShardT* shard;

  /// The state of the wrapped optimizer, for the rows that this shard updates. During a step, `params` and `grads` hold
  /// the parameters and gradients of these rows.
  template <class Pack>
  struct State {
    Sharded<typename OptimizerT::template State<Pack>> of_shard;
    Pack params, grads;
    Index step = 0;
    static void each(auto&& f, auto&... s) { f("", s.of_shard...); }
    void lie_as(const State& other) {
      const auto parts_alone = [](auto&, const auto&) {};
      detail_::pack::structure_like(params, other.params, parts_alone);
      detail_::pack::structure_like(grads, other.grads, parts_alone);
    }
  };
  void validate() const {
    expect(shard != nullptr, "Zero", "shard", "the address of a shard of dist::run", "null");
    optim::validate_options(optimizer);
  }
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    validate();
    const auto here = ctx.here();
    const auto parts_alone = [](auto&, const auto&) {};
    Pack mine;
    detail_::pack::structure_like(mine, params, parts_alone);
    const auto take = take_on(ctx);
    for_each_tensor(rows_of_shard::Shape<decltype(take.memory)>{take}, params, mine);
    State<Pack> state{{optimizer.begin(ctx, mine)}, {}, {}};
    for (Pack* p : {&state.params, &state.grads}) detail_::pack::structure_like(*p, params, parts_alone);
    return state;
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    const auto here = ctx.here();
    expect_like("Zero.step", "grads", params, grads);
    for_each_tensor(take_on(ctx), params, state.params);
    for_each_tensor(take_on(ctx), grads, state.grads);
    state.of_shard.part.step = state.step;
    optimizer.step(ctx, state.params, state.grads, state.of_shard.part);
    ++state.step;
    for_each_tensor(rows_of_shard::Swap{}, params, state.params);
    for_each_tensor(rows_of_shard::Swap{}, grads, state.grads);
    gather<float>(ctx, params, state.params);
    gather<double>(ctx, params, state.params);
  }

 private:
  auto take_on(auto& ctx) const {
    return rows_of_shard::Take<decltype(memory_of(ctx))>(memory_of(ctx), shard->index(), shard->count());
  }
  /// Sends the rows that this shard has updated to all shards, and copies the updated rows of all shards into `params`.
  template <class T, class C, class Pack>
  void gather(C& ctx, Pack& params, Pack& mine) const {
    rows_of_shard::Places<T> all, own;
    for_each_tensor(all, params);
    for_each_tensor(own, mine);
    std::vector<Index> counts;
    Index total = 0;
    for (Index j = 0; j < shard->count(); ++j) {
      counts.push_back(0);
      all.each(j, shard->count(), [&](T*, Index n) { counts.back() += n; });
      total += counts.back();
    }
    if (total == 0) return;
    const auto memory = memory_of(ctx);
    auto mark = ctx.mark();
    T* const packed = ctx.template scratch<T>(counts[static_cast<std::size_t>(shard->index())]).data();
    T* const everything = ctx.template scratch<T>(total).data();
    T* next = packed;
    own.each(0, 1, [&](const T* from, Index n) {
      memory.copy(from, n, next);
      next += n;
    });
    shard->all_gather(memory, packed, counts, everything);
    const T* from = everything;
    for (Index j = 0; j < shard->count(); ++j)
      all.each(j, shard->count(), [&](T* to, Index n) {
        memory.copy(from, n, to);
        from += n;
      });
  }
};
template <class O, class S>
Zero(O, S*) -> Zero<O, S>;

namespace rows_of_shard {

/// Fills `part` with the rows that one shard updates. Of a tensor that all shards hold, copies the rows of the shard.
/// The tensors of distributed experts (Sharded packs) are completely on their shard, and are swapped instead.
template <class M>
struct Take : Swap {
  M memory;
  Index shard, shards;
  Take(const M& where, Index of, Index among) : memory(where), shard(of), shards(among) {}

  template <class T, int Rank, class B>
  void operator()(const Name&, Tensor<T, Rank, B>& all, Tensor<T, Rank, B>& part) const {
    const Range mine = of(all);
    rows::resize(part, all, mine.count);
    rows::copy(memory, std::as_const(all).data(), mine, rows::width(all), part.data());
  }
  template <class T, class B>
  void operator()(const Name&, Table<T, B>& all, Table<T, B>& part) const {
    const Range mine = of(all);
    part.resize(mine.count, all.extent(1));
    const auto from = std::as_const(all).rows();
    const auto to = part.rows();
    rows::copy(memory, from.data, mine, from.columns, to.data);
    if (from.all) return;
    rows::copy(memory, from.marks, mine, 1, to.marks);
    part.count_marks();
  }

  template <class P>
  Range of(const P& all) const {
    return Range::of(all.extent(0), shard, shards);
  }
};
/// Gives the tensors of `part` the shapes that Take gives them, but copies no values and swaps no tensors, because
/// `begin` must not change the parameters.
template <class M>
struct Shape : Take<M> {
  void operator()(const Name&, const auto& all, auto& part) const { rows::resize(part, all, this->of(all).count); }
  void sharded(const Name&, const auto& all, auto& part) const { shape_like(part, all); }
};
/// A visitor that lists the addresses and shapes of the tensors with element type T that all shards hold.
template <class T>
struct Places {
  struct Place {
    T* data;
    Index rows, width;
  };
  std::vector<Place> found{};
  template <int Rank, class B>
  void operator()(const Name&, Tensor<T, Rank, B>& t) {
    found.push_back({t.data(), t.extent(0), rows::width(t)});
  }
  template <class B>
  void operator()(const Name&, Table<T, B>& t) {
    found.push_back({t.rows().data, t.extent(0), t.extent(1)});
  }
  void operator()(const Name&, auto&) {}  // not of type T
  void sharded(const Name&, auto&) {}

  /// Calls f(data, number of values) for the rows of shard j in each tensor, one tensor after the other.
  template <class F>
  void each(Index j, Index shards, const F& f) const {
    for (const Place& p : found) {
      const Range rows = Range::of(p.rows, j, shards);
      f(p.data + rows.first * p.width, rows.count * p.width);
    }
  }
};

}  // namespace rows_of_shard

}  // namespace gatefold::dist
