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

/// True for a functor that is called per row, f(lanes, n). Optional members of policies return functors of the three
/// concepts OfRows, OfRowsInTwo and OfElements.
template <class F>
concept OfRows = requires(const F f, const OneLane& lanes, Index n) {
  f(lanes, n);
};
/// True for a functor OfRows that also has the two halves of its call as functions `choose` and `weigh`.
template <class F>
concept OfRowsInTwo = OfRows<F> && requires(const F f, const OneLane& lanes, Index n) {
  f.choose(lanes, n);
  f.weigh(lanes, n);
};
/// True for a functor that is called per element, f(i) or f(at, i).
template <class F, class T>
concept OfElements = requires(const F f, const OneElement<T>& at, Index i) {
  requires requires { f(i); } || requires {
    f(at, i);
  };
};

}  // namespace detail_::policy

}  // namespace gatefold
