#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), CorruptPixels);
GATEFOLD_FUNCTORS((class From, class To), BlurAlong);

enum class Corruption { gaussian_noise, blur, contrast, brightness, pixelate, occlusion };

/// The strength of one kind of image corruption at each of the severities 1 to 5.
struct Severities {
  Corruption kind;
  const char* name;
  std::array<double, 5> level;
};

/// The strengths of six image corruptions, for images of 28 · 28 pixels with values between 0 and 1. Noise and contrast
/// have the levels of ImageNet-C. The levels of brightness are half as large as in ImageNet-C, because most pixels of a
/// garment (Fashion-MNIST) are bright and would be clipped. The levels of ImageNet-C for blur and pixelation are made
/// for images of 224 · 224 pixels and would destroy images of 28 · 28. The levels for blur are therefore weaker here.
/// The levels for pixelation are weaker for the severities 1 to 4. ImageNet-C has no occlusion; its levels are a choice
/// of this library.
inline constexpr std::array<Severities, 6> kCorruptions{{
    {Corruption::gaussian_noise, "gaussian_noise", {0.08, 0.12, 0.18, 0.26, 0.38}},  // standard deviation of the noise
    {Corruption::blur, "blur", {0.5, 0.75, 1.0, 1.5, 2.0}},                          // standard deviation, in pixels
    {Corruption::contrast, "contrast", {0.4, 0.3, 0.2, 0.1, 0.05}},                  // contrast factor
    {Corruption::brightness, "brightness", {0.05, 0.1, 0.15, 0.2, 0.25}},            // added value
    {Corruption::pixelate, "pixelate", {0.75, 0.6, 0.5, 0.35, 0.25}},                // cells per side / pixels per side
    {Corruption::occlusion, "occlusion", {0.2, 0.3, 0.4, 0.5, 0.6}},  // side of the rectangle / side of the image
}};

/// Makes images harder to recognise, with six kinds of corruption and five severities. x is a pixel; σ or c is the
/// strength of the corruption.
///
///     gaussian_noise  x + σ ε,  ε ~ N(0, 1)          brightness  x + c                                    (1)
///     contrast        m + c (x − m),  m = mean of the image                                               (2)
///     blur            x * N(0, σ²), normalised over its taps; edge pixels are repeated beyond the image    (3)
///     pixelate        the mean of the cell that a pixel is in, c · side cells per side                   (4)
///     occlusion       0 in a rectangle of c times the sides, anywhere inside the image                    (5)
///
/// Results are clipped to [0, 1], except those of blur: its weights sum to 1, so its results leave the range at most by
/// rounding. The values of σ and c for each severity are in `kCorruptions`.
///
/// Source: Hendrycks and Dietterich 2019, arXiv:1903.12261 (ImageNet-C); occlusion: DeVries and Taylor 2017,
/// arXiv:1708.04552 (cutout).
/// @param severity  1 to 5; 0 leaves images as they are
/// @throws ArgumentError unless severity is 0 to 5, and rows and columns are at least 1
/// @order  the bits of an image depend only on the options, the image, its number in the batch, and the seed and step
///         of the random numbers
struct Corrupt {
  Corruption kind = Corruption::gaussian_noise;
  Index severity = 3, rows = 28, columns = 28;

  const char* name() const { return of_kind().name; }

  void validate() const {
    const auto last = static_cast<Index>(of_kind().level.size());
    expect(0 <= severity && severity <= last, "Corrupt", "severity", Joined{"0 to ", last}, severity);
    expect_sizes("Corrupt", {{"rows", rows}, {"columns", columns}});
  }

  /// Writes the corrupted images.
  /// @param x [N, rows · columns] in   between 0 and 1
  /// @param y [N, rows · columns] out  must not overlap x
  /// @param at  the seed and the step of the random numbers
  /// @throws ArgumentError unless x and y have these shapes, or if y overlaps x
  /// @cost  O(N · rows · columns); blur: 34 multiply-adds per pixel
  template <class T, class B>
  void operator()(typename B::Context& ctx, View<T, 2, B> x, Random at, Out<std::remove_const_t<T>, 2, B> y) const {
    using U = std::remove_const_t<T>;
    validate();
    expect_shape("Corrupt", "x", x, {any_extent, rows * columns});
    expect_shape("Corrupt", "y", y, {x.extent(0), rows * columns});
    expect_apart("Corrupt", "y", y, "x", x);
    if (severity == 0) return copy(ctx, x, y);
    const double level = of_kind().level[static_cast<std::size_t>(severity - 1)];
    if (kind == Corruption::blur) return blur<U, B>(ctx, level, x, y);
    B::for_rows(ctx, x.extent(0), functor::CorruptPixels<U, B>{kind, level, rows, columns, at, x, y});
  }

 private:
  const Severities& of_kind() const { return kCorruptions[static_cast<std::size_t>(kind)]; }

  template <class T, class B>
  void blur(typename B::Context& ctx, double deviation, View<const T, 2, B> x, View<T, 2, B> y) const {
    auto mark = ctx.mark();
    auto between = ctx.template scratch<double>(x.extent(0), rows * columns);
    functor::BlurAlong<T, double> down{{}, rows, columns, rows * columns, x.data(), between.data()};
    functor::BlurAlong<double, T> across{{}, columns, 1, rows * columns, between.data(), y.data()};
    double total = 0;
    for (Index d = 0; d <= down.kRadius; ++d) {
      const double z = static_cast<double>(d) / deviation;
      down.weight[d] = std::exp(-z * z / 2);
      total += (d > 0 ? 2 : 1) * down.weight[d];
    }
    for (Index d = 0; d <= down.kRadius; ++d) across.weight[d] = down.weight[d] /= total;
    B::for_each(ctx, x.size(), down);
    B::for_each(ctx, x.size(), across);
  }
};

namespace metric {

/// The result of `corruption_error`: the error of a classifier for each kind of image corruption (CE), relative to a
/// baseline, and the mean of these errors (mCE).
struct CorruptionError {
  std::vector<double> of{};  // [C] CE of each corruption
  double mean = 0;
};

/// Returns the mean corruption error of a classifier, relative to a baseline classifier. error[c,s] and baseline[c,s]
/// are their shares of misclassified images under corruption c of severity s.
///
///     CE_c = Σ_s error[c,s] / Σ_s baseline[c,s],   mCE = (1/C) Σ_c CE_c                                    (1)
///
/// Source: Hendrycks and Dietterich 2019, arXiv:1903.12261, whose baseline is AlexNet; papers 001 and 002. The number
/// has a meaning only together with the name of its baseline, so report both.
/// @param error      [C, S] in  shares of images misclassified under corruption c of severity s
/// @param baseline   [C, S] in  the same shares of the baseline
/// @throws ArgumentError unless C >= 1, S >= 1, both arrays have C·S numbers, and the baseline makes errors under each
///         corruption
inline CorruptionError corruption_error(std::span<const double> error, std::span<const double> baseline,
                                        Index severities = 5) {
  const auto size = static_cast<Index>(error.size());
  expect(severities >= 1, "corruption_error", "severities", "at least 1", severities);
  expect(size >= severities && size % severities == 0, "corruption_error", "error",
         Joined{"a multiple of severities = ", severities}, size);
  expect(baseline.size() == error.size(), "corruption_error", "baseline",
         Joined{size, " numbers, as many as error has"}, baseline.size());
  CorruptionError result;
  const double corruptions = static_cast<double>(size / severities);
  for (std::size_t i = 0; i < error.size();) {
    double sum = 0, of_baseline = 0;
    for (Index s = 0; s < severities; ++s, ++i) {
      sum += error[i];
      of_baseline += baseline[i];
    }
    expect(of_baseline > 0, "corruption_error", "baseline", "an error above 0 for each corruption", of_baseline);
    result.of.push_back(sum / of_baseline);
    result.mean += result.of.back() / corruptions;
  }
  return result;
}

}  // namespace metric

namespace functor {

/// Writes image n of a batch with one corruption. Every corruption except blur is computed here. `level` is the
/// strength of the corruption, an entry of the table kCorruptions.
template <class T, class B>
struct CorruptPixels {
  Corruption kind;
  double level;
  Index rows, columns;
  Random random;
  View<const T, 2, B> x;  // [N, rows · columns]
  View<T, 2, B> y;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index pixels = x.extent(1);
    double mean = 0;
    if (kind == Corruption::contrast) {
      for (Index p = lanes.lane; p < pixels; p += lanes.size) mean += static_cast<double>(x(n, p));
      mean = lanes.sum(mean) / static_cast<double>(pixels);
    }
    for (Index p = lanes.lane; p < pixels; p += lanes.size) {
      const double v = corrupted(n, p, mean);
      y(n, p) = static_cast<T>(v < 0 ? 0 : v > 1 ? 1 : v);
    }
  }

 private:
  GATEFOLD_HD double corrupted(Index n, Index p, double mean) const {
    const double v = static_cast<double>(x(n, p));
    switch (kind) {
      case Corruption::gaussian_noise:
        return v + level * normal<double>(random.seed, random.step, number(n, p));
      case Corruption::contrast:
        return mean + level * (v - mean);
      case Corruption::brightness:
        return v + level;
      case Corruption::pixelate:
        return mean_of_cell(n, p / columns, p % columns);
      case Corruption::occlusion:
        return hidden(n, p / columns, p % columns) ? 0 : v;
      case Corruption::blur:
        break;
    }
    return v;
  }
  GATEFOLD_HD std::uint64_t number(Index n, Index i) const { return static_cast<std::uint64_t>(n * x.extent(1) + i); }
  /// Returns `level` · `side`, rounded, but at least 1. For occlusion, this is a side of the rectangle in pixels. For
  /// pixelation, it is the number of cells along a side of the image.
  GATEFOLD_HD Index share(Index side) const {
    const auto some = static_cast<Index>(level * static_cast<double>(side) + 0.5);
    return some < 1 ? 1 : some;
  }
  /// Returns the first pixel of a cell of the pixelated image, along one side. If s pixels are divided into c cells,
  /// pixel i is in cell ⌊i c / s⌋, and cell j begins at pixel ⌈j s / c⌉.
  GATEFOLD_HD Index first_of_cell(Index cell, Index side) const { return divide_up(cell * side, share(side)); }
  GATEFOLD_HD double mean_of_cell(Index n, Index row, Index column) const {
    const Index i = row * share(rows) / rows, j = column * share(columns) / columns;
    const Index top = first_of_cell(i, rows), bottom = first_of_cell(i + 1, rows);
    const Index left = first_of_cell(j, columns), right = first_of_cell(j + 1, columns);
    double sum = 0;
    for (Index r = top; r < bottom; ++r)
      for (Index c = left; c < right; ++c) sum += static_cast<double>(x(n, r * columns + c));
    return sum / static_cast<double>((bottom - top) * (right - left));
  }
  /// Returns whether a pixel is in the rectangle of image n that occlusion sets to 0. The place of the rectangle is
  /// random.
  GATEFOLD_HD bool hidden(Index n, Index row, Index column) const {
    return within(row, rows, number(n, 0)) && within(column, columns, number(n, 1));
  }
  GATEFOLD_HD bool within(Index at, Index side, std::uint64_t i) const {
    const double places = static_cast<double>(side - share(side) + 1);
    const auto begin = static_cast<Index>(uniform<double>(random.seed, random.step, i) * places);
    return begin <= at && at < begin + share(side);
  }
};

/// Blurs images along one axis: pixel i becomes Σ_d weight[|d|] · (the pixel at distance d from i on this axis). Beyond
/// an edge, the pixel at the edge is repeated.
template <class From, class To>
struct BlurAlong {
  static constexpr Index kRadius = 8;
  double weight[kRadius + 1];
  // `side` is the number of pixels on the blurred axis, `stride` their distance in memory, and `pixels` the number of
  // pixels of an image.
  Index side, stride, pixels;
  const From* from;
  To* to;

  GATEFOLD_HD void operator()(Index i) const {
    const Index at = i % pixels / stride % side;
    double sum = 0;
    for (Index d = -kRadius; d <= kRadius; ++d) {
      const Index other = at + d < 0 ? 0 : at + d >= side ? side - 1 : at + d;
      sum += weight[d < 0 ? -d : d] * static_cast<double>(from[i + (other - at) * stride]);
    }
    to[i] = static_cast<To>(sum);
  }
};

}  // namespace functor

}  // namespace gatefold
