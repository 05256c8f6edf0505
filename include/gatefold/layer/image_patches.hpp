#pragma once

#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

namespace functor {

/// Computes where patch number r begins in the memory of a batch of images. The lines of a patch have `width` values
/// each, and begin `stride` values apart (the length of a line of the image).
struct PatchPlace {
  // `across` is the number of patches in a row of the image, `patch` the number of lines of a patch, and `width` the
  // number of values in a line of a patch.
  Index across, patch, width;

  GATEFOLD_HD Index stride() const { return across * width; }
  GATEFOLD_HD Index begin(Index r) const { return (r / across * patch * across + r % across) * width; }
};
template <class T, class B>
struct TakePatches;
template <class T, class B>
struct TakePatchesBackward;

}  // namespace functor

/// Cuts images into square patches. Patches, and values in a patch, are in row-major order. Subtracts `mean` and
/// divides by `deviation`, so that pixels with this mean and deviation get mean 0 and deviation 1.
///
///     u[n, (a, b), (i, j, c)] = (x[n, (a p + i, b p + j, c)] − mean) / deviation,   p = patch             (1)
///
/// (a, b) is the patch, (i, j) the pixel in the patch, c the channel. The linear map from patches to tokens is
/// `PerToken{patches, Linear{…}}`. This is a branch; used as a layer, it is NoResidual{ImagePatches{…}}.
/// Source: Dosovitskiy et al. 2021, arXiv:2010.11929, sec. 3.1.
/// @param x [N, rows · columns · channels] in, u [N, P · patch² · channels] out, with P patches per image and as many
///         values as x
/// @throws ArgumentError unless sizes are at least 1, patch divides rows and columns, mean is finite and deviation > 0
/// @cost   one read and one write of each value
struct ImagePatches {
  Index rows = 28, columns = 28, channels = 1, patch = 4;
  double mean = 0, deviation = 1;

  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return rows * columns * channels; }
  Index out_dim() const { return in_dim(); }
  /// Returns P, the number of patches of an image.
  Index patches() const { return patch > 0 ? rows / patch * (columns / patch) : 0; }
  Index patch_dim() const { return patch * patch * channels; }

  void expect_options() const {
    expect_sizes("ImagePatches", {{"channels", channels}, {"patch", patch}});
    expect(rows >= 1 && rows % patch == 0, "ImagePatches", "rows", Joined{"a multiple of patch = ", patch}, rows);
    expect(columns >= 1 && columns % patch == 0, "ImagePatches", "columns", Joined{"a multiple of patch = ", patch},
           columns);
    expect_finite("ImagePatches", "mean", mean);
    expect(deviation > 0, "ImagePatches", "deviation", "more than 0", deviation);
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index, const Nothing<T, B>&) const {
    expect_options();
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>& extra = {}, const Step& step = {}) const {
    validate(p, x.extent(0), extra);
    expect_forward_shapes("ImagePatches.forward", *this, x, "u", u);
    B::for_rows(ctx, x.extent(0) * patches(),
                functor::TakePatches<T, B>{place(), T(mean), T(1 / deviation), x, u.data()});
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>& extra, Nothing<T, B>&) const {
    validate(p, x.extent(0), extra);
    expect_backward_shapes("ImagePatches.backward", *this, x, du, dx);
    B::for_rows(ctx, x.extent(0) * patches(),
                functor::TakePatchesBackward<T, B>{place(), T(1 / deviation), du.data(), dx});
  }

 private:
  functor::PatchPlace place() const { return {columns / patch, patch, patch * channels}; }
};

namespace functor {

/// Copies patch r of the images x to u, and normalises each value: u = (x − mean) · scale.
template <class T, class B>
struct TakePatches {
  PatchPlace place;
  T mean, scale;
  View<const T, 2, B> x;  // [N, rows · columns · channels]
  T* u;                   // [N · P, patch² · channels]

  GATEFOLD_HD void operator()(const auto& lanes, Index r) const {
    for (Index i = 0; i < place.patch; ++i) {
      const T* const from = x.data() + place.begin(r) + i * place.stride();
      T* const to = u + (r * place.patch + i) * place.width;
      each_column<T>(lanes, place.width,
                     [&](const auto& at, Index j) { at.store(to + j, (at.load(from + j) - mean) * scale); });
    }
  }
};
/// Backward pass of TakePatches: adds scale · du of patch r to dx, at the places in the image from which the patch was
/// copied.
template <class T, class B>
struct TakePatchesBackward {
  PatchPlace place;
  T scale;
  const T* du;
  View<T, 2, B> dx;

  GATEFOLD_HD void operator()(const auto& lanes, Index r) const {
    for (Index i = 0; i < place.patch; ++i) {
      T* const to = dx.data() + place.begin(r) + i * place.stride();
      const T* const from = du + (r * place.patch + i) * place.width;
      each_column<T>(lanes, place.width,
                     [&](const auto& at, Index j) { at.store(to + j, at.load(to + j) + scale * at.load(from + j)); });
    }
  }
};

}  // namespace functor

}  // namespace gatefold
