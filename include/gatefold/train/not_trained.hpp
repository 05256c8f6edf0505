#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/policy/gradient_memory.hpp"
#include "gatefold/tensor/find.hpp"
#include "gatefold/train/parameter_group.hpp"

namespace gatefold {

/// Selects the parameters that a Trainer does not train, by their names:
///
///     Trainer trainer{ctx, model, loss, optimizer, Seed{1}, NotTrained{"layers.*.branch.expert", "layers.0"}};
///     Trainer router_only{ctx, model, loss, optimizer, Seed{1}, NotTrained{is_no_router}};
///
/// The selected tensors keep their values: neither the optimizer nor `Params.adapt` changes them. They are not part of
/// any norm of gradients and have no optimizer state. If the Params that list a selected tensor declare
/// `gradient_is_optional`, its gradient is not computed and takes no memory. All policies of the library declare it.
/// Gradients of items, and the gradients of all other tensors, have the same bits as in a run that trains all
/// parameters.
///
/// Names are the names of for_each_tensor. If the loss of a Trainer has parameters, names begin with `model.` or
/// `loss.`. The names of a tensor and of the packs around it consist of parts, with dots between them. A pattern
/// selects the tensor of this name, or all tensors of the pack of this name. For example, `layers.0` selects
/// `layers.0.rule.mu`, and `layers.1` does not select `layers.10.rule.mu`. In a part, `*` matches any characters. The
/// part `**` matches any number of parts, including 0: `**.gate.scores` selects all routers.
class NotTrained {
 public:
  /// Selects nothing.
  NotTrained() = default;
  /// Selects the tensors with the given names.
  /// @param patterns  names of tensors or packs, or patterns with `*` or `**`
  template <class... S,
            class = std::enable_if_t<(sizeof...(S) > 0) && (std::is_convertible_v<S, std::string_view> && ...)>>
  NotTrained(const S&... patterns) {
    patterns_ = NamePatterns({std::string(std::string_view(patterns))...});
  }
  NotTrained(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {}
  /// Selects the tensors for whose names a function returns true.
  /// @param function  a pointer to a function of the name of a tensor
  /// @throws ArgumentError if `function` is null
  NotTrained(bool (*function)(const Name&)) : selects_(function) {
    expect(function, "NotTrained", "function", "a function of names", "null");
  }

  /// Selects the tensors for whose names a lambda without captures returns true.
  template <class F, class = std::enable_if_t<std::is_class_v<F> && std::is_invocable_r_v<bool, const F&, const Name&>>>
  NotTrained(const F& function) {
    GATEFOLD_REQUIRE((std::is_convertible_v<const F&, bool (*)(const Name&)>),
                     "gatefold: NotTrained takes names, or a function of names: a lambda without captures, or a "
                     "function; for names that are known at run time, pass a std::vector<std::string>; see "
                     "docs/tutorials/own_program.md");
    if constexpr (std::is_convertible_v<const F&, bool (*)(const Name&)>) selects_ = function;
  }

  /// Returns whether each tensor of a pack is selected, in the order of for_each_tensor.
  /// @throws ArgumentError if a pattern or the function selects no tensor; the message proposes similar names
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
    patterns_.select("NotTrained", names, selected);
    return selected;
  }

 private:
  NamePatterns patterns_;
  bool (*selects_)(const Name&) = nullptr;
};

namespace detail_::not_trained {

/// A callback for adapt_params, which calls the member function `adapt` of packs that update their parameters by their
/// own rule. The callback is called once for each such pack, in order. If it returns false, adapt_params skips the
/// pack.
struct AdaptSome {
  const std::vector<bool>& adapts;
  std::size_t& next;
  bool operator()() const { return adapts[next++]; }
};
/// Returns a pack of gradients that are 0. A gradient gets no memory if its policy declares `gradient_is_optional`, and
/// either its tensor is not trained (`selected`) or no code reads the gradient.
template <class C, class P>
P gradients(C& ctx, const P& params, const detail_::gradient_memory::Uses& uses, const std::vector<bool>& selected) {
  const auto here = ctx.here();
  P zeros;
  detail_::gradient_memory::shape(zeros, params, uses, selected);
  set_zero(ctx, zeros);
  return zeros;
}
/// Returns a pack of gradients in which all optional gradients (see `gradient_is_optional`) have no memory, so that
/// backward does not compute them. Use the pack if you need only the gradient of the items.
template <class C, class P>
P no_gradients(C& ctx, const P& params) {
  return gradients(ctx, params, detail_::gradient_memory::uses<C>(params),
                   std::vector<bool>(count_tensors(params), true));
}

/// Divides the parameters of a Trainer into tensors that are trained and tensors that keep their values.
template <class C, class Pack>
class Trained {
 public:
  /// Selects the tensors that are not trained. The selection is by name.
  /// @throws ArgumentError if a pattern or function of `except` selects no tensor, or `except` selects all learned
  ///         tensors
  Trained(const Pack& params, const NotTrained& except)
      : selected_(except.of(params)), uses_(detail_::gradient_memory::uses<C>(params)) {
    for (const auto& [begin, end] : uses_.adapting) {
      bool none = true;
      for (std::size_t i = begin; i < end; ++i) none = none && !selected_[i];
      adapts_.push_back(none);
    }
    bool some = false, all = true;  // whether a learned tensor is trained, and whether no tensor is selected
    for (std::size_t i = 0; i < selected_.size(); ++i) {
      whole_ = whole_ && !selected_[i] && uses_.of_tensors[i].learned;
      some = some || (!selected_[i] && uses_.of_tensors[i].learned);
      all = all && !selected_[i];
    }
    expect(some || all, "NotTrained", "selection", "at least one learned tensor that is not selected", "all selected");
    std::size_t next = 0;
    const auto choose = [&](const Name& name) {
      const std::size_t i = next++;
      if (selected_[i]) names_.push_back(name.str());
      return !selected_[i] && uses_.of_tensors[i].learned;
    };
    if (!whole_) stepped_ = ParameterGroup<Pack>(params, choose, true);
  }

  /// Returns a pack of gradients that are 0 and have the shapes of the parameters. An optional gradient that no code
  /// reads gets no memory (Tensor.skip; detail_::gradient_memory::shape).
  Pack gradients(C& ctx, const Pack& params) const {
    return detail_::not_trained::gradients(ctx, params, uses_, selected_);
  }
  /// Calls f(packs...). During the call, the packs have empty tensors in place of the tensors that no optimizer updates
  /// (ParameterGroup.only).
  template <class F, class... Packs>
  auto only(F&& f, Packs&... packs) {
    return whole_ ? f(packs...) : stepped_.only(f, packs...);
  }
  /// Calls the member function `adapt` of packs that update parameters by their own rule (adapt_params). Skips packs
  /// with tensors that are not trained.
  void adapt(C& ctx, Pack& params, Pack& grads) const {
    std::size_t next = 0;
    gatefold::adapt_params(ctx, params, grads, detail_::not_trained::AdaptSome{adapts_, next});
  }
  /// Returns the names of the tensors that are not trained.
  const std::vector<std::string>& not_trained() const { return names_; }

 private:
  // selected_ has an entry for each tensor (true: not trained), adapts_ for each pack with `adapt` (true: call it).
  std::vector<bool> selected_, adapts_;
  detail_::gradient_memory::Uses uses_;
  bool whole_ = true;  // true if an optimizer updates all tensors
  ParameterGroup<Pack> stepped_{};
  std::vector<std::string> names_{};
};

}  // namespace detail_::not_trained

/// Returns a pack of gradients that are 0, like the gradients of a Trainer that trains all parameters. Unlike
/// zeros_like, it gives no memory to the gradients of tensors that are not learned, if their policy declares
/// `gradient_is_optional`.
template <class C, class P>
P gradients_like(C& ctx, const P& params) {
  return detail_::not_trained::gradients(ctx, params, detail_::gradient_memory::uses<C>(params),
                                         std::vector<bool>(count_tensors(params), false));
}

}  // namespace gatefold
