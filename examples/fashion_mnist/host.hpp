#pragma once

#include <gatefold/policies.hpp>

#include "../training/host.hpp"

namespace fashion {

using training::to_host;

/// A batch of images and labels in the memory of backend B.
template <class B>
struct Batch {
  gatefold::Tensor<float, 2, B> images;  // [N, pixels]
  gatefold::Tensor<gatefold::Index, 1, B> labels;

  void read(typename B::Context& ctx, gatefold::Index count, gatefold::Index pixels, const float* from,
            const gatefold::Index* classes) {
    training::from_host(ctx, from, images, count, pixels);
    training::from_host(ctx, classes, labels, count);
  }
};

}  // namespace fashion
