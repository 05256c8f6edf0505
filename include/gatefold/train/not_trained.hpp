#pragma once

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/gradient_memory.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/train/parameter_group.hpp"

namespace gatefold {

/// Selects the parameters that a Trainer does not train, by their names:
///
///     Trainer trainer{ctx, model, loss, optimizer, Seed{1}, NotTrained{"layers.*.branch.expert", "layers.0"}};
///     Trainer router_only{ctx, model, loss, optimizer, Seed{1}, NotTrained{is_no_router}};
///
/// The selected tensors keep their values: neither the optimizer nor a rule of the parameters themselves
/// (Params.adapt) changes them. They count in no norm and have no optimizer state. If the Params of a policy declare
/// `gradient_is_optional`, as in all policies of the library, no gradient is computed for them, and it takes no
/// memory. The gradients of items and of all other tensors have the same bits as in a run that trains everything.
///
/// Names are as in for_each_tensor; in a Trainer with a loss that learns they begin with `model.` or `loss.`. A
/// pattern is compared from the beginning of a name, part by part. It selects the tensor or all tensors below it:
/// `layers.0` selects `layers.0.rule.mu`, and `layers.1` does not select `layers.10.rule.mu`. In a part, `*` matches
/// any characters. The part `**` matches any number of parts, also zero: `**.gate.scores` selects all routers.
class NotTrained {
 public:
  /// Selects nothing.
  NotTrained() = default;
  /// @param patterns  names or patterns
  template <class... S,
            class = std::enable_if_t<(sizeof...(S) > 0) && (std::is_convertible_v<S, std::string_view> && ...)>>
  NotTrained(const S&... patterns) {
    patterns_.reserve(sizeof...(S));
    (patterns_.emplace_back(std::string_view(patterns)), ...);
  }
  NotTrained(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {}
  /// @param function  returns whether the tensor of a name is selected: a function, or a lambda without captures
  NotTrained(bool (*function)(const Name&)) : selects_(function) {
    expect(function, "NotTrained", "function", "a function of names", "null");
  }

  /// Returns for each tensor of the pack, in the order of for_each_tensor, whether it is selected.
  /// @throws ArgumentError if a pattern or the function selects no tensor; for a pattern, the message has the nearest
  ///         names
  template <class P>
  std::vector<bool> of(const P& params) const {
    std::vector<std::string> names;
    std::vector<bool> selected;
    const auto look = [&](const Name& name, const AnyTensor*) {
      selected.push_back(selects_ && selects_(name));
      if (!patterns_.empty()) names.push_back(name.str());
    };
    detail_::pack::visit_any(look, Name{}, false, params);
    expect(!selects_ || std::find(selected.begin(), selected.end(), true) != selected.end(), "NotTrained", "function",
           "true for at least one tensor", "false for all");
    for (const std::string& pattern : patterns_) select(pattern, names, selected);
    return selected;
  }

 private:
  /// Returns whether a part of a name matches a part of a pattern.
  static bool fits(std::string_view pattern, std::string_view part) {
    if (pattern.empty()) return part.empty();
    if (pattern[0] != '*') return !part.empty() && part[0] == pattern[0] && fits(pattern.substr(1), part.substr(1));
    return fits(pattern.substr(1), part) || (!part.empty() && fits(pattern, part.substr(1)));
  }
  static std::string_view head(std::string_view name) { return name.substr(0, name.find('.')); }
  static std::string_view tail(std::string_view name) {
    const std::size_t dot = name.find('.');
    return dot == name.npos ? std::string_view{} : name.substr(dot + 1);
  }
  /// Returns whether the pattern selects the tensor of this name.
  static bool selects(std::string_view pattern, std::string_view name) {
    if (pattern.empty()) return true;
    const std::string_view part = head(pattern);
    if (part == "**" && selects(tail(pattern), name)) return true;
    if (name.empty()) return false;
    return part == "**" ? selects(pattern, tail(name)) : fits(part, head(name)) && selects(tail(pattern), tail(name));
  }
  static void select(const std::string& pattern, const std::vector<std::string>& names, std::vector<bool>& selected) {
    bool found = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (pattern.empty() || !selects(pattern, names[i])) continue;
      selected[i] = found = true;
    }
    if (!found) throw_nothing(pattern, names);
  }
  [[noreturn, gnu::cold, gnu::noinline]] static void throw_nothing(const std::string& pattern,
                                                                   const std::vector<std::string>& names) {
    std::vector<std::pair<std::size_t, std::string>> near;  // names of tensors and of the packs around them
    for (std::string name : names)
      for (; !name.empty(); name.resize(name.rfind('.') == name.npos ? 0 : name.rfind('.')))
        near.emplace_back(("." + name).ends_with("." + pattern) ? 0 : edits(pattern, name), name);
    std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> nearest;
    for (const auto& [distance, name] : near)
      if (nearest.size() < 3 && std::find(nearest.begin(), nearest.end(), name) == nearest.end())
        nearest.push_back(name);
    std::ostringstream message = message_stream();
    message << "NotTrained: pattern: expected the name of a tensor or of a part, got \"" << pattern << '"';
    for (std::size_t i = 0; i < nearest.size(); ++i) message << (i == 0 ? "; the nearest names: " : ", ") << nearest[i];
    throw ArgumentError(message.str());
  }
  /// Returns how many characters must be inserted, deleted or replaced to change a into b.
  static std::size_t edits(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 0; i < a.size(); ++i) {
      std::size_t before = std::exchange(row[0], i + 1);
      for (std::size_t j = 0; j < b.size(); ++j)
        before = std::exchange(row[j + 1], std::min({before + (a[i] != b[j]), row[j] + 1, row[j + 1] + 1}));
    }
    return row[b.size()];
  }

  std::vector<std::string> patterns_;
  bool (*selects_)(const Name&) = nullptr;
};

namespace detail_::not_trained {

/// Returns whether the next pack with a rule `adapt` applies it.
struct AdaptSome {
  const std::vector<bool>& adapts;
  std::size_t& next;
  bool operator()() const { return adapts[next++]; }
};
/// Returns zeroed gradients of parameters. Gradients that are not needed are skipped (Tensor.skip).
template <class C, class P>
P gradients(C& ctx, const P& params, const detail_::gradient_memory::Uses& uses, const std::vector<bool>& selected) {
  const auto here = ctx.here();
  P zeros;
  detail_::gradient_memory::shape(zeros, params, uses, selected);
  set_zero(ctx, zeros);
  return zeros;
}
/// Returns gradients that backward skips if it can, for callers that need only the gradient of the items.
template <class C, class P>
P no_gradients(C& ctx, const P& params) {
  return gradients(ctx, params, detail_::gradient_memory::uses<C>(params),
                   std::vector<bool>(count_tensors(params), true));
}

/// The part of a pack that a Trainer trains.
template <class C, class Pack>
class Trained {
 public:
  /// @throws ArgumentError as NotTrained.of
  Trained(const Pack& params, const NotTrained& except)
      : selected_(except.of(params)), uses_(detail_::gradient_memory::uses<C>(params)) {
    for (const auto& [begin, end] : uses_.adapting) {
      bool none = true;
      for (std::size_t i = begin; i < end; ++i) none = none && !selected_[i];
      adapts_.push_back(none);
    }
    for (std::size_t i = 0; i < selected_.size(); ++i) whole_ = whole_ && !selected_[i] && uses_.of_tensors[i].learned;
    std::size_t next = 0;
    const auto choose = [&](const Name& name) {
      const std::size_t i = next++;
      if (selected_[i]) names_.push_back(name.str());
      return !selected_[i] && uses_.of_tensors[i].learned;
    };
    if (!whole_) stepped_ = ParameterGroup<Pack>(params, choose);
  }

  /// Returns zeros of the shape of the parameters. Gradients that are not needed are skipped
  /// (detail_::gradient_memory::shape).
  Pack gradients(C& ctx, const Pack& params) const {
    return detail_::not_trained::gradients(ctx, params, uses_, selected_);
  }
  /// Calls f(packs...) while tensors that no optimizer steps are set aside (ParameterGroup.only).
  template <class F, class... Packs>
  auto only(F&& f, Packs&... packs) {
    return whole_ ? f(packs...) : stepped_.only(f, packs...);
  }
  /// Calls adapt_params(ctx, params, grads) for packs without selected tensors.
  void adapt(C& ctx, Pack& params, Pack& grads) const {
    std::size_t next = 0;
    gatefold::adapt_params(ctx, params, grads, detail_::not_trained::AdaptSome{adapts_, next});
  }
  /// The names of the selected tensors.
  const std::vector<std::string>& not_trained() const { return names_; }

 private:
  std::vector<bool> selected_, adapts_;  // for each tensor; for each pack with `adapt`
  detail_::gradient_memory::Uses uses_;
  bool whole_ = true;  // whether an optimizer steps all tensors
  ParameterGroup<Pack> stepped_{};
  std::vector<std::string> names_{};
};

}  // namespace detail_::not_trained

/// Returns zeroed gradients of parameters, as in a Trainer without NotTrained. It is like zeros_like, but gradients of
/// tensors that are not learned are skipped if their policy declares `gradient_is_optional`.
template <class C, class P>
P gradients_like(C& ctx, const P& params) {
  return detail_::not_trained::gradients(ctx, params, detail_::gradient_memory::uses<C>(params),
                                         std::vector<bool>(count_tensors(params), false));
}

}  // namespace gatefold
