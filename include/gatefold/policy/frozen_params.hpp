#pragma once

#include <type_traits>

#include "gatefold/policy/policy.hpp"

namespace gatefold {

namespace detail_::lookup {

template <class B>
auto packed_weights() {
  if constexpr (requires { typename B::PackedWeights; }) {
    return std::type_identity<typename B::PackedWeights>{};
  } else {
    return std::type_identity<Nothing<float, B>>{};
  }
}

}  // namespace detail_::lookup

/// Parameters for inference only, made by `freeze`. Besides the parameters, it has packed copies of the expert weights
/// [E, rows, columns], in the order in which the matrix products of the backend read them. You can pass it to `infer`
/// instead of Params.
template <class P, class B>
struct FrozenParams {
  P params;  // do not change these: the packed copies would keep the old values
  // Packed copies of the tensors [experts, rows, columns] of params. In a FrozenDecoder, also of the output layer.
  typename decltype(detail_::lookup::packed_weights<B>())::type packed;
};

/// Returns the parameters of a model from Params or FrozenParams.
template <class P>
const P& model_params(const P& params) {
  return params;
}
template <class P, class B>
const P& model_params(const FrozenParams<P, B>& frozen) {
  return frozen.params;
}

namespace detail_::lookup {

/// Calls run(). If the parameters are frozen, matrix products of the context read their packed weights during the call.
template <class C, class P, class Run>
void with_packed(C&, const P&, const Run& run) {
  run();
}
template <class C, class P, class B, class Run>
void with_packed(C& ctx, const FrozenParams<P, B>& frozen, const Run& run) {
  if constexpr (requires { ctx.use(frozen.packed); }) {
    const auto scope = ctx.use(frozen.packed);
    run();
  } else {
    run();
  }
}

}  // namespace detail_::lookup

}  // namespace gatefold
