#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"

/// Random changes of training batches (data augmentation): crops, mirror images, weighted sums of two items. The change
/// of item n depends only on the options, n, the number of items, and the seed and step of the random numbers. A run
/// that continues from a checkpoint therefore has the same batches as an uninterrupted run, on any number of threads.
/// The functions run on every backend, and need no zlib.
namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), CropAndFlipImage, MixRows, WriteOneHot);

}  // namespace gatefold

namespace gatefold::data {

/// Pads images with zeros, crops them to their old size at a random place, and mirrors some of them left to right.
///
///     y[n, i, j, c] = x[n, i + a_n − pad, m_n(j) + b_n − pad, c],   0 outside of x                         (1)
///
/// a_n and b_n are uniform in {0, …, 2 pad}. With probability `flip`, m_n(j) = columns − 1 − j, otherwise m_n(j) = j.
/// Source: He et al. 2015, arXiv:1512.03385, sec. 4.2 (CIFAR-10: pad = 4, flip = 1/2).
/// @param x  [N, rows · columns · channels] in   pixels in row-major order, as for ImagePatches
/// @param at  the seed and the step of the random numbers, of which image n takes the numbers 3n, 3n + 1 and 3n + 2
/// @param y  [N, rows · columns · channels] out  must not overlap x
/// @throws ArgumentError unless sizes are at least 1, pad is at least 0 and less than rows and columns, flip is in
///         [0, 1], x and y have these shapes, and y does not overlap x
/// @cost   one read and one write of each value
struct CropAndFlip {
  Index rows = 28, columns = 28, channels = 1, pad = 4;
  double flip = 0.5;

  void validate() const {
    expect_sizes("CropAndFlip", {{"rows", rows}, {"columns", columns}, {"channels", channels}});
    const Index most = std::min(rows, columns) - 1;
    expect(0 <= pad && pad <= most, "CropAndFlip", "pad", Joined{"0 to ", most}, pad);
    expect(0 <= flip && flip <= 1, "CropAndFlip", "flip", "0 <= flip <= 1", flip);
  }
  template <template <class, int, class> class ViewT, class T, class B>
  void operator()(typename B::Context& ctx, const ViewT<T, 2, B>& x, Random at,
                  Out<std::remove_const_t<T>, 2, B> y) const {
    validate();
    expect_shape("CropAndFlip", "x", x, {any_extent, rows * columns * channels});
    expect_shape("CropAndFlip", "y", y, {x.extent(0), x.extent(1)});
    expect_apart("CropAndFlip", "y", y, "x", x);
    B::for_rows(ctx, x.extent(0), functor::CropAndFlipImage<std::remove_const_t<T>, B>{*this, at, x, y});
  }
};

/// Mixes each item of a batch with another item (mixup).
///
///     y[n] = λ_n x[n] + (1 − λ_n) x[j_n],   λ_n ~ Beta(α, α),   j_n uniform in {0, …, N − 1}               (1)
///
/// The targets of a batch must be mixed like its items. Call the function twice with the same random numbers:
///
///     const data::Mixup mixup{.alpha = 0.2};
///     mixup(ctx, x, at, mixed_x);                // [N, D]
///     mixup(ctx, target, at, mixed_target);      // [N, C], for example from one_hot
///
/// Source: Zhang et al. 2018, arXiv:1710.09412, eq. (1). The authors' code draws one λ for each batch. The method that
/// draws the gamma numbers for λ: Marsaglia and Tsang 2000, doi:10.1145/358407.358414.
/// @param alpha  α. If it is small, λ is almost 0 or 1
/// @param x   [N, D] in
/// @param at  the seed and the step of the random numbers. Item n takes the numbers of the seed's fork n
/// @param y   [N, D] out  must not overlap x
/// @throws ArgumentError unless alpha is finite and more than 0, x and y have the same shape, and y does not overlap x
/// @cost   two reads and one write of each value; about 10 random numbers for each item
struct Mixup {
  double alpha = 0.2;

  /// The factor λ of an item in the sum (1), and the number of the other item.
  struct Pair {
    double lambda;
    Index other;
  };
  /// Returns λ_n and j_n of item n in a batch of `items` items.
  GATEFOLD_HD Pair pair(Random at, Index n, Index items) const {
    const Random of_item = at.at(n);
    std::uint64_t i = 0;
    const auto next = [&] { return uniform<double>(of_item.seed, of_item.step, i++); };
    const auto other = static_cast<Index>(next() * static_cast<double>(items));
    // If g ~ Gamma(α + 1) and u ~ U(0, 1], then g u^(1/α) ~ Gamma(α). λ is the first of two such numbers divided by
    // their sum. It is computed from the logarithm of their ratio, because u^(1/α) underflows if α is small.
    const double first = gamma(of_item, i), second = gamma(of_item, i), u = 1 - next(), v = 1 - next();
    return {1 / (1 + std::exp(std::log(second / first) + std::log(v / u) / alpha)), other};
  }

  template <template <class, int, class> class ViewT, class T, class B>
  void operator()(typename B::Context& ctx, const ViewT<T, 2, B>& x, Random at,
                  Out<std::remove_const_t<T>, 2, B> y) const {
    expect_positive("Mixup", "alpha", alpha);
    expect_shape("Mixup", "y", y, {x.extent(0), x.extent(1)});
    expect_apart("Mixup", "y", y, "x", x);
    B::for_rows(ctx, x.extent(0), functor::MixRows<std::remove_const_t<T>, B>{*this, at, x, y});
  }

 private:
  /// Returns a draw from Gamma(α + 1, 1), and advances the number i of the next random number.
  GATEFOLD_HD double gamma(Random at, std::uint64_t& i) const {
    const double d = alpha + 2.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double z = normal<double>(at.seed, at.step, i), u = 1 - uniform<double>(at.seed, at.step, i + 1),
                   root = 1 + c * z, v = root * root * root;
      i += 2;
      if (root > 0 && std::log(u) < z * z / 2 + d * (1 - v + std::log(v))) return d * v;
    }
  }
};

/// Writes class probabilities for labels, for example as target of SoftCrossEntropy or SigmoidCrossEntropy. With label
/// smoothing ε, they are the target distribution of CrossEntropy.
///
///     target[n,c] = 1 − ε + ε/C  if c = label[n],   ε/C  otherwise
///
/// @param label   [N] in     labels in [0, C)
/// @param target  [N, C] out
/// @param label_smoothing  ε in [0, 1]
/// @throws ArgumentError unless each row of `target` has one label in [0, C) (on a device, only debug builds check the
///         range), and label_smoothing is in [0, 1]
template <class T, class C>
void one_hot(C& ctx, In<Index, 1, typename C::Backend> label, Out<T, 2, typename C::Backend> target,
             double label_smoothing = 0) {
  using B = typename C::Backend;
  const Index classes = target.extent(1);
  expect_shape("one_hot", "label", label, {target.extent(0)});
  expect(0 <= label_smoothing && label_smoothing <= 1, "one_hot", "label_smoothing", "0 <= label_smoothing <= 1",
         label_smoothing);
  if constexpr (B::is_host)
    for (Index n = 0; n < label.size(); ++n)
      expect(0 <= label(n) && label(n) < classes, "one_hot", "label", Joined{"labels from 0 to ", classes - 1},
             label(n));
  const double low = label_smoothing / static_cast<double>(classes);
  B::for_rows(
      ctx, target.extent(0),
      functor::WriteOneHot<T, B>{label, static_cast<T>(1 - label_smoothing + low), static_cast<T>(low), target});
}

}  // namespace gatefold::data

namespace gatefold::functor {

/// Writes image n: equation (1) of CropAndFlip.
template <class T, class B>
struct CropAndFlipImage {
  data::CropAndFlip of;
  Random random;
  View<const T, 2, B> x;
  View<T, 2, B> y;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index down = shift(3 * n), right = shift(3 * n + 1);
    const bool mirrored = number(3 * n + 2) < of.flip;
    const T* const from = x.data() + n * x.extent(1);
    T* const to = y.data() + n * x.extent(1);
    for (Index i = 0; i < of.rows; ++i)
      for (Index j = lanes.lane; j < of.columns; j += lanes.size) {
        const Index row = i + down, column = (mirrored ? of.columns - 1 - j : j) + right;
        const bool inside = 0 <= row && row < of.rows && 0 <= column && column < of.columns;
        for (Index c = 0; c < of.channels; ++c)
          to[(i * of.columns + j) * of.channels + c] =
              inside ? from[(row * of.columns + column) * of.channels + c] : T(0);
      }
  }

 private:
  GATEFOLD_HD double number(Index i) const {
    return uniform<double>(random.seed, random.step, static_cast<std::uint64_t>(i));
  }
  /// Returns a whole number that is uniform in {−pad, …, pad}.
  GATEFOLD_HD Index shift(Index i) const {
    return static_cast<Index>(number(i) * static_cast<double>(2 * of.pad + 1)) - of.pad;
  }
};

/// Writes row n of the mixed batch: equation (1) of Mixup.
template <class T, class B>
struct MixRows {
  data::Mixup mixup;
  Random random;
  View<const T, 2, B> x;
  View<T, 2, B> y;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index columns = x.extent(1);
    const auto pair = mixup.pair(random, n, x.extent(0));
    const T share = static_cast<T>(pair.lambda);
    const T *const first = x.data() + n * columns, *const second = x.data() + pair.other * columns;
    T* const to = y.data() + n * columns;
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(to + j, share * at.load(first + j) + (1 - share) * at.load(second + j));
    });
  }
};

/// Writes row n of class probabilities: `high` for its label and `low` for the other classes.
template <class T, class B>
struct WriteOneHot {
  View<const Index, 1, B> label;
  T high, low;
  View<T, 2, B> target;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index l = label(n);
    GATEFOLD_ASSERT(0 <= l && l < target.extent(1), "one_hot: label out of range");
    for (Index c = lanes.lane; c < target.extent(1); c += lanes.size) target(n, c) = c == l ? high : low;
  }
};

}  // namespace gatefold::functor
