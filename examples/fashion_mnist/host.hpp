#pragma once

#include <cstddef>
#include <gatefold/policies.hpp>
#include <type_traits>
#include <vector>

namespace fashion {

/// The values of a view on the host.
template <class C, class V>
auto to_host(C& ctx, const V& view) {
  std::vector<std::remove_cvref_t<decltype(*view.data())>> values(static_cast<std::size_t>(view.size()));
  C::Backend::to_host(ctx, view.size(), view.data(), values.data());
  return values;
}

/// Images and labels on a backend.
template <class B>
struct Batch {
  gatefold::Tensor<float, 2, B> images;  // [N, pixels]
  gatefold::Tensor<gatefold::Index, 1, B> labels;

  void read(typename B::Context& ctx, gatefold::Index count, gatefold::Index pixels, const float* from,
            const gatefold::Index* classes) {
    images.resize(count, pixels);
    labels.resize(count);
    B::from_host(ctx, images.size(), from, images.data());
    B::from_host(ctx, count, classes, labels.data());
  }
};

}  // namespace fashion
