#pragma once

#include <type_traits>
#include <vector>

#include "gatefold/backend/lanes.hpp"
#include "gatefold/distributed/memory.hpp"

/// Transfers rows of tensors between shards, with an optional conversion to bfloat16 for the transfer. T is the element
/// type of the tensors (a floating-point type or Bfloat16), and V the type of the transferred values, T or Bfloat16.
namespace gatefold {

namespace dist {

/// Lists the rows of a tensor that this shard sends or receives, in the order of the transfer. The rows for each shard,
/// or from it, are a range of this list (`of_shard`).
template <class B>
struct PackedRows {
  View<const Index, 1, B> rows;  // if empty: the first `count` rows, in order
  Index count;
  std::vector<Range> of_shard;

  /// Joins the ranges of rows of neighbouring shards, if they are adjacent, into longer runs. Calls f(rows, tensor,
  /// packed) for each run. `rows` are the row numbers in `tensor`, and `packed` the rows of the run in the buffer of
  /// packed rows. If `rows` is empty, `tensor` has only the rows of the run.
  template <class A, class P, class F>
  void each_run(const A& of, const P& packed, const F& f) const {
    Range run;
    const auto flush = [&] {
      if (run.count == 0) return;
      const auto in_packed = packed.rows(run.first, run.count);
      if (rows.empty())
        f(rows, of.rows(run.first, run.count), in_packed);
      else
        f(rows.rows(run.first, run.count), of, in_packed);
    };
    for (const Range& r : of_shard) {
      if (r.first == run.first + run.count) {
        run.count += r.count;
      } else {
        flush();
        run = r;
      }
    }
    flush();
  }
};

namespace rows {

template <class V, class T, class B, class ShardT, class Work>
void carry_as(ShardT& shard, typename B::Context& ctx, const PackedRows<B>& gives, View<const T, 2, B> from,
              const PackedRows<B>& takes, View<T, 2, B> to, const Work& work) {
  const Index width = from.extent(1);
  using Element = std::conditional_t<std::is_same_v<T, Bfloat16>, float, T>;  // type of a value in registers
  // Rows that need no gathering and no rounding are transferred directly from and to the tensors, without a buffer.
  const bool packs = !std::is_same_v<V, T> || !gives.rows.empty(),
             unpacks = !std::is_same_v<V, T> || !takes.rows.empty();
  auto mark = ctx.mark();
  const View<V, 2, B> out = ctx.template scratch<V>(packs ? gives.count : 0, width),
                      in = ctx.template scratch<V>(unpacks ? takes.count : 0, width);
  if (packs)
    gives.each_run(from, out, [&](const auto& list, const auto& of, const auto& packed) {
      B::for_rows(ctx, packed.extent(0), functor::CarryRows<Element, T, V, B>{list, of, {}, packed});
    });
  const V* const give = packs ? out.data() : reinterpret_cast<const V*>(from.data());
  V* const take = unpacks ? in.data() : reinterpret_cast<V*>(to.data());
  shard.all_to_all(memory_of(ctx), give, gives.of_shard, take, takes.of_shard, width, work);
  if (unpacks)
    takes.each_run(to, in, [&](const auto& list, const auto& of, const auto& packed) {
      B::for_rows(ctx, packed.extent(0), functor::CarryRows<Element, V, T, B>{{}, packed, list, of});
    });
}

}  // namespace rows

/// Sends rows of `from` to the shards, as listed in `gives`, and writes the received rows to the rows `takes` of `to`.
/// All shards call it together. work() runs while the rows are transferred.
/// @param bfloat16  whether to round floats to bfloat16, also rows that stay on this shard
template <class T, class B, class ShardT, class Work>
void carry_rows(ShardT& shard, typename B::Context& ctx, bool bfloat16, const PackedRows<B>& gives, In<T, 2, B> from,
                const PackedRows<B>& takes, Out<T, 2, B> to, const Work& work) {
  if constexpr (std::is_same_v<T, float>)
    if (bfloat16) return rows::carry_as<Bfloat16, T, B>(shard, ctx, gives, from, takes, to, work);
  rows::carry_as<T, T, B>(shard, ctx, gives, from, takes, to, work);
}

}  // namespace dist
}  // namespace gatefold
