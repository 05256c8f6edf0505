#pragma once

#include <gatefold/policies.hpp>

#include "../training/host.hpp"

namespace fashion {

using training::to_host;

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
