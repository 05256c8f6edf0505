#pragma once

#include <cstddef>
#include <gatefold/policies.hpp>
#include <type_traits>
#include <vector>

/// Helpers for programs that run on any backend.
namespace training {

/// Makes a context of backend B. If the backend computes with threads, the context has this number of threads.
template <class B>
typename B::Context context(int threads) {
  if constexpr (std::is_constructible_v<typename B::Context, int>) {
    return typename B::Context(threads);
  } else {
    return typename B::Context();
  }
}

/// Copies values of the host into the tensor `to`, which gets the given extents. Returns a view that is valid until
/// `to` is overwritten.
template <class C, class T, int Rank, class B, class... I>
gatefold::View<const T, Rank, B> from_host(C& ctx, const T* values, gatefold::Tensor<T, Rank, B>& to, I... extents) {
  to.resize(extents...);
  B::from_host(ctx, to.size(), values, to.data());
  return to;
}

/// Copies the values of a view to the host.
template <class C, class V>
auto to_host(C& ctx, const V& view) {
  std::vector<std::remove_cvref_t<decltype(*view.data())>> values(static_cast<std::size_t>(view.size()));
  C::Backend::to_host(ctx, view.size(), view.data(), values.data());
  return values;
}

}  // namespace training
