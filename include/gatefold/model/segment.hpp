#pragma once

#include <type_traits>

#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/attention/segment_memory.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

/// Additional inputs of a sequence model for one segment of its sequences, that is, some consecutive items of each
/// sequence. extra_of distributes the inputs to the parts of the model: `trainer.step(ids, next,
/// extra_of<Extra>(segment))`.
template <class T, class B>
struct Segment {
  Index length = 0;                // items of each sequence; 0: all items are one sequence
  Noise noise{};                   // empty: evaluation
  AttentionMemory<T, B> memory{};  // [attentions · depth, …] items of previous segments; empty: no items are remembered
  View<const T, 1, B> valid{};     // [N] mask: 1 = item, 0 = padding of shorter sequences; empty: no padding
  CacheView<T, B> cache{};         // [attentions · depth, …] keys and values of earlier items (KvCache); empty: none
};

/// Returns the additional inputs (Extra) of a model for one segment. Every part of the model that takes a sequence
/// length or a padding mask gets the length or mask of the segment. Every part that draws random numbers gets a
/// different random stream. The layers of the memory or cache are divided equally among the attentions, in the order of
/// the extra inputs. An attention in a stack thus gets one layer of the memory or cache for each repetition of its
/// layer. Inputs without a default, for example the ids of a HashGate, cannot come from a segment. For models with such
/// inputs, write the extra in full, with its parts in nested braces.
/// @throws ArgumentError unless the number of layers of the memory or cache is a multiple of the number of attentions,
///         or if there is a memory or a cache and no attention takes it
template <class E, class T, class B>
E extra_of(const Segment<T, B>& segment) {
  E extra{};
  Index draws = 0, remembering = 0, caching = 0, memory = 0, cache = 0;
  using MemoryT = AttentionMemory<T, B>;
  using CacheT = CacheView<T, B>;
  detail_::lookup::for_each_extra(extra, [&]<class P>(P&) {
    if constexpr (detail_::hook::input::memory<P, MemoryT>()) ++remembering;
    if constexpr (detail_::hook::input::cache<P, CacheT>()) ++caching;
  });
  expect(remembering > 0 || (!segment.memory.past.data() && !segment.memory.next.data()), "extra_of", "segment.memory",
         caching > 0 ? "no memory, because the attentions of the model take a cache (KvCache)"
                     : "no memory, because no attention of the model has memory",
         "a memory");
  expect(caching > 0 || !segment.cache.rows.data(), "extra_of", "segment.cache",
         "no cache, because no attention of the model takes one", "a cache");
  const auto share = [](const char* name, const auto& all, Index attentions, Index attention) {
    if (!all.data()) return all;
    expect(all.extent(0) % attentions == 0, "extra_of", name,
           Joined{"a multiple of ", attentions, " layers (the number of attentions)"}, all.extent(0));
    const Index depth = all.extent(0) / attentions;
    return all.rows(attention * depth, depth);
  };
  detail_::lookup::for_each_extra(extra, [&]<class P>(P& part) {
    if constexpr (std::is_same_v<P, Noise>) part = segment.noise.at(draws++);
    if constexpr (detail_::hook::input::length<P, Index>()) part.length = segment.length;
    if constexpr (detail_::hook::input::valid<P, View<const T, 1, B>>()) part.valid = segment.valid;
    if constexpr (detail_::hook::input::memory<P, MemoryT>()) {
      part.memory = segment.memory;
      part.memory.past = share("segment.memory", segment.memory.past, remembering, memory);
      part.memory.next = share("segment.memory", segment.memory.next, remembering, memory++);
    }
    if constexpr (detail_::hook::input::cache<P, CacheT>()) {
      part.cache = segment.cache;
      part.cache.rows = share("segment.cache", segment.cache.rows, caching, cache++);
    }
  });
  return extra;
}

}  // namespace gatefold
