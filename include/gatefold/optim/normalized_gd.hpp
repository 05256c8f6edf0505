#pragma once

#include <cmath>
#include <string>
#include <utility>

#include "gatefold/optim/optimizer.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), SliceNorm, NormalizedStep);

namespace optim {

/// Gradient descent in which the step of each expert has the fixed length η, the learning rate. W_e are the weights of
/// expert e and G_e their gradient.
///
///     W_e ← W_e − η G_e / ‖G_e‖_F,   skipped if G_e = 0 (the expert got no items)                        (1)
///
/// Source: Chen et al. 2022, arXiv:2208.02813, eq. (3.5); papers 000 (stage I) and 003 (algorithm 1).
///
/// ‖G_e‖_F is the norm over slice e of all tensors together. The first dimension of each tensor is the expert e. With
/// per_expert = false, it is the norm over all elements of all tensors. Squares are summed in double. If T is double,
/// squares of gradients below about 1e-160 underflow, and squares of gradients above about 1e154 overflow. Steps then
/// have a wrong length or are skipped.
/// @param sum_of_norms  if true, G_e is divided by the sum of the norms of its tensors, as in the code of Chen et al.
///         (uclaml/MoE)
/// @throws ArgumentError if lr is negative or not finite, if a gradient does not have the shape of its parameter, or if
///         per_expert is true and two non-empty tensors have different first extents. Nothing has been written then
/// @cost one pass over the gradients for the norms and one pass for the step; both include all rows of an embedding
struct NormalizedGd {
  using IsOptimizer = void;
  double lr = 1e-3;
  bool per_expert = true, sum_of_norms = false;

  static NormalizedGd reference() { return reference({}); }
  static NormalizedGd reference(NormalizedGd options) {
    options.sum_of_norms = true;
    return options;
  }

  template <class Pack>
  using State = StepCount<Pack>;
  /// The norms of the gradients of all experts, in scratch memory of the backend. `total` is the sum of `sums`.
  struct Norms : Measured {
    // [experts] The squared norm of each expert's gradient over all tensors. If the option sum_of_norms is true: the
    // sum of the norms of the expert's gradients, one norm for each tensor.
    const double* sums = nullptr;
    Index experts = 0;
  };

  void validate() const { expect_rate("NormalizedGd", "lr", lr); }
  template <class C, class Pack>
  State<Pack> begin(C&, const Pack&) const {
    validate();
    return {};
  }
  template <class Pack>
  void expect_step(const Pack& params, const Pack& grads, const State<Pack>&) const {
    validate();
    expect_like("NormalizedGd.step", "grads", params, grads);
    first_extent(grads);
  }
  template <class C, class Pack>
  Norms measure(C& ctx, const Pack& grads) const {
    Norms norms = of_experts(ctx, grads);
    double* total = ctx.template scratch<double>(1).data();
    C::Backend::for_each(ctx, 1, functor::Fill<double>{0, total});
    C::Backend::template reduce<double>(ctx, norms.experts, functor::Term<double>{norms.sums}, total);
    norms.total = total;
    return norms;
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    auto mark = ctx.mark();
    step(ctx, params, grads, state, of_experts(ctx, grads));
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state, const Norms& norms) const {
    const auto here = ctx.here();
    validate();
    expect_like("NormalizedGd.step", "grads", params, grads);
    ++state.step;
    for_each_learned(
        [&](const Name&, auto& p, auto& g) {
          using T = std::remove_cvref_t<decltype(*g.data())>;
          if (g.size() == 0) return;
          step_slices<T>(ctx, norms.experts, g.size() / norms.experts, std::as_const(g).data(), norms.sums, p.data());
        },
        params, grads);
  }
  /// Makes a step of fixed length, W ← W − η G / ‖G‖_F, for each of `slices` contiguous slices of a tensor. W are the
  /// `slice` elements of a slice, for example the weights of one expert, and G is their gradient.
  /// @param sums  [slices] ‖G‖_F² of each slice; if sum_of_norms is true, a sum of norms, which replaces ‖G‖_F
  template <class T, class C>
  void step_slices(C& ctx, Index slices, Index slice, const T* g, const double* sums, T* p) const {
    const Index length = functor::NormalizedStep<T>::length, rows = divide_up(slice, length);
    C::Backend::for_rows(ctx, slices * rows, functor::NormalizedStep<T>{T(lr), slice, rows, g, sums, sum_of_norms, p});
  }

 private:
  template <class C, class Pack>
  Norms of_experts(C& ctx, const Pack& grads) const {
    const Index experts = first_extent(grads);
    auto sums = ctx.template scratch<double>(experts);
    fill(ctx, sums, 0);
    for_each_learned(
        [&](const Name&, auto& g) {
          using T = std::remove_cvref_t<decltype(*g.data())>;
          if (g.size() > 0)
            C::Backend::for_rows(ctx, experts,
                                 functor::SliceNorm<T>{g.data(), g.size() / experts, sum_of_norms, sums.data()});
        },
        grads);
    return {{}, sums.data(), experts};
  }
  /// Returns the name of the first learned tensor with elements, for an error message.
  template <class Pack>
  static std::string first_name(const Pack& grads) {
    std::string first;
    for_each_learned(
        [&](const Name& name, auto& g) {
          if (first.empty() && g.size() > 0) first = name.str();
        },
        grads);
    return first;
  }
  template <class Pack>
  Index first_extent(const Pack& grads) const {
    Index experts = per_expert ? 0 : 1;
    for_each_learned(
        [&](const Name& name, auto& g) {
          if (!per_expert || g.size() == 0) return;
          if (experts == 0) experts = g.extent(0);
          if (g.extent(0) != experts)
            expect(false, "NormalizedGd.step", name,
                   Joined{"a first extent (experts) of ", experts, ", as ", first_name(grads), " has"}, g.extent(0));
        },
        grads);
    return experts;
  }
};

}  // namespace optim

namespace functor {

/// Adds to sums[e] the squared norm of the gradient of expert e in one tensor, Σ g² in double. If `root` is true, adds
/// the norm instead.
template <class T>
struct SliceNorm {
  const T* g;
  Index slice;
  bool root;
  double* sums;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index e) const {
    const double squares = inner_product<double>(lanes, slice, g + e * slice, g + e * slice);
    if (lanes.lane == 0) sums[e] += root ? std::sqrt(squares) : squares;
  }
};
/// Makes a step of NormalizedGd, equation (1), for one part of an expert's weights in one tensor. The weights are
/// divided into `rows` parts of at most `length` elements, so that several threads can work on one expert.
template <class T>
struct NormalizedStep {
  static constexpr Index length = 4096;
  T lr;
  Index slice, rows;
  const T* g;
  const double* sums;
  // True if `sums` contains norms of gradients, false if it contains squared norms.
  bool rooted;
  T* p;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index r) const {
    const T norm = static_cast<T>(rooted ? sums[r / rows] : std::sqrt(sums[r / rows]));
    if (norm == 0) return;
    const Index done = r % rows * length, begin = r / rows * slice + done, rest = slice - done;
    each_column<T>(lanes, rest < length ? rest : length, [&](const auto& at, Index i) {
      at.store(p + begin + i, at.load(p + begin + i) - lr * (at.load(g + begin + i) / norm));
    });
  }
};

}  // namespace functor

}  // namespace gatefold
