#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gatefold/core/types.hpp"
#include "gatefold/dist/shards.hpp"
#include "gatefold/routing/dense_plan.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold::dist {

/// Slots of all shards' items, brought to the shards of their experts.
///
/// A shard's own slots are sorted by expert (Groups), so those of the experts of shard j stand side by side. Where they
/// arrive, slots are sorted by expert and then by the shard they come from: the order of the whole batch. A row that
/// several slots of a shard read crosses once to each shard that needs it.
/// @cost   begin: two small exchanges; every other function one, of which a shard gives or takes at most a row for each
///         of its slots. Host backends
template <class T, class B>
class SlotExchange {
 public:
  /// Agree on who sends how much to whom.
  /// @param own      the slots of this shard's items, of all experts
  /// @param rows     how many rows they read from
  template <class ShardT>
  void begin(ShardT& shard, const Groups<B>& own, Index rows) {
    const Index shards = shard.count(), experts = own.experts(), me = shard.index();
    here_ = Range::of(experts, me, shards);
    give_.assign(static_cast<std::size_t>(shards), {});
    take_.assign(static_cast<std::size_t>(shards), {});
    find_rows(own, rows, shards);

    // The number of rows, then that of slots of each expert: from each shard to each.
    std::vector<Index> told, heard(static_cast<std::size_t>(shards * (1 + here_.count)));
    for (Index j = 0; j < shards; ++j) {
      told.push_back(give_[at(j)].rows.count);
      const Range theirs = Range::of(experts, j, shards);
      for (Index e = theirs.first; e < theirs.first + theirs.count; ++e)
        told.push_back(own.offsets(e + 1) - own.offsets(e));
    }
    const auto told_to = [&](Index j) {
      const Range theirs = Range::of(experts, j, shards);
      return Range{j + theirs.first, 1 + theirs.count};
    };
    exchange<Index>(shard, told.data(), told_to, heard.data(), [&](Index j) {
      return Range{j * (1 + here_.count), 1 + here_.count};
    });
    count_slots(heard, shards);

    // Which of the rows each slot reads.
    std::vector<Index> numbers(static_cast<std::size_t>(slots_));
    exchange<Index>(
        shard, row_of_slot_.data(), [&](Index j) { return give_[at(j)].slots; }, numbers.data(),
        [&](Index j) { return take_[at(j)].slots; });
    place_slots(heard, numbers, shards);
  }

  /// The slots that arrived, for the rows of `bring_rows`.
  Groups<B> groups() const { return {offsets_, rows_, slots_}; }
  Index experts() const { return here_.count; }
  Index rows() const { return rows_here_; }

  /// to [rows(), W] = the rows that the slots here read, from [N, W] of each shard.
  template <class ShardT>
  void bring_rows(ShardT& shard, typename B::Context& ctx, In<T, 2, B> from, Out<T, 2, B> to) const {
    auto mark = ctx.mark();
    auto packed = ctx.template scratch<T>(sent_rows_.size(), from.extent(1));
    B::for_rows(ctx, packed.extent(0), fn::GatherRows<T, B>{sent_rows_, from, packed});
    exchange<T>(shard, packed.data(), by_width(give_, &Part::rows, from.extent(1)), to.data(),
                by_width(take_, &Part::rows, from.extent(1)));
  }
  /// to [groups().slots, W] = what belongs to the slots, from [own slots, W] of each shard.
  template <class ShardT>
  void bring_slots(ShardT& shard, typename B::Context& ctx, In<T, 2, B> from, Out<T, 2, B> to) const {
    auto mark = ctx.mark();
    auto packed = ctx.template scratch<T>(slots_, from.extent(1));
    exchange<T>(shard, from.data(), by_width(give_, &Part::slots, from.extent(1)), packed.data(),
                by_width(take_, &Part::slots, from.extent(1)));
    B::for_rows(ctx, slots_, fn::ScatterRows<T, B>{place_of_slot_, packed, to});
  }
  /// The way back: to [own slots, W] of each shard, from [groups().slots, W].
  template <class ShardT>
  void return_slots(ShardT& shard, typename B::Context& ctx, In<T, 2, B> from, Out<T, 2, B> to) const {
    auto mark = ctx.mark();
    auto packed = ctx.template scratch<T>(slots_, from.extent(1));
    B::for_rows(ctx, slots_, fn::GatherRows<T, B>{place_of_slot_, from, packed});
    exchange<T>(shard, packed.data(), by_width(take_, &Part::slots, from.extent(1)), to.data(),
                by_width(give_, &Part::slots, from.extent(1)));
  }

 private:
  /// What is given to a shard or taken from it: ranges of rows and slots, as they are packed.
  struct Part {
    Range rows, slots;
  };
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  /// f(j): the range, in values, that belongs to shard j.
  template <class V, class ShardT, class GiveF, class TakeF>
  static void exchange(ShardT& shard, const V* from, const GiveF& give, V* to, const TakeF& take) {
    std::vector<Bytes> out;
    std::vector<Room> in;
    for (Index j = 0; j < shard.count(); ++j) {
      out.push_back(ShardT::bytes(from + give(j).first, give(j).count));
      in.push_back(ShardT::room(to + take(j).first, take(j).count));
    }
    shard.exchange(out, in);
  }
  static auto by_width(const std::vector<Part>& parts, Range Part::*what, Index width) {
    return [&parts, what, width](Index j) {
      const Range& r = parts[at(j)].*what;
      return Range{r.first * width, r.count * width};
    };
  }

  /// For each shard the rows that its experts' slots read, in the order in which a slot first does.
  void find_rows(const Groups<B>& own, Index rows, Index shards) {
    const Index experts = own.experts();
    std::vector<Index> number(at(rows)), seen_by(at(rows), -1);
    std::vector<Index> sent;
    row_of_slot_.assign(at(own.offsets(experts)), 0);
    for (Index j = 0; j < shards; ++j) {
      const Range theirs = Range::of(experts, j, shards);
      Part& part = give_[at(j)];
      part.rows.first = static_cast<Index>(sent.size());
      part.slots.first = own.offsets(theirs.first);
      part.slots.count = own.offsets(theirs.first + theirs.count) - part.slots.first;
      for (Index s = part.slots.first; s < part.slots.first + part.slots.count; ++s) {
        const Index row = own.row(s);
        if (seen_by[at(row)] != j) {
          seen_by[at(row)] = j;
          number[at(row)] = static_cast<Index>(sent.size()) - part.rows.first;
          sent.push_back(row);
        }
        row_of_slot_[at(s)] = number[at(row)];
      }
      part.rows.count = static_cast<Index>(sent.size()) - part.rows.first;
    }
    sent_rows_.resize(sent.size());
    std::copy(sent.begin(), sent.end(), sent_rows_.data());
  }
  void count_slots(const std::vector<Index>& heard, Index shards) {
    rows_here_ = slots_ = 0;
    for (Index j = 0; j < shards; ++j) {
      const Index* from = heard.data() + j * (1 + here_.count);
      Part& part = take_[at(j)];
      part.rows = {rows_here_, from[0]};
      part.slots.first = slots_;
      for (Index e = 0; e < here_.count; ++e) part.slots.count += from[1 + e];
      rows_here_ += part.rows.count;
      slots_ += part.slots.count;
    }
  }
  /// Slots arrive by shard and then by expert; they stand by expert and then by shard.
  void place_slots(const std::vector<Index>& heard, const std::vector<Index>& numbers, Index shards) {
    offsets_.resize(here_.count + 1);
    rows_.resize(slots_);
    place_of_slot_.resize(slots_);
    std::vector<Index> next(at(shards));
    for (Index j = 0; j < shards; ++j) next[at(j)] = take_[at(j)].slots.first;
    Index place = 0;
    for (Index e = 0; e < here_.count; ++e) {
      offsets_(e) = place;
      for (Index j = 0; j < shards; ++j)
        for (Index n = heard[at(j * (1 + here_.count) + 1 + e)]; n > 0; --n, ++place) {
          const Index arrived = next[at(j)]++;
          place_of_slot_(arrived) = place;
          rows_(place) = take_[at(j)].rows.first + numbers[at(arrived)];
        }
    }
    offsets_(here_.count) = place;
  }

  Range here_{};                       // experts of this shard
  std::vector<Part> give_{}, take_{};  // by shard
  Index rows_here_ = 0, slots_ = 0;
  std::vector<Index> row_of_slot_{};                    // [own slots] its row among those that are sent
  Tensor<Index, 1, B> sent_rows_;                       // the rows that are sent, by shard
  Tensor<Index, 1, B> offsets_, rows_, place_of_slot_;  // [experts + 1], [slots], [slots] as they arrive → place
};

}  // namespace gatefold::dist
