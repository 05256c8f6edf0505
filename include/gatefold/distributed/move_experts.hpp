#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/distributed/expect_same.hpp"
#include "gatefold/distributed/sharded.hpp"

/// Moves experts to other shards between the steps of a run.
namespace gatefold::dist {

/// Moves the experts of a run to given shards: their parameters and optimizer state are sent to the new shards. All
/// shards must call it together, between two steps. The results and checkpoints of the run have the same bits as if no
/// expert had moved.
/// @param run  a Trainer, or a class with these members: `each` lists the packs that move, `params` are the parameters
///         of the model, and `context()` returns the context. The packs must be made from the parameters, with
///         zeros_like or the begin of an optimizer. If the placement of an ExpertParallel changes, the gradients of its
///         experts are zeros afterwards. Packs outside `run` do not move; using them together with the moved packs
///         throws ArgumentError
/// @param to  the new placement of each ExpertParallel, in the order of placements(run); a placement without entries is
///         even
/// @return the number of experts that have moved
/// @throws ArgumentError on all shards if `to` does not match the model and the shards, differs between shards or has
///         copies of experts, or if accumulated parts of a batch still wait for a step; Error if another shard has
///         failed. In these cases, and after bad_alloc, no expert has moved
/// @cost   moved rows are transferred once, in an exchange for each tensor. Until the last exchange has ended, this
///         shard's experts, their gradients and their optimizer state are in memory twice
template <class ShardT, class R>
Index move_experts(ShardT& shard, R& run, const std::vector<Placement>& to);

namespace moving {

/// The old and the new deal of a mixture (a Deal is the assignment of experts to shards).
struct Change {
  std::shared_ptr<const Deal> from, to;
  bool moves() const { return from->placement != to->placement; }
};

/// A visitor that calls f(name, pack, change) for every pack (struct of tensors) of experts that move.
/// @throws ArgumentError if a pack was not made from the parameters of the run
template <class F>
struct EachPack {
  const std::vector<Change>& changes;
  F& f;
  void operator()(const Name&, auto&) const {}
  void sharded(const Name& at, auto& pack) {
    if (!pack.deal)
      return detail_::pack::visit<false>(*this, at, pack.part);  // the state of Zero contains packs of experts
    const auto change =
        std::find_if(changes.begin(), changes.end(), [&](const Change& c) { return c.from == pack.deal; });
    expect(change != changes.end(), "move_experts", at, "a pack made from the parameters of the run", "another pack");
    if (change->moves()) f(at, pack, *change);
  }
};
template <class P, class F>
void each_pack(const std::vector<Change>& changes, P& run, const F& f) {
  EachPack<const F> visitor{changes, f};
  for_each_tensor(visitor, run);
}

/// Returns one bool for each tensor of the experts that move, in order: true if any shard holds rows of the tensor.
/// With InGroups, the state of an optimizer also has tensors for parameters that another optimizer updates. Such a
/// tensor is empty on all shards, and its bool is false.
/// @throws ArgumentError on all shards if some shard holds rows of a tensor, but not every shard holds one row for each
///         expert that the deal (the assignment of experts to shards) gives to it
template <class ShardT, class R>
std::vector<bool> held(ShardT& shard, const std::vector<Change>& changes, R& run) {
  std::vector<Index> mine;
  std::vector<DealtRows> rows;
  std::vector<std::string> names;
  each_pack(changes, run, [&](const Name& at, auto& pack, const Change&) {
    const auto one = [&](const Name& name, const auto& t, const DealtRows& of) {
      mine.push_back(t.extent(0));
      rows.push_back(of);
      names.push_back(name.str());
    };
    sharded::Visitor<false, decltype(one)>{one}.sharded(at, pack);
  });
  const HeldRows all(shard, mine);
  std::vector<bool> found(mine.size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    all.expect_dealt("move_experts", names[i], i, rows[i]);
    found[i] = all.count(i) > 0;
  }
  return found;
}

/// Moves experts in two phases: bring() and shape() build the new tensors next to the old ones, and commit() replaces
/// all of them together. An error before commit() changes nothing.
template <class ShardT, class C>
class Move {
 public:
  Move(ShardT& shard, C& ctx) : shard_(shard), ctx_(ctx) {}

  /// Sends the rows of experts that leave this shard, and receives the rows of experts that arrive.
  void bring(const std::vector<Change>& changes, auto& run, const std::vector<bool>& held) {
    std::size_t next = 0;
    each_pack(changes, run, [&](const Name& at, auto& pack, const Change& change) {
      prepare(at, pack, change, [&](const auto& from, const Range& experts, auto& to) {
        if (!held[next++]) return to.resize_like(from);  // empty on all shards: no rows to send
        resize(from, experts, change, to);
        exchange(from, experts, change, to);
      });
    });
  }
  /// Makes tensors of the new shapes, filled with zeros, for packs whose values are not needed after the move
  /// (gradients).
  void shape(const std::vector<Change>& changes, auto& pack) {
    each_pack(changes, pack, [&](const Name& at, auto& one, const Change& change) {
      prepare(at, one, change, [&](const auto& from, const Range& experts, auto& to) {
        resize(from, experts, change, to);
        zero(ctx_, to);
        if (from.is_skipped()) to.skip();
      });
    });
  }
  void commit() {
    for (const auto& replace : ready_) replace();
  }

 private:
  /// A visitor that creates a new tensor for each tensor of moving experts. It calls make(tensor, experts of the
  /// tensor, new tensor), which fills the new tensor. commit() later replaces the old tensor by the new tensor.
  template <class F>
  struct Prepare {
    Move& move;
    const F& make;
    template <class T, int Rank, class B>
    void operator()(const Name&, Tensor<T, Rank, B>& t, const DealtRows& rows) const {
      auto next = std::make_shared<Tensor<T, Rank, B>>();
      make(std::as_const(t), rows.experts, *next);
      move.ready_.push_back([&t, next] { std::swap(t, *next); });
    }
    template <class T, class B>
    void operator()(const Name&, Table<T, B>&, const DealtRows&) const {}  // experts have no tables
  };
  template <class P, class F>
  void prepare(const Name& at, Sharded<P>& pack, const Change& change, const F& make) {
    const Prepare<F> one{*this, make};
    sharded::Visitor<false, const Prepare<F>>{one}.sharded(at, pack);
    ready_.push_back([&pack, deal = change.to] { pack.deal = deal; });
  }
  template <class T, int Rank, class B>
  void resize(const Tensor<T, Rank, B>& from, const Range& experts, const Change& change,
              Tensor<T, Rank, B>& to) const {
    rows::resize(to, from, change.to->placement.count(shard_.index(), experts));
  }
  template <class T, int Rank, class B>
  void exchange(const Tensor<T, Rank, B>& from, const Range& experts, const Change& change, Tensor<T, Rank, B>& to) {
    const auto memory = memory_of(ctx_);
    const auto count = static_cast<std::size_t>(shard_.count());
    const Index me = shard_.index(), width = rows::width(from);
    std::vector<std::vector<Index>> leave(count), come(count);  // for each shard, the rows to send and to receive
    Index before = 0, after = 0;
    for (Index e = experts.first; e < experts.first + experts.count; ++e) {
      const Placement &from_here = change.from->placement, &to_there = change.to->placement;
      const Index was = from_here.shard_of[static_cast<std::size_t>(e)];
      if (was == me)
        for (const Index j : to_there.shards_of(e)) leave[static_cast<std::size_t>(j)].push_back(before);
      before += from_here.on(me, e);
      if (to_there.on(me, e)) come[static_cast<std::size_t>(was)].push_back(after++);
    }
    std::vector<std::vector<T>> out(count), in(count);  // buffers in host memory, because few rows move
    std::vector<Bytes> give;
    std::vector<Room> take;
    for (std::size_t j = 0; j < count; ++j) {
      out[j].resize(leave[j].size() * static_cast<std::size_t>(width));
      in[j].resize(come[j].size() * static_cast<std::size_t>(width));
      rows::pick(memory, from.data(), leave[j], width, out[j].data());
      give.push_back(ShardT::bytes(out[j].data(), static_cast<Index>(out[j].size())));
      take.push_back(ShardT::room(in[j].data(), static_cast<Index>(in[j].size())));
    }
    memory.finish();
    shard_.exchange(give, take);
    for (std::size_t j = 0; j < count; ++j) rows::place(memory, std::as_const(in[j]).data(), come[j], width, to.data());
    memory.finish();
  }

  ShardT& shard_;
  C& ctx_;
  std::vector<std::function<void()>> ready_;
};

/// Returns the old and the new deal (assignment of experts to shards) of each ExpertParallel of a model.
/// @throws ArgumentError on all shards if `to` does not match the ExpertParallel of the model and the shards, or
///         differs between shards
std::vector<Change> changes_of(auto& shard, const char* where, const std::vector<std::shared_ptr<const Deal>>& deals,
                               const std::vector<Placement>& to) {
  expect_same(shard, where, "placements", to);
  expect(to.size() == deals.size(), where, "placements", Joined{"one for each of ", deals.size(), " ExpertParallel"},
         to.size());
  std::vector<Change> changes;
  for (std::size_t i = 0; i < to.size(); ++i) {
    Deal next = *deals[i];
    next.placement = to[i].filled(where, next.placement.experts(), shard.count());
    changes.push_back({deals[i], std::make_shared<const Deal>(std::move(next))});
  }
  return changes;
}

}  // namespace moving

/// Returns the placement (which shard holds which expert) of each ExpertParallel of a run's model, in the order of the
/// parameters.
std::vector<Placement> placements(const auto& run) {
  std::vector<Placement> all;
  for (const auto& deal : deals_of(run.params)) all.push_back(deal->placement);
  return all;
}

template <class ShardT, class R>
Index move_experts(ShardT& shard, R& run, const std::vector<Placement>& to) {
  auto& ctx = run.context();
  const auto here = ctx.here();
  const auto changes = moving::changes_of(shard, "move_experts", deals_of(run.params), to);
  if constexpr (requires { run.waiting(); })
    expect(run.waiting() == 0, "move_experts", "run", "0 accumulated parts of a batch (call step first)",
           run.waiting());
  Index moved = 0;
  for (const auto& [from, next] : changes) {
    const auto &was = from->placement.without_copies("move_experts").shard_of,
               &is = next->placement.without_copies("move_experts").shard_of;
    for (std::size_t e = 0; e < was.size(); ++e) moved += was[e] != is[e];
  }
  if (moved == 0) return 0;
  const std::vector<bool> held = moving::held(shard, changes, run);
  moving::Move<ShardT, std::remove_reference_t<decltype(ctx)>> move(shard, ctx);
  move.bring(changes, run, held);
  if constexpr (requires { run.grads; }) move.shape(changes, run.grads);
  shard.barrier();  // returns when all shards have received their rows
  move.commit();
  return moved;
}

}  // namespace gatefold::dist
