#pragma once

#include <type_traits>

#include "gatefold/tensor/pack.hpp"

/// Copies between a host backend and the backend of a context, for example a GPU. Values move between them only by
/// these explicit copies: the type of a view names its backend, so that host memory cannot be passed to a device by
/// accident.
namespace gatefold {

/// The backend type of views of plain host memory. Use it in source files that do not include a host backend:
/// `HostView<const float, 2>(data, rows, columns)`.
struct Host {
  static constexpr bool is_host = true;
};
template <class T, int Rank>
using HostView = View<T, Rank, Host>;

/// Copies the elements of the view `from` to the view `to`. One of them is in memory of the context's backend, the
/// other in host memory.
/// @throws ArgumentError if the shapes differ; nothing is written then
/// @cost   one copy, finished on return
template <class C, class T, int Rank, class From, class To>
void transfer(C& ctx, View<const T, Rank, From> from, View<T, Rank, To> to) {
  using B = typename C::Backend;
  GATEFOLD_REQUIRE((std::is_same_v<B, To> && From::is_host) || (std::is_same_v<B, From> && To::is_host),
                   "gatefold: transfer copies between a host backend and the backend of the context");
  for (int d = 0; d < Rank; ++d)
    expect(to.extent(d) == from.extent(d), "transfer", Joined{"to.extent(", d, ")"}, from.extent(d), to.extent(d));
  if constexpr (std::is_same_v<B, To>) {
    B::from_host(ctx, from.size(), from.data(), to.data());
  } else {
    B::to_host(ctx, from.size(), from.data(), to.data());
  }
}

namespace detail_::pack {

template <class C>
struct Transfer {
  C& ctx;
  void operator()(const Name&, const auto& a, auto& b) const { transfer(ctx, a.view(), b.view()); }
};

}  // namespace detail_::pack

/// Copies every tensor of a pack (a struct of named tensors, for example the parameters of a model), or one tensor,
/// between the host and a device. `to` gets the shapes of `from`.
/// @cost one copy for each tensor, finished on return
template <class C, class P, class Q>
void transfer(C& ctx, const P& from, Q& to) {
  const auto here = ctx.here();
  shape_like(to, from);
  for_each_tensor(detail_::pack::Transfer<C>{ctx}, from, to);
}

}  // namespace gatefold
