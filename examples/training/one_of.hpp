#pragma once

#include <algorithm>
#include <cstddef>
#include <gatefold/policies.hpp>
#include <tuple>
#include <utility>
#include <variant>

namespace training {

using namespace gatefold;

/// One of several update rules, chosen at run time. A network then has one type for all rules and is compiled once. The
/// only cost is the choice at run time: the other rules have no parameters, no carry and no saved state.
template <class... RuleT>
struct OneOf {
  std::variant<RuleT...> rule{};

  static constexpr int evaluations = std::max({detail_::hook::rule::evaluations<RuleT>()...});

  template <class T, class B>
  struct Params {
    std::tuple<gatefold::Params<RuleT, T, B>...> rules;
    GATEFOLD_PACK(rules)
  };
  template <class T, class B>
  struct Carry {
    std::tuple<gatefold::Carry<RuleT, T, B>...> rules;
    update::Pass pass{};
    GATEFOLD_PACK(rules)
  };
  template <class T, class B>
  struct Saved {
    std::tuple<gatefold::Saved<RuleT, T, B>...> rules;
  };

  OneOf with_model_dim(Index width) const {
    OneOf filled = *this;
    choose([&]<std::size_t I>(const auto& chosen) {
      filled.rule = std::variant<RuleT...>(std::in_place_index<I>, gatefold::with_model_dim(chosen, width));
    });
    return filled;
  }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    Params<T, B> p;
    choose([&]<std::size_t I>(const auto& chosen) { std::get<I>(p.rules) = init_params<T, B>(chosen, ctx, seed); });
    return p;
  }
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    choose([&]<std::size_t I, class U>(const U& chosen) {
      if constexpr (detail_::hook::rule::begin<U, T, B>()) chosen.begin(ctx, items, dim, std::get<I>(carry.rules));
    });
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, Index dim, const Carry<T, B>& carry) const {
    choose([&]<std::size_t I, class U>(const U& chosen) {
      if constexpr (detail_::hook::rule::validate<U, T, B>())
        chosen.validate(std::get<I>(p.rules), items, dim, std::get<I>(carry.rules));
    });
  }
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
               Out<T, 2, B> y, Saved<T, B>& saved) const {
    choose([&]<std::size_t I>(const auto& chosen) {
      chosen.forward(ctx, std::get<I>(p.rules), x, std::get<I>(carry.rules), f, y, std::get<I>(saved.rules));
    });
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    choose([&]<std::size_t I>(const auto& chosen) {
      infer_rule<T, B>(chosen, ctx, std::get<I>(p.rules), x, std::get<I>(carry.rules), f, y);
    });
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Params<T, B>& grads) const {
    choose([&]<std::size_t I>(const auto& chosen) {
      chosen.backward(ctx, std::get<I>(p.rules), x, std::get<I>(saved.rules), df, dy, std::get<I>(dcarry.rules), dx,
                      std::get<I>(grads.rules));
    });
  }

 private:
  /// Calls f.template operator()<I>(rule I) for the chosen rule.
  template <class F>
  void choose(const F& f) const {
    const auto each = [&]<std::size_t... I>(std::index_sequence<I...>) {
      (void)((rule.index() == I && (f.template operator()<I>(std::get<I>(rule)), true)) || ...);
    };
    each(std::index_sequence_for<RuleT...>{});
  }
};

}  // namespace training
