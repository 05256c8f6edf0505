#pragma once

#include "gatefold/core/types.hpp"

/// Forward declarations of types from other folders. hooks.hpp needs these declarations, because optional members of
/// policies (gates, experts, …) take or return these types.
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

/// True for a functor that is called once for each row n, as f(lanes, n). `lanes` are the threads that compute a row
/// together. Optional members of policies return functors of the three concepts OfRows, OfRowsInTwo and OfElements.
template <class F>
concept OfRows = requires(const F f, const OneLane& lanes, Index n) {
  f(lanes, n);
};
/// True for a functor that is called once for each row (OfRows), and that can also do its work in two calls: `choose`
/// chooses the experts of the row, `weigh` computes their weights.
template <class F>
concept OfRowsInTwo = OfRows<F> && requires(const F f, const OneLane& lanes, Index n) {
  f.choose(lanes, n);
  f.weigh(lanes, n);
};
/// True for a functor that is called once for each element i, as f(i) or as f(at, i). `at` loads and stores one
/// element, or several with SIMD.
template <class F, class T>
concept OfElements = requires(const F f, const OneElement<T>& at, Index i) {
  requires requires { f(i); } || requires {
    f(at, i);
  };
};

}  // namespace detail_::policy

}  // namespace gatefold
