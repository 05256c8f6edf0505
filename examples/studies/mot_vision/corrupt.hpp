#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <gatefold/core/error.hpp>
#include <gatefold/core/philox.hpp>
#include <gatefold/papers/corruption.hpp>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace studies::mot_vision {

using gatefold::Index;
using gatefold::Seed;

/// Options of the corruption of an image's patches.
struct Corruption {
  double replaced = 0.15;  // share of the patches that come from an image of a different class
  double noisy = 0.1;      // share of the patches that are Gaussian noise
  double deviation = 1;    // deviation of the noise, not in the paper; normalised pixels have deviation 1
};

/// Corrupts patches of every image. round(replaced · patches) patches are replaced by the patch at the same position of
/// an image of a different class, drawn separately for each patch. round(noisy · patches) other patches are replaced by
/// N(0, deviation²).
///
/// Source: paper 000, appendix A.2.
/// @param images  [N, patches · values] uncorrupted whole images
/// @param labels  [N]
/// @return the corrupted images, which depend only on the arguments
/// @throws ArgumentError unless the shares are at least 0 and at most 1 together, and there are two classes
inline std::vector<float> corrupt(std::span<const float> images, std::span<const Index> labels, Index patches,
                                  const Corruption& c, Seed seed) {
  using gatefold::expect;
  expect(c.replaced >= 0 && c.noisy >= 0 && c.replaced + c.noisy <= 1, "corrupt", "shares",
         "numbers of at least 0 with a sum of at most 1", c.replaced + c.noisy);
  const auto count_of = [&](double share) {
    return static_cast<std::size_t>(std::lround(share * static_cast<double>(patches)));
  };
  const std::size_t replaced = count_of(c.replaced),
                    noisy = std::min(count_of(c.noisy), static_cast<std::size_t>(patches) - replaced);
  expect(replaced == 0 || std::adjacent_find(labels.begin(), labels.end(), std::not_equal_to{}) != labels.end(),
         "corrupt", "labels", "at least two classes", 1);

  std::vector<float> out(images.begin(), images.end());
  const std::size_t width = labels.empty() ? 0 : images.size() / labels.size(),
                    size = width / static_cast<std::size_t>(patches);
  std::vector<std::size_t> order(static_cast<std::size_t>(patches));
  for (std::size_t n = 0; n < labels.size(); ++n) {
    std::uint64_t drawn = 0;
    const auto below = [&](std::size_t end) {
      return static_cast<std::size_t>(gatefold::uniform<double>(seed.fork(0), n, drawn++) * static_cast<double>(end));
    };
    std::iota(order.begin(), order.end(), std::size_t(0));
    for (std::size_t i = 0; i < replaced + noisy; ++i) {
      std::swap(order[i], order[i + below(order.size() - i)]);
      const std::size_t at = order[i] * size;
      if (i < replaced) {
        std::size_t other = below(labels.size());
        while (labels[other] == labels[n]) other = below(labels.size());
        std::copy_n(images.data() + other * width + at, size, out.data() + n * width + at);
      } else {
        for (std::size_t v = 0; v < size; ++v)
          out[n * width + at + v] = static_cast<float>(c.deviation) * gatefold::normal<float>(seed.fork(1), n, at + v);
      }
    }
  }
  return out;
}

}  // namespace studies::mot_vision
