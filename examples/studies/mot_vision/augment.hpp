#pragma once

#include <cstddef>
#include <gatefold/data/augment.hpp>
#include <gatefold/gatefold.hpp>
#include <vector>

#include "../../fashion_mnist/sizes.hpp"

namespace studies::mot_vision {

using gatefold::Index;

/// Crops and mirrors images of Fashion-MNIST at random, as data::CropAndFlip does. The pixels are in the order of
/// fashion::load, and the padding is black.
class CropAndFlipPatches {
 public:
  CropAndFlipPatches(Index patch, Index pad, double flip)
      : order_(fashion::patch_order(patch)),
        change_{.rows = fashion::kSide, .columns = fashion::kSide, .channels = 1, .pad = pad, .flip = flip} {}

  /// @param x  [N, 784] in and out, normalised pixels
  void operator()(gatefold::Cpu::Context& ctx, gatefold::Tensor<float, 2, gatefold::Cpu>& x,
                  gatefold::Random at) const {
    constexpr float black = -fashion::kMean / fashion::kDeviation;  // CropAndFlip pads with 0
    gatefold::Tensor<float, 2, gatefold::Cpu> rows(x.extent(0), x.extent(1)), changed(x.extent(0), x.extent(1));
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index i = 0; i < x.extent(1); ++i) rows(n, order_[static_cast<std::size_t>(i)]) = x(n, i) - black;
    change_(ctx, rows.view(), at, changed.view());
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index i = 0; i < x.extent(1); ++i) x(n, i) = changed(n, order_[static_cast<std::size_t>(i)]) + black;
  }

 private:
  std::vector<Index> order_;  // [784] row-major position of each value of x
  gatefold::data::CropAndFlip change_;
};

}  // namespace studies::mot_vision
