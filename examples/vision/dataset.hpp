#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <gatefold/core/error.hpp>
#include <gatefold/core/philox.hpp>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "../fashion_mnist/dataset.hpp"
#include "model.hpp"

namespace images {

using fashion::kClassNames;

/// Images with pixels between 0 and 1, and their labels.
struct Set {
  Pixels pixels{};              // [count · 784]
  std::vector<Index> labels{};  // [count], 0 … 9

  Index count() const { return std::ssize(labels); }
  ReadPixels rows(Index first, Index count) const {
    return {pixels.data() + first * kPixels, static_cast<std::size_t>(count * kPixels)};
  }
  Labels labels_of(Index first, Index count) const { return {labels.data() + first, static_cast<std::size_t>(count)}; }
};
inline Set set_of(const fashion::Half& half, Index first, Index count) {
  Set set{Pixels(static_cast<std::size_t>(count * kPixels)),
          {half.labels.begin() + first, half.labels.begin() + first + count}};
  const auto pixels = half.images.pixels.begin() + first * kPixels;
  std::transform(pixels, pixels + count * kPixels, set.pixels.begin(),
                 [](std::uint8_t pixel) { return static_cast<float>(pixel) / 255; });
  return set;
}

/// Fashion-MNIST in three disjoint parts. The validation images are the last images of the training set.
struct Images {
  Set train, valid, test;

  /// Returns a hash of all pixels and labels. A run continues only with the same hash.
  std::uint64_t hash() const {
    std::uint64_t h = 0;
    for (const Set* set : {&train, &valid, &test})
      for (Index n = 0; n < set->count(); ++n) {
        double sum = 0, place = 0;
        for (const float pixel : set->rows(n, 1)) sum += static_cast<double>(pixel) * ++place;
        h = gatefold::mix64(h ^ static_cast<std::uint64_t>(sum * 4096) ^
                            static_cast<std::uint64_t>(set->labels[static_cast<std::size_t>(n)]));
      }
    return h;
  }
};
inline Images read_images(const Options& o) {
  const fashion::Half train = fashion::read_half(o.data, "train"), test = fashion::read_half(o.data, "t10k");
  const Index most = train.images.count - o.batch;
  gatefold::expect(most >= 0, "options", "batch",
                   gatefold::Joined{"at most ", train.images.count, ", the number of training images"}, o.batch);
  gatefold::expect(
      o.valid_images <= most, "options", "valid-images",
      gatefold::Joined{"at most ", most, ", so that a batch remains of the ", train.images.count, " training images"},
      o.valid_images);
  gatefold::expect(o.test_images <= test.images.count, "options", "test-images",
                   gatefold::Joined{"at most ", test.images.count, ", the number of test images"}, o.test_images);
  const Index left = train.images.count - o.valid_images, used = o.train_images > 0 ? o.train_images : left;
  gatefold::expect(o.batch <= used && used <= left, "options", "train-images",
                   gatefold::Joined{"batch = ", o.batch, " to ", left, ", the number that valid-images leaves"}, used);
  return {set_of(train, 0, used), set_of(train, left, o.valid_images), set_of(test, 0, test.images.count)};
}

/// The order of the images in each epoch. It depends only on the seed and the number of the epoch.
class Order {
 public:
  Order(Index count, gatefold::Seed seed) : items_(static_cast<std::size_t>(count)), seed_(seed) {}

  /// Copies batch number `step` of the run, counted over all epochs, into x and labels. The images left over at the end
  /// of an epoch are skipped.
  void batch(const Set& set, Index step, Pixels& x, std::vector<Index>& labels) {
    const Index size = std::ssize(labels), batches = set.count() / size;
    begin(step / batches);
    for (Index n = 0; n < size; ++n) {
      const Index item = items_[static_cast<std::size_t>(step % batches * size + n)];
      std::copy_n(set.pixels.begin() + item * kPixels, kPixels, x.begin() + n * kPixels);
      labels[static_cast<std::size_t>(n)] = set.labels[static_cast<std::size_t>(item)];
    }
  }

 private:
  void begin(Index epoch) {
    if (epoch == epoch_) return;
    epoch_ = epoch;
    std::iota(items_.begin(), items_.end(), Index(0));
    for (std::size_t i = items_.size(); i > 1; --i) {
      const double u = gatefold::uniform<double>(seed_, static_cast<std::uint64_t>(epoch), i);
      std::swap(items_[i - 1], items_[static_cast<std::size_t>(u * static_cast<double>(i))]);
    }
  }

  std::vector<Index> items_;
  gatefold::Seed seed_;
  Index epoch_ = -1;
};

}  // namespace images
