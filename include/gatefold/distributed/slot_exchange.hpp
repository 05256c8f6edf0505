#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "gatefold/backend/transfer.hpp"
#include "gatefold/distributed/placement.hpp"
#include "gatefold/distributed/row_transfer.hpp"
#include "gatefold/distributed/shards.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold::dist {

/// Options for the transfer of rows between shards. The rows are items, outputs of experts, and their gradients.
struct ExchangeOptions {
  bool bfloat16 = false;  // rounds floats to bfloat16, which halves the bytes; doubles are not rounded
  Index chunks = 1;       // number of parts of each shard's experts; one part computes while rows of another are sent
};

/// Transfers the slots of all shards' items to the shards of their experts, and the results back. A slot is one row of
/// work of an expert: one item that the expert computes.
///
/// A shard's own slots are sorted by expert (Groups). They are sent sorted by receiving shard, then by expert. On the
/// receiving shard they are sorted by expert, then by sending shard, which is the order of the whole batch. A row that
/// several slots of a shard read is transferred only once to each shard that needs it. The host computes the lists of
/// the transfers, because it must know the length of messages; the rows are on the backend.
/// @cost   begin: two small exchanges (three if experts have copies), and on a device a transfer of the lists of slots
///         to the host and back. bring_rows, bring_slots and return_slots: one exchange each, in which a shard sends or
///         receives at most one row for each of its slots. If experts are not placed in order, bring_slots and
///         return_slots also copy the rows of this shard's own slots
template <class T, class B>
class SlotExchange {
 public:
  static constexpr Index all = -1;  // pass it as `chunk` to transfer all chunks

  /// Prepares the transfers. Sends to each shard j the number of rows that shard j will receive from this shard, and
  /// the number of slots for each expert of shard j (a slot is an item for an expert). Also sends the row that each of
  /// these slots reads.
  /// @param own  the slots of this shard's items, of all experts
  /// @param rows  number of rows from which these slots read
  /// @param placement  which shard holds which expert
  /// @param chunks  number of chunks into which the experts of a shard are divided, in order
  template <class ShardT>
  void begin(ShardT& shard, typename B::Context& ctx, const Groups<B>& own, Index rows, const Placement& placement,
             Index chunks = 1) {
    const auto memory = memory_of(ctx);
    const Index shards = shard.count();
    chunks_ = chunks;
    experts_ = placement.count(shard.index());
    give_.assign(static_cast<std::size_t>(shards), {});
    take_.assign(static_cast<std::size_t>(shards), {});

    // Each shard sends each other shard the number of rows, then the number of slots of each expert.
    std::vector<Index> told, heard(static_cast<std::size_t>(shards * (1 + experts_)));
    std::vector<Range> told_to, heard_from;
    find_rows(shard, memory, own, rows, placement, told, told_to);
    for (Index j = 0; j < shards; ++j) heard_from.push_back({j * (1 + experts_), 1 + experts_});
    shard.all_to_all(HostMemory{}, std::as_const(told).data(), told_to, heard.data(), heard_from);
    count_slots(heard, shards);
    numbers_.resize(0);

    // Each shard sends each other shard the number of the row that each slot reads.
    std::vector<Index> numbers(static_cast<std::size_t>(slots_));
    shard.all_to_all(HostMemory{}, std::as_const(row_of_slot_).data(), slots_of(give_, all), numbers.data(),
                     slots_of(take_, all));
    place_slots(memory, heard, numbers, shards);
  }

  /// Gives each received slot (an item for an expert) the number that the slot has in a run of one process with all
  /// items. Experts use this number to draw noise, so that the noise does not depend on the number of shards.
  /// @param items  true if the slots read items: Groups::rows is then not empty on at least one shard (it is empty on a
  ///         shard without items). false if Groups::rows is empty on all shards, so that slot s reads row s
  /// @param first  number of this shard's first row among the rows of all shards
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
      shard.all_to_all(HostMemory{}, std::as_const(sent).data(), rows_of(give_, all), of_rows.data(),
                       rows_of(take_, all));
    } else {  // slot s reads row s; one process would have all slots of an expert side by side
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
        const Index row = items ? of_rows[at(rows[at(s)])] : before[at(expert)] + before_here_[at(e)] + i;
        of_slots[at(s)] = row * experts + expert;
      }
    memory.write(of_slots, numbers_.data());
  }

  /// Returns the slots (work of experts) that this shard has received, sorted by expert. The row of each slot is a row
  /// of the output `to` of bring_rows.
  Groups<B> groups() const { return {View<const Index, 1, B>(offsets_.data(), experts_ + 1), rows_, slots_, numbers_}; }
  /// Returns groups(), the received slots, restricted to the experts of one chunk; all other experts have no slots. The
  /// slots of the chunk are the range slots_of(chunk) of the slots of groups().
  Groups<B> groups(Index chunk) const {
    const Range s = slots_of(chunk);
    const auto some = [&](const Tensor<Index, 1, B>& of) {
      return of.size() == 0 ? of.view() : of.view().rows(s.first, s.count);
    };
    return {View<const Index, 1, B>(offsets_.data() + (chunk + 1) * (experts_ + 1), experts_ + 1), some(rows_), s.count,
            some(numbers_)};
  }
  Range slots_of(Index chunk) const { return slots_of_[at(chunk)]; }
  Index chunks() const { return chunks_; }
  Index experts() const { return experts_; }
  /// Returns the number of received slots of each expert on this shard, in host memory.
  const std::vector<Index>& counts() const { return counts_; }
  Index rows() const { return rows_here_; }

  /// Sends to each shard the rows that its experts read. `from` [own rows, W] has the rows from which this shard's own
  /// slots read, for example its items. Writes to `to` [rows(), W] the rows that this shard's experts read. work() runs
  /// during the exchange (Shard::exchange).
  /// @param chunk  a chunk of the experts. Transfers only the rows that this chunk reads and no earlier chunk has read
  template <class ShardT, class Work = NoWork>
  void bring_rows(ShardT& shard, typename B::Context& ctx, In<T, 2, B> from, Out<T, 2, B> to, bool bfloat16,
                  Index chunk = all, const Work& work = {}) const {
    carry_rows<T, B>(shard, ctx, bfloat16, {sent_rows_, sent_rows_.size(), rows_of(give_, chunk)}, from,
                     {{}, rows_here_, rows_of(take_, chunk)}, to, work);
  }
  /// Transfers one row for each slot to the shard of the slot's expert. `from` [own slots, W] has the rows of this
  /// shard's own slots. Writes to `to` [groups().slots, W] the rows of the received slots. work() runs during the
  /// exchange (Shard::exchange).
  template <class ShardT, class Work = NoWork>
  void bring_slots(ShardT& shard, typename B::Context& ctx, In<T, 2, B> from, Out<T, 2, B> to, bool bfloat16,
                   Index chunk = all, const Work& work = {}) const {
    carry_rows<T, B>(shard, ctx, bfloat16, own_slots(chunk), from, slots_here(chunk), to, work);
  }
  /// The inverse of bring_slots: sends one row for each received slot back to the shard of its item. work() runs during
  /// the exchange.
  /// @param from  [groups().slots, W] in   values of the received slots
  /// @param to    [own slots, W]      out  values of this shard's own slots
  /// @tparam Z  the type of the slots' values: T or SlotValue<T, B>
  template <class Z = T, class ShardT, class Work = NoWork>
  void return_slots(ShardT& shard, typename B::Context& ctx, In<Z, 2, B> from, Out<Z, 2, B> to, bool bfloat16,
                    Index chunk = all, const Work& work = {}) const {
    carry_rows<Z, B>(shard, ctx, bfloat16, slots_here(chunk), from, own_slots(chunk), to, work);
  }

 private:
  /// The rows and slots that are sent to one shard or received from it, as ranges of the buffers of packed rows and
  /// slots: in total and for each chunk of the experts.
  struct Part {
    Range rows, slots;
    std::vector<Range> rows_of{}, slots_of{};
  };
  /// Running totals over the experts that one shard holds. Element i of `rows` is the number of different rows that the
  /// first i experts read. Element i of `slots` is the number of slots of these experts.
  struct Ends {
    std::vector<Index> rows{0}, slots{0};
  };
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  void deal_chunks(const Ends& ends, Part& part) const {
    for (Index c = 0; c < chunks_; ++c) {
      const Range e = Range::of(static_cast<Index>(ends.rows.size()) - 1, c, chunks_);
      const auto range = [&](const Range& of, const std::vector<Index>& until) {
        const Index first = until[at(e.first)];
        return Range{of.first + first, until[at(e.first + e.count)] - first};
      };
      part.rows_of.push_back(range(part.rows, ends.rows));
      part.slots_of.push_back(range(part.slots, ends.slots));
    }
  }
  static std::vector<Range> rows_of(const std::vector<Part>& parts, Index chunk) {
    std::vector<Range> found;
    for (const Part& part : parts) found.push_back(chunk == all ? part.rows : part.rows_of[at(chunk)]);
    return found;
  }
  static std::vector<Range> slots_of(const std::vector<Part>& parts, Index chunk) {
    std::vector<Range> found;
    for (const Part& part : parts) found.push_back(chunk == all ? part.slots : part.slots_of[at(chunk)]);
    return found;
  }
  PackedRows<B> own_slots(Index chunk) const {
    const Range& last = give_.back().slots;
    return {sent_slots_, last.first + last.count, slots_of(give_, chunk)};
  }
  PackedRows<B> slots_here(Index chunk) const { return {place_of_slot_, slots_, slots_of(take_, chunk)}; }

  /// Finds, for each receiving shard, which slots of this shard's items belong to the experts of the receiving shard.
  /// Also finds the rows that these slots read, in the order of first use. Writes to `told` the counts that begin()
  /// sends: for each shard, the number of rows, then the number of slots of each expert. told_to[j] is the range of
  /// `told` for shard j.
  template <class ShardT, class M>
  void find_rows(ShardT& shard, const M& memory, const Groups<B>& on_backend, Index rows, const Placement& placement,
                 std::vector<Index>& told, std::vector<Range>& told_to) {
    const auto offsets = memory.read(on_backend.offsets.data(), on_backend.offsets.size());
    const auto row_of = memory.read(on_backend.rows.data(), on_backend.rows.size());
    const Groups<Host> own{{offsets.data(), offsets.size()}, {row_of.data(), row_of.size()}, on_backend.slots};
    std::vector<Index> own_counts;
    for (Index e = 0; e < own.experts(); ++e) own_counts.push_back(own.offsets(e + 1) - own.offsets(e));
    const DividedSlots divided(shard, own_counts, placement);
    before_here_.clear();
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
      Ends ends;
      for (const Index e : experts_of[at(j)]) {
        const Range of_shard = divided.own(e, j);
        if (j == shard.index()) before_here_.push_back(divided.before(e, j));
        for (Index s = own.offsets(e) + of_shard.first, left = of_shard.count; left > 0; ++s, --left) {
          const Index row = own.row(s);
          if (seen_by[at(row)] != j) {
            seen_by[at(row)] = j;
            number[at(row)] = static_cast<Index>(sent.size()) - part.rows.first;
            sent.push_back(row);
          }
          row_of_slot_.push_back(number[at(row)]);
          slots.push_back(s);
        }
        told.push_back(of_shard.count);
        ++told_to.back().count;
        ends.rows.push_back(static_cast<Index>(sent.size()) - part.rows.first);
        ends.slots.push_back(static_cast<Index>(slots.size()) - part.slots.first);
      }
      part.rows.count = told[at(told_to.back().first)] = static_cast<Index>(sent.size()) - part.rows.first;
      part.slots.count = static_cast<Index>(slots.size()) - part.slots.first;
      deal_chunks(ends, part);
    }
    keep(memory, sent, sent_rows_);
    in_order_ = std::is_sorted(slots.begin(), slots.end());
    if (in_order_) slots.clear();  // slots in order are sent in place, without a list
    keep(memory, slots, sent_slots_);
    memory.finish();
  }
  static void keep(const auto& memory, const std::vector<Index>& from, Tensor<Index, 1, B>& to) {
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
  /// Sorts the received slots by expert, then by sending shard. They arrive sorted by sending shard, then by expert.
  void place_slots(const auto& memory, const std::vector<Index>& heard, const std::vector<Index>& numbers,
                   Index shards) {
    offsets_.resize((1 + chunks_) * (experts_ + 1));
    rows_.resize(slots_);
    place_of_slot_.resize(slots_);
    auto offsets = memory.room(offsets_.data(), offsets_.size()), rows = memory.room(rows_.data(), slots_),
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
    find_chunks(heard, numbers, shards, offsets);
    memory.write(offsets, offsets_.data());
    memory.write(rows, rows_.data());
    memory.write(place_of, place_of_slot_.data());
  }

  /// Divides the received slots into chunks of experts in the same way as the sending shards. Row 0 of `offsets`
  /// [1 + chunks, experts + 1] has the offsets of all slots. Writes the offsets of chunk c to row 1 + c.
  void find_chunks(const std::vector<Index>& heard, const std::vector<Index>& numbers, Index shards, auto& offsets) {
    for (Index j = 0; j < shards; ++j) {
      Part& part = take_[at(j)];
      Ends ends;
      Index s = part.slots.first;
      for (Index e = 0; e < experts_; ++e) {
        ends.rows.push_back(ends.rows.back());
        for (Index n = heard[at(j * (1 + experts_) + 1 + e)]; n > 0; --n, ++s)
          ends.rows.back() = std::max(ends.rows.back(), numbers[at(s)] + 1);
        ends.slots.push_back(s - part.slots.first);
      }
      deal_chunks(ends, part);
    }
    slots_of_.clear();
    for (Index c = 0; c < chunks_; ++c) {
      const Range e = Range::of(experts_, c, chunks_);
      const Index first = offsets[at(e.first)], end = offsets[at(e.first + e.count)];
      slots_of_.push_back({first, end - first});
      for (Index i = 0; i <= experts_; ++i)
        offsets[at((c + 1) * (experts_ + 1) + i)] = std::clamp(offsets[at(i)], first, end) - first;
    }
  }

  Index experts_ = 0;  // number of experts of this shard
  Index chunks_ = 1;
  std::vector<Range> slots_of_{};  // [chunks] ranges of the received slots, sorted by expert
  std::vector<Index> counts_{};    // [experts] the number of received slots of each expert
  // [experts] The number of slots of each expert that the shards before this one compute; 0 without copies.
  std::vector<Index> before_here_{};
  std::vector<Part> give_{}, take_{};  // by shard
  Index rows_here_ = 0, slots_ = 0;
  bool in_order_ = true;  // own slots are already in sending order, so they are sent in place
  // [own slots] The row that each slot reads, numbered from 0 within the rows that are sent to the same shard. The
  // slots are in sending order.
  std::vector<Index> row_of_slot_{};
  // The rows to send and, unless in_order_, the slots to send, sorted by receiving shard.
  Tensor<Index, 1, B> sent_rows_, sent_slots_;
  // The received slots, sorted by expert.
  Tensor<Index, 1, B> offsets_;        // the first slot of each expert, for all chunks together and then for each chunk
  Tensor<Index, 1, B> rows_;           // [slots] the row that each slot reads
  Tensor<Index, 1, B> place_of_slot_;  // [slots] element i is the sorted position of the slot that arrived as number i
  Tensor<Index, 1, B> numbers_;        // [slots] or empty: the number of each slot in one process with all items
};

}  // namespace gatefold::dist
