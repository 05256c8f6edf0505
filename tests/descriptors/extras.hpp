#pragma once

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gatefold/gatefold.hpp"

/// Extra inputs for any layer, whatever its parts need.
namespace gatefold::rows {

struct ExtraOptions {
  Index length = 0;  // of a sequence; 0: all items are one sequence
  bool noise = false, padding = false, auxiliary = true;
};

/// Owns what the extra inputs of `items` items of `width` values point to: masks, tokens, and an attention trace.
template <class T, class B = Cpu>
class Extras {
 public:
  Extras(Index items, Index width) {
    Cpu::Context ctx(1);
    for (Index n = 0; n < items; ++n) {
      ids_.push_back(1000 * n + 7);
      tokens_.push_back(3 * n % 7);
      mask_.push_back(n % 5 == 3 ? T(0) : T(1));
      for (Index layer = 0; layer < layers; ++layer) recorded_.insert(recorded_.end(), {Index(2), Index(0)});
    }
    const Index heads = width % 2 == 0 ? 2 : 3;
    std::uint64_t seed = 31;
    for (auto* t : {&q_, &k_, &v_}) *t = uniform_tensor<T>(ctx, Seed{seed++}, 1, items, width);
    log_sum_exp_ = uniform_tensor<T>(ctx, Seed{seed++}, 1, items, heads);
    output_ = uniform_tensor<T>(ctx, Seed{seed}, 1, width, width);
  }

  /// Returns the extra inputs of items [first, first + count).
  template <class E>
  E of(const ExtraOptions& options, Index first, Index count) const {
    const auto part = [&]<class P>(std::type_identity<P>) { return of<P>(options, first, count); };
    const auto valid = options.padding ? View<const T, 1, B>(mask_).rows(first, count) : View<const T, 1, B>{};
    if constexpr (requires(E e) { e.scores, e.mixing, e.selection; }) {
      auto scores = part(std::type_identity<decltype(E::scores)>{});
      if constexpr (requires { scores.random; })
        if (scores.random) scores.random->step += 1;  // other noise than that of the selection
      return {scores, part(std::type_identity<decltype(E::mixing)>{}),
              part(std::type_identity<decltype(E::selection)>{}), valid, options.auxiliary};
    } else if constexpr (requires(E e) { e.primary, e.secondary; }) {
      return {part(std::type_identity<decltype(E::primary)>{}), part(std::type_identity<decltype(E::secondary)>{}),
              valid};
    } else if constexpr (requires(E e) { e.noise, e.branch; }) {
      return {part(std::type_identity<decltype(E::noise)>{}), part(std::type_identity<decltype(E::branch)>{})};
    } else if constexpr (requires(E e) { e.attention, e.layer; }) {
      return {part(std::type_identity<decltype(E::attention)>{}), part(std::type_identity<decltype(E::layer)>{})};
    } else if constexpr (requires(E e) { std::get<0>(e.layers); }) {
      return [&]<class... P>(std::type_identity<std::tuple<P...>>) {
        return E{{part(std::type_identity<P>{})...}};
      }(std::type_identity<decltype(E::layers)>{});
    } else if constexpr (requires(E e) { e.ids, e.distilled; }) {
      return {View<const Index, 1, B>(tokens_).rows(first, count), !options.noise};
    } else if constexpr (requires(E e) { e.ids; }) {
      return {View<const Index, 1, B>(ids_).rows(first, count)};
    } else if constexpr (requires(E e) { e.recorded; }) {
      return {View<const Index, 2, B>(recorded_.data(), layers, 2 * count)};
    } else if constexpr (requires(E e) { e.trace; }) {
      const auto rows = [&](const auto& t) { return t.view().rows(first, count); };
      return {AttentionTrace<const T, B>{rows(q_), rows(k_), rows(v_), rows(log_sum_exp_), output_,
                                         options.length > 0 ? options.length : count, 0.7, true},
              valid};
    } else {
      E e{};
      if constexpr (requires { e.length; }) e.length = options.length;
      if constexpr (requires { e.valid; }) e.valid = valid;
      if constexpr (requires { e.noise.random; }) e.noise = part(std::type_identity<decltype(e.noise)>{});
      if constexpr (requires { e.random; })
        if (options.noise) e.random = Random{Seed{5}, 3};
      return e;
    }
  }

 private:
  static constexpr Index layers = 3;
  std::vector<Index> ids_, tokens_, recorded_;  // recorded: the same two experts for each item
  std::vector<T> mask_;
  Tensor<T, 2, Cpu> q_, k_, v_, log_sum_exp_, output_;
};

}  // namespace gatefold::rows
