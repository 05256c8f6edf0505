#pragma once

#include <cstddef>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/distributed/sharded.hpp"

/// Collects on shard 0 the tensors whose rows are distributed over all shards.
namespace gatefold::dist {

namespace parts {

/// A visitor that calls f(name, tensor, 0) for a tensor that every shard holds completely. For a tensor with rows on
/// several shards (Sharded pack), it calls g(name, tensor, rows, number). `number` counts these tensors from 0.
template <class F, class G>
struct Visitor {
  F f;
  G g;
  Index next = 0;
  void operator()(const Name& at, auto& t) { f(at, t, 0); }
  void sharded(const Name& at, auto& p) {
    auto one = [&](const Name& name, auto& t, const DealtRows& rows) { g(name, t, rows, next++); };
    sharded::Visitor<false, decltype(one)>{one}.sharded(at, p);
  }
};
template <class F, class G>
Visitor(F, G) -> Visitor<F, G>;

}  // namespace parts

/// The tensors of a pack (a struct of named tensors) as in a run of one process: each tensor whose rows are distributed
/// over the shards is replaced by a tensor with all rows.
template <class ShardT, class M, class P>
class Whole {
 public:
  /// Makes a tensor for each distributed tensor. On shard 0 it has the size of the whole tensor; on other shards it is
  /// empty.
  /// @param memory  the memory of the tensors
  /// @throws ArgumentError on all shards, naming the tensor, if the rows of a shard differ from the experts that are
  ///         assigned to it; ArgumentError if experts have copies
  Whole(ShardT& shard, const M& memory, const char* where, P& pack) : shard_(shard), memory_(memory), pack_(pack) {
    std::vector<Index> mine;
    each_part([&](const Name&, const auto& part, const DealtRows&, Index) { mine.push_back(part.extent(0)); });
    const HeldRows held(shard, mine);
    each_part([&](const Name& name, const auto& part, const DealtRows& rows, Index i) {
      using Tensor = std::remove_cvref_t<decltype(part)>;
      held.expect_dealt(where, name.str(), at(i), rows);
      rows.expect_once(where);
      places_.push_back({held.of(at(i)), std::make_shared<Tensor>()});
      const Place& place = places_.back();
      if (shard.index() == 0) rows::resize(*static_cast<Tensor*>(place.tensor.get()), part, place.count());
    });
  }

  /// Copies the rows of the distributed tensors from all shards to shard 0.
  void gather() {
    each_part([&](const Name&, const auto& part, const DealtRows& rows, Index i) {
      const Index width = rows::width(part);
      std::vector<Index> counts = places_[at(i)].rows;
      for (Index& n : counts) n *= width;
      auto& whole = whole_of(part, i);
      if (places_[at(i)].count() == 0) return;
      if (rows.in_order()) {
        shard_.gather(memory_, part.data(), counts, whole.data());
      } else {
        std::remove_cvref_t<decltype(whole)> by_shard;
        by_shard.resize_like(whole);
        shard_.gather(memory_, part.data(), counts, by_shard.data());
        if (shard_.index() > 0) return;
        const auto* from = std::as_const(by_shard).data();
        for (const auto& numbers : rows.by_shard()) from = rows::place(memory_, from, numbers, width, whole.data());
        memory_.finish();
      }
    });
  }

  /// Visits the tensors in the order and with the names of the pack. A distributed tensor has all rows on shard 0, and
  /// is empty on the other shards.
  static void each(auto&& f, auto& self, auto&...) {
    for_each_tensor(parts::Visitor{[&](const Name& at, auto& t, Index) { f(at.str(), t); },
                                   [&](const Name& at, auto& part, const DealtRows&, Index i) {
                                     f(at.str(), self.whole_of(part, i));
                                   }},
                    self.pack_);
  }

 private:
  struct Place {
    std::vector<Index> rows;  // first extents, by shard
    std::shared_ptr<void> tensor;
    Index count() const { return std::accumulate(rows.begin(), rows.end(), Index(0)); }
  };
  void each_part(const auto& g) {
    for_each_tensor(parts::Visitor{[](const Name&, auto&, Index) {}, g}, pack_);
  }
  template <class TensorT>
  std::remove_const_t<TensorT>& whole_of(const TensorT&, Index i) const {
    return *static_cast<std::remove_const_t<TensorT>*>(places_[at(i)].tensor.get());
  }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  ShardT& shard_;
  M memory_;
  P& pack_;
  std::vector<Place> places_;
};

/// Copies the parameters of a model on several shards into the parameters of the same model in one process, on shard 0.
/// You can then evaluate the model or run inference on shard 0.
///
///     auto params = init_params<float, Cpu>(model, ctx, seed);   // `model` has a Mixture for each ExpertParallel
///     dist::copy_whole(shard, ctx, trainer.params, params);
///
/// @param whole  the parameters of the model in one process. They are written only on shard 0
/// @throws ArgumentError on shard 0 if a tensor of `whole` and the tensor at the same position of `sharded`, with the
///         rows of all shards, have different numbers of bytes
/// @cost   shard 0 receives all experts. During the call, it has all of them in memory twice
template <class ShardT, class C, class P, class Q>
void copy_whole(ShardT& shard, C& ctx, const P& sharded, Q& whole) {
  const auto here = ctx.here();
  const auto memory = memory_of(ctx);
  Whole<ShardT, decltype(memory_of(ctx)), const P> all(shard, memory, "copy_whole", sharded);
  all.gather();
  if (shard.index() > 0) return;
  std::vector<Bytes> from;
  const auto find = [&](const Name&, const auto& t) { from.push_back(ShardT::bytes(t.data(), t.size())); };
  for_each_tensor(find, std::as_const(all));
  std::size_t next = 0;
  const auto copy = [&](const Name& at, auto& t) {
    const Room to = ShardT::room(t.data(), t.size());
    const std::size_t found = next < from.size() ? from[next].size() : 0;
    expect(found == to.size(), "copy_whole", at, Joined{to.size(), " bytes"}, found);
    memory.copy(from[next].data(), static_cast<Index>(found), to.data());
    ++next;
  };
  for_each_tensor(copy, whole);
  memory.finish();
}

}  // namespace gatefold::dist
