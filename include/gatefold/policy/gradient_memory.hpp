#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "gatefold/policy/hooks.hpp"

/// Decides which gradients get memory. A gradient gets no memory (Tensor.skip) if no code reads it and if the Params
/// that list its tensor declare `gradient_is_optional` (tensor/pack.hpp). Backward of a policy with these Params
/// computes only gradients that have memory.
namespace gatefold::detail_::gradient_memory {

/// Describes how the gradient of a tensor is used.
struct Use {
  bool optional = false;  // the gradient can be left out (Tensor.skip)
  bool learned = true;    // an optimizer reads the gradient
  bool adapts = false;    // a function `adapt` (an update that is not a gradient step) reads the gradient
};
/// Describes how the gradient of each tensor of a pack is used, in the order of for_each_tensor. `adapting` has an
/// entry for each pack with a function `adapt` that is not inside another such pack. The entry is the range [first,
/// second) of the pack's tensors.
struct Uses {
  std::vector<Use> of_tensors{};
  std::vector<std::pair<std::size_t, std::size_t>> adapting{};
};

template <class C, class P>
void add_uses(const P& pack, Use use, Uses& all);
template <class C>
struct AddUsesOfPart {
  const Use& use;
  Uses& all;
  void operator()(auto, const auto& part) const { add_uses<C>(part, use, all); }
};
template <class C, class P>
void add_uses(const P& pack, Use use, Uses& all) {
  if constexpr (detail_::pack::is_tensor<P>) {
    all.of_tensors.push_back(use);
  } else if constexpr (detail_::pack::is_vector<P> || detail_::pack::is_tuple<P>) {
    detail_::pack::each_part(AddUsesOfPart<C>{use, all}, pack);
  } else if constexpr (detail_::pack::check<P>()) {
    constexpr bool adapts = detail_::hook::params::adapt<P, C, P>();
    const bool outermost = adapts && !use.adapts;  // true if no other pack with `adapt` is around this one
    const std::size_t begin = all.of_tensors.size();
    use = {gradient_is_optional<P>, use.learned && is_learned<P>, use.adapts || adapts};
    P::each(AddUsesOfPart<C>{use, all}, pack);
    if (outermost) all.adapting.emplace_back(begin, all.of_tensors.size());
  }
}
/// Returns for each tensor of a pack which code reads its gradient: an optimizer or a function `adapt`.
/// @tparam C  the context that `adapt` takes
template <class C, class P>
Uses uses(const P& params) {
  Uses all;
  add_uses<C>(params, {}, all);
  return all;
}

/// Gives a gradient the extents of its parameter if the gradient is needed. Otherwise gives it no memory (Tensor.skip).
struct ShapeGradient {
  const std::vector<bool>& needed;
  std::size_t& next;
  void operator()(auto& gradient, const auto& parameter) const {
    if (needed[next++])
      gradient.resize_like(parameter);
    else
      gradient.skip();
  }
};
/// Gives gradients the shapes of their parameters. A gradient gets no memory if it is optional and no code reads it. No
/// code reads the gradient if `selected` is true for its tensor, or if neither an optimizer nor `adapt` changes the
/// tensor.
/// @param selected  one value for each tensor, in the order of for_each_tensor: true if the caller does not need the
///                  gradient, for example because the tensor is not trained (NotTrained)
template <class P>
void shape(P& grads, const P& params, const Uses& uses, const std::vector<bool>& selected) {
  std::vector<bool> needed;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const Use& use = uses.of_tensors[i];
    needed.push_back(!use.optional || (!selected[i] && (use.learned || use.adapts)));
  }
  std::size_t next = 0;
  detail_::pack::structure_like(grads, params, ShapeGradient{needed, next});
}

}  // namespace gatefold::detail_::gradient_memory
