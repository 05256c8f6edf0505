#pragma once

#include "gatefold/core/types.hpp"

/// Forward declarations of types that other folders define. The optional members in hooks.hpp take or return these
/// types.
namespace gatefold {

struct Noise;
template <class T, class B>
struct Candidates;
template <class T, class B>
struct NoisyRank;
template <class T, class B>
struct SparsePlan;
template <class T, class B>
struct SlotWeights;
template <class B>
struct Groups;
struct OneLane;
template <class T>
struct OneElement;
namespace detail_::backend {
struct AnyFunctor;
}
namespace functor {
template <class T>
struct NoStep;
}
namespace detail_::policy {
template <class T, class B>
struct ProbeCall;

/// Concepts for functors that optional members return. OfRows is called per row, f(lanes, n). OfRowsInTwo also has the
/// two halves of this call as functions `choose` and `weigh`. OfElements is called per element, f(i) or f(at, i).
template <class F>
concept OfRows = requires(const F f, const OneLane& lanes, Index n) {
  f(lanes, n);
};
template <class F>
concept OfRowsInTwo = OfRows<F> && requires(const F f, const OneLane& lanes, Index n) {
  f.choose(lanes, n);
  f.weigh(lanes, n);
};
template <class F, class T>
concept OfElements = requires(const F f, const OneElement<T>& at, Index i) {
  requires requires { f(i); } || requires {
    f(at, i);
  };
};

}  // namespace detail_::policy

}  // namespace gatefold
