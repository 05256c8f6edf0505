#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"

namespace gatefold {

namespace detail_::parameter_group {

/// Swaps the tensors of two packs, except the tensors that belong to the group of an optimizer.
struct SwapOthers {
  const std::vector<bool>& belongs;
  std::size_t& i;
  void operator()(const Name&, auto& t, auto& other) const {
    if (!belongs[i++]) std::swap(t, other);
  }
};
/// Copies the tensors of a pack that belong to the group of an optimizer. The other tensors of the copy stay empty.
template <class C>
struct CopyChosen {
  C& ctx;
  const std::vector<bool>& belongs;
  std::size_t& i;
  void operator()(auto& to, const auto& from) const {
    if (!belongs[i++]) return;
    to.resize_like(from);
    copy(ctx, from.view(), to.view());
  }
};
/// Leaves all tensors of a new pack empty. If `skip` is true, marks them as skipped (Tensor.skip).
struct LeaveEmpty {
  bool skip = false;
  void operator()(auto& to, const auto&) const {
    if (skip) to.skip();
  }
};

}  // namespace detail_::parameter_group

/// A selection of the tensors of a pack, which lets an optimizer update only these tensors.
///
///     ParameterGroup attention(params, [](const Name& name) { return is_attention(name); });
///     auto state = attention.only([&](auto& p) { return adam.begin(ctx, p); }, params);
///     attention.only([&](auto& p, auto& g) { adam.step(ctx, p, g, state); }, params, grads);
///
/// During a call of `only`, all other tensors of the pack are replaced by empty tensors. Therefore the other tensors
/// have no moments, are not part of any norm, and are not changed by decay. They are put back into the pack when the
/// call returns or throws.
/// @cost   two swaps per tensor outside the group; no allocation after the first call with this number of packs
template <class Pack>
class ParameterGroup {
 public:
  /// Declares that this class has no tensors, for check::unlisted, which searches packs for tensors that they do not
  /// list. A ParameterGroup is a member of an optimizer's state. `begin` of the optimizer makes the group, so files do
  /// not contain it. A copy of the state gets the group by lie_as.
  using HoldsNoTensors = void;
  static void each(auto&&, auto&...) {}

  /// Makes an empty object. Calls of `only` throw until a group of a pack has been assigned to it.
  ParameterGroup() = default;
  /// Makes a group of the tensors of a pack that the function `keep` selects by their names.
  /// @param like  a pack with the tensors from which the group is selected
  /// @param keep  a function of the name of a tensor; returns true if the tensor belongs to the group
  /// @param skip  if true, the empty tensors that replace other tensors in a call of `only` are marked by Tensor.skip,
  ///         and so are the moments that an optimizer makes for them
  template <class Keep>
  ParameterGroup(const Pack& like, const Keep& keep, bool skip = false) : made_(true), skip_(skip) {
    const auto choose = [&](const Name& name, const AnyTensor* t) {
      const bool belongs = keep(name);
      belongs_.push_back(belongs);
      if (belongs) count_ += t->size;
    };
    detail_::pack::visit_any(choose, Name{}, false, like);
  }

  /// Makes this group select the tensors that the group `other` selects.
  void lie_as(const ParameterGroup& other) {
    made_ = other.made_;
    skip_ = other.skip_;
    belongs_ = other.belongs_;
    count_ = other.count_;
    aside_.clear();
  }

  /// Calls f(packs...) while all tensors outside the group are empty. Each pack must have the structure of the pack
  /// from which the group was made.
  /// @throws ArgumentError if the group was not made from a pack, or if the number of tensors of a pack differs from
  ///         the number of tensors of the pack from which the group was made
  template <class F, class... Packs>
  auto only(F&& f, Packs&... packs) {
    GATEFOLD_REQUIRE((std::is_same_v<Packs, Pack> && ...),
                     "gatefold: a ParameterGroup takes only packs of the type from which it was made");
    expect(made_, "ParameterGroup.only", "group",
           "a group made from a pack (for the state of an optimizer, begin() makes it)", "an empty group");
    const Pack* all[]{&packs...};
    for (const Pack* pack : all) {
      const std::size_t tensors = count_tensors(*pack);
      expect(tensors == belongs_.size(), "ParameterGroup.only", "packs", Joined{belongs_.size(), " tensors"}, tensors);
    }
    while (aside_.size() < sizeof...(packs)) aside_.push_back(hollow(*all[0], skip_));
    std::size_t next = 0;
    const Exchange exchanges[]{{belongs_, packs, aside_[next++]}...};
    return f(packs...);
  }
  /// Returns a copy of the pack in which tensors outside the group are empty. Pass this copy to `begin` of an
  /// optimizer.
  /// @cost   memory of the group
  template <class C>
  Pack copy(C& ctx, const Pack& pack) const {
    const auto here = ctx.here();
    Pack part;
    std::size_t i = 0;
    detail_::pack::structure_like(part, pack, detail_::parameter_group::CopyChosen<C>{ctx, belongs_, i});
    return part;
  }
  /// Returns the number of values in the tensors of the group.
  Index count() const { return count_; }
  /// Returns whether the group has no tensors.
  bool empty() const { return std::find(belongs_.begin(), belongs_.end(), true) == belongs_.end(); }

 private:
  /// A scope guard: its constructor swaps the tensors outside the group with empty tensors, and its destructor swaps
  /// them back.
  struct Exchange {
    const std::vector<bool>& belongs;
    Pack &pack, &aside;

    Exchange(const std::vector<bool>& b, Pack& p, Pack& a) : belongs(b), pack(p), aside(a) {
      // Gives `aside` the structure of `pack` again, because the placement of experts can change between two calls.
      detail_::pack::structure_like(aside, pack, detail_::parameter_group::LeaveEmpty{});
      swap();
    }
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;
    ~Exchange() { swap(); }
    void swap() const {
      std::size_t i = 0;
      for_each_tensor(detail_::parameter_group::SwapOthers{belongs, i}, pack, aside);
    }
  };
  /// Returns a pack with the structure of `like`, in which every tensor is empty. If `skip` is true, the tensors are
  /// marked as skipped (Tensor.skip).
  static Pack hollow(const Pack& like, bool skip) {
    Pack empty;
    detail_::pack::structure_like(empty, like, detail_::parameter_group::LeaveEmpty{skip});
    return empty;
  }

  bool made_ = false, skip_ = false;
  std::vector<bool> belongs_;  // true for tensors of the group; in the order of for_each_tensor
  std::vector<Pack> aside_;    // packs of empty tensors, one for each pack in a call of `only`
  Index count_ = 0;
};
template <class P, class K>
ParameterGroup(P, K) -> ParameterGroup<P>;
template <class P, class K>
ParameterGroup(P, K, bool) -> ParameterGroup<P>;

}  // namespace gatefold
