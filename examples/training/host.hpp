#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

namespace training {

/// The values of a view on the host.
template <class C, class V>
auto to_host(C& ctx, const V& view) {
  std::vector<std::remove_cvref_t<decltype(*view.data())>> values(static_cast<std::size_t>(view.size()));
  C::Backend::to_host(ctx, view.size(), view.data(), values.data());
  return values;
}

}  // namespace training
