#pragma once

#include <cstddef>
#include <gatefold/policies.hpp>
#include <type_traits>
#include <vector>

/// What programs do with any backend.
namespace training {

/// A context with as many threads, where it has threads.
template <class B>
typename B::Context context(int threads) {
  if constexpr (std::is_constructible_v<typename B::Context, int>) {
    return typename B::Context(threads);
  } else {
    return typename B::Context();
  }
}

/// Values of the host where the backend reads them, until `to` gets others.
template <class C, class T, int Rank, class B, class... I>
gatefold::View<const T, Rank, B> from_host(C& ctx, const T* values, gatefold::Tensor<T, Rank, B>& to, I... extents) {
  to.resize(extents...);
  B::from_host(ctx, to.size(), values, to.data());
  return to;
}

/// The values of a view on the host.
template <class C, class V>
auto to_host(C& ctx, const V& view) {
  std::vector<std::remove_cvref_t<decltype(*view.data())>> values(static_cast<std::size_t>(view.size()));
  C::Backend::to_host(ctx, view.size(), view.data(), values.data());
  return values;
}

}  // namespace training
