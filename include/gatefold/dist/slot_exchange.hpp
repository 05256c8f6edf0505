#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <vector>

#include "gatefold/backend/transfer.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/dist/carried_rows.hpp"
#include "gatefold/dist/memory.hpp"
#include "gatefold/dist/placement.hpp"
#include "gatefold/dist/shards.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold::dist {

/// How rows cross between shards: items, results of slots, and their adjoints.
struct Payload {
  bool bfloat16 = false;  // floats are rounded to bfloat16, half the bytes; doubles are not, as in Stored
};

/// Slots of all shards' items, brought to the shards of their experts.
///
/// A shard's own slots stand by expert (Groups), and are sent by shard and then by expert. Where they arrive, they
/// stand by expert and then by the shard they come from: the order of the whole batch. A row that several slots of a
/// shard read crosses once to each shard that needs it. Who gives what to whom is found on the host, which knows how
/// long messages are; rows lie on the backend.
/// @cost   begin: two small exchanges, and on a device its lists of slots to the host and back; every other function
///         one, of which a shard gives or takes at most a row for each of its slots, and copies its own slots where
///         experts are not placed in order
template <class T, class B>
class SlotExchange {
 public:
  /// Agree on who sends how much to whom.
  /// @param own        the slots of this shard's items, of all experts
  /// @param rows       how many rows they read from
  /// @param placement  of all experts
  template <class ShardT>
  void begin(ShardT& shard, typename B::Context& ctx, const Groups<B>& own, Index rows, const Placement& placement) {
    const auto memory = memory_of(ctx);
    const Index shards = shard.count();
    experts_ = placement.count(shard.index());
    give_.assign(static_cast<std::size_t>(shards), {});
    take_.assign(static_cast<std::size_t>(shards), {});

    // The number of rows, then that of slots of each expert: from each shard to each.
    std::vector<Index> told, heard(static_cast<std::size_t>(shards * (1 + experts_)));
    std::vector<Range> told_to;
    find_rows(memory, own, rows, placement, told, told_to);
    exchange<Index>(
        shard, HostMemory{}, told.data(), [&](Index j) { return told_to[at(j)]; }, heard.data(),
        [&](Index j) {
          return Range{j * (1 + experts_), 1 + experts_};
        });
    count_slots(heard, shards);
    numbers_.resize(0);

    // Which of the rows each slot reads.
    std::vector<Index> numbers(static_cast<std::size_t>(slots_));
    exchange<Index>(
        shard, HostMemory{}, row_of_slot_.data(), [&](Index j) { return give_[at(j)].slots; }, numbers.data(),
        [&](Index j) { return take_[at(j)].slots; });
    place_slots(memory, heard, numbers, shards);
  }

  /// Give the slots that arrived the numbers that they have in one process with all items: what experts draw by.
  /// @param items  whether the slots of any shard read rows of items, each from anywhere
  /// @param first  the number of the first of this shard's rows among those of all
  template <class ShardT>
  void number(ShardT& shard, typename B::Context& ctx, const Groups<B>& own, bool items, Index first,
              const Placement& placement) {
    const auto memory = memory_of(ctx);
    const auto read = [&](const auto& list) { return memory.read(list.data(), list.size()); };
    const Index experts = own.experts();
    const std::vector<Index> mine = placement.experts_of(shard.index());
    std::vector<Index> of_rows(at(rows_here_)), before(at(experts + 1));
    if (items) {
      std::vector<Index> sent;
      for (const Index row : read(sent_rows_)) sent.push_back(first + row);
      exchange<Index>(
          shard, HostMemory{}, sent.data(), [&](Index j) { return give_[at(j)].rows; }, of_rows.data(),
          [&](Index j) { return take_[at(j)].rows; });
    } else {  // slots that read rows of their own: in one process all slots of an expert stand side by side
      const auto offsets = read(own.offsets);
      for (Index e = 0; e < experts; ++e) before[at(e + 1)] = offsets[at(e + 1)] - offsets[at(e)];
      shard.sum(before.data(), experts + 1);
      std::partial_sum(before.begin(), before.end(), before.begin());
    }
    numbers_.resize(slots_);
    auto of_slots = memory.room(numbers_.data(), slots_);
    const auto rows = read(rows_);
    Index s = 0;
    for (Index e = 0; e < experts_; ++e)
      for (Index i = 0; i < counts_[at(e)]; ++i, ++s) {
        const Index expert = mine[at(e)];
        const Index row = items ? of_rows[at(rows[at(s)])] : before[at(expert)] + i;
        of_slots[at(s)] = row * experts + expert;
      }
    memory.write(of_slots, numbers_.data());
  }

  /// The slots that arrived, for the rows of `bring_rows`.
  Groups<B> groups() const { return {offsets_, rows_, slots_, numbers_}; }
  Index experts() const { return experts_; }
  /// How many of them each expert here has, for the host.
  const std::vector<Index>& counts() const { return counts_; }
  Index rows() const { return rows_here_; }

  /// to [rows(), W] = the rows that the slots here read, from [N, W] of each shard. Meanwhile work() runs.
  template <class ShardT, class Work = NoWork>
  void bring_rows(ShardT& shard, typename B::Context& ctx, In<T, 2, B> from, Out<T, 2, B> to, Payload payload,
                  const Work& work = {}) const {
    carry(shard, ctx, payload, work, &Part::rows, {sent_rows_, sent_rows_.size()}, give_, from, {{}, rows_here_}, take_,
          to);
  }
  /// to [groups().slots, W] = what belongs to the slots, from [own slots, W] of each shard. Meanwhile work() runs.
  template <class ShardT, class Work = NoWork>
  void bring_slots(ShardT& shard, typename B::Context& ctx, In<T, 2, B> from, Out<T, 2, B> to, Payload payload,
                   const Work& work = {}) const {
    carry(shard, ctx, payload, work, &Part::slots, {sent_slots_, sent()}, give_, from, {place_of_slot_, slots_}, take_,
          to);
  }
  /// The way back: to [own slots, W] of each shard, from [groups().slots, W].
  template <class ShardT>
  void return_slots(ShardT& shard, typename B::Context& ctx, In<T, 2, B> from, Out<T, 2, B> to, Payload payload) const {
    carry(shard, ctx, payload, NoWork{}, &Part::slots, {place_of_slot_, slots_}, take_, from, {sent_slots_, sent()},
          give_, to);
  }

 private:
  /// What is given to a shard or taken from it: ranges of rows and slots, as they are packed.
  struct Part {
    Range rows, slots;
  };
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  /// f(j): the range, in values, that belongs to shard j.
  template <class V, class ShardT, class M, class GiveF, class TakeF, class Work = NoWork>
  static void exchange(ShardT& shard, const M& memory, const V* from, const GiveF& give, V* to, const TakeF& take,
                       const Work& work = {}) {
    std::vector<Bytes> out;
    std::vector<Room> in;
    for (Index j = 0; j < shard.count(); ++j) {
      out.push_back(ShardT::bytes(from + give(j).first, give(j).count));
      in.push_back(ShardT::room(to + take(j).first, take(j).count));
    }
    shard.exchange(memory, out, in, work);
  }
  /// Rows of a tensor, in the order in which they are packed.
  struct List {
    View<const Index, 1, B> rows;  // or empty: the first ones, as they stand
    Index count;
  };
  /// Slots that are sent.
  Index sent() const { return give_.back().slots.first + give_.back().slots.count; }

  /// Rows `gives` of `from` become rows `takes` of `to`, on other shards.
  template <class ShardT, class Work>
  void carry(ShardT& shard, typename B::Context& ctx, Payload payload, const Work& work, Range Part::*what,
             const List& gives, const std::vector<Part>& give, In<T, 2, B> from, const List& takes,
             const std::vector<Part>& take, Out<T, 2, B> to) const {
    if constexpr (std::is_same_v<T, float>)
      if (payload.bfloat16) return carry_as<Bfloat16>(shard, ctx, work, what, gives, give, from, takes, take, to);
    carry_as<T>(shard, ctx, work, what, gives, give, from, takes, take, to);
  }
  template <class V, class ShardT, class Work>
  static void carry_as(ShardT& shard, typename B::Context& ctx, const Work& work, Range Part::*what, const List& gives,
                       const std::vector<Part>& give, In<T, 2, B> from, const List& takes,
                       const std::vector<Part>& take, Out<T, 2, B> to) {
    const Index width = from.extent(1);
    const auto by_width = [&](const std::vector<Part>& parts) {
      return [&parts, what, width](Index j) {
        const Range& r = parts[at(j)].*what;
        return Range{r.first * width, r.count * width};
      };
    };
    const bool packs = !std::is_same_v<V, T> || !gives.rows.empty(),
               unpacks = !std::is_same_v<V, T> || !takes.rows.empty();
    auto mark = ctx.mark();
    auto out = ctx.template scratch<V>(packs ? gives.count : 0, width),
         in = ctx.template scratch<V>(unpacks ? takes.count : 0, width);
    B::for_rows(ctx, out.extent(0), fn::PackRows<T, V, B>{gives.rows, from, out});
    exchange<V>(shard, memory_of(ctx), packs ? out.data() : reinterpret_cast<const V*>(from.data()), by_width(give),
                unpacks ? in.data() : reinterpret_cast<V*>(to.data()), by_width(take), work);
    B::for_rows(ctx, in.extent(0), fn::UnpackRows<T, V, B>{takes.rows, in, to});
  }
  /// For each shard the rows that its experts' slots read, in the order in which a slot first does, and those slots.
  /// What it is told of them: their numbers.
  template <class M>
  void find_rows(const M& memory, const Groups<B>& on_backend, Index rows, const Placement& placement,
                 std::vector<Index>& told, std::vector<Range>& told_to) {
    const auto offsets = memory.read(on_backend.offsets.data(), on_backend.offsets.size());
    const auto row_of = memory.read(on_backend.rows.data(), on_backend.rows.size());
    const Groups<Host> own{{offsets.data(), offsets.size()}, {row_of.data(), row_of.size()}, on_backend.slots};
    std::vector<Index> number(at(rows)), seen_by(at(rows), -1);
    std::vector<Index> sent, slots;
    const auto experts_of = placement.by_shard(static_cast<Index>(give_.size()), {0, own.experts()});
    row_of_slot_.clear();
    for (Index j = 0; j < static_cast<Index>(give_.size()); ++j) {
      Part& part = give_[at(j)];
      part.rows.first = static_cast<Index>(sent.size());
      part.slots.first = static_cast<Index>(slots.size());
      told_to.push_back({static_cast<Index>(told.size()), 1});
      told.push_back(0);
      for (const Index e : experts_of[at(j)]) {
        for (Index s = own.offsets(e); s < own.offsets(e + 1); ++s) {
          const Index row = own.row(s);
          if (seen_by[at(row)] != j) {
            seen_by[at(row)] = j;
            number[at(row)] = static_cast<Index>(sent.size()) - part.rows.first;
            sent.push_back(row);
          }
          row_of_slot_.push_back(number[at(row)]);
          slots.push_back(s);
        }
        told.push_back(own.offsets(e + 1) - own.offsets(e));
        ++told_to.back().count;
      }
      part.rows.count = told[at(told_to.back().first)] = static_cast<Index>(sent.size()) - part.rows.first;
      part.slots.count = static_cast<Index>(slots.size()) - part.slots.first;
    }
    keep(memory, sent, sent_rows_);
    in_order_ = std::is_sorted(slots.begin(), slots.end());
    if (in_order_) slots.clear();  // they can be sent from where they stand
    keep(memory, slots, sent_slots_);
    memory.finish();
  }
  template <class M>
  static void keep(const M& memory, const std::vector<Index>& from, Tensor<Index, 1, B>& to) {
    to.resize(from.size());
    memory.copy(from.data(), to.size(), to.data());
  }
  void count_slots(const std::vector<Index>& heard, Index shards) {
    rows_here_ = slots_ = 0;
    counts_.assign(at(experts_), 0);
    for (Index j = 0; j < shards; ++j) {
      const Index* from = heard.data() + j * (1 + experts_);
      Part& part = take_[at(j)];
      part.rows = {rows_here_, from[0]};
      part.slots.first = slots_;
      for (Index e = 0; e < experts_; ++e) {
        part.slots.count += from[1 + e];
        counts_[at(e)] += from[1 + e];
      }
      rows_here_ += part.rows.count;
      slots_ += part.slots.count;
    }
  }
  /// Slots arrive by shard and then by expert; they stand by expert and then by shard.
  template <class M>
  void place_slots(const M& memory, const std::vector<Index>& heard, const std::vector<Index>& numbers, Index shards) {
    offsets_.resize(experts_ + 1);
    rows_.resize(slots_);
    place_of_slot_.resize(slots_);
    auto offsets = memory.room(offsets_.data(), experts_ + 1), rows = memory.room(rows_.data(), slots_),
         place_of = memory.room(place_of_slot_.data(), slots_);
    std::vector<Index> next(at(shards));
    for (Index j = 0; j < shards; ++j) next[at(j)] = take_[at(j)].slots.first;
    Index place = 0;
    for (Index e = 0; e < experts_; ++e) {
      offsets[at(e)] = place;
      for (Index j = 0; j < shards; ++j)
        for (Index n = heard[at(j * (1 + experts_) + 1 + e)]; n > 0; --n, ++place) {
          const Index arrived = next[at(j)]++;
          place_of[at(arrived)] = place;
          rows[at(place)] = take_[at(j)].rows.first + numbers[at(arrived)];
        }
    }
    offsets[at(experts_)] = place;
    memory.write(offsets, offsets_.data());
    memory.write(rows, rows_.data());
    memory.write(place_of, place_of_slot_.data());
  }

  Index experts_ = 0;                  // of this shard
  std::vector<Index> counts_{};        // [experts] slots
  std::vector<Part> give_{}, take_{};  // by shard
  Index rows_here_ = 0, slots_ = 0;
  bool in_order_ = true;                                // own slots are sent as they stand
  std::vector<Index> row_of_slot_{};                    // [own slots] its row among those that are sent, as they are
  Tensor<Index, 1, B> sent_rows_, sent_slots_;          // the rows and, unless in_order_, slots that are sent, by shard
  Tensor<Index, 1, B> offsets_, rows_, place_of_slot_;  // [experts + 1], [slots], [slots] as they arrive → place
  Tensor<Index, 1, B> numbers_;                         // [slots] or empty
};

}  // namespace gatefold::dist
