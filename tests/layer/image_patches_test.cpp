#include "gatefold/layer/image_patches.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("ImagePatches (1): copies every value, any image shape and channels") {
  for (const ImagePatches& patches :
       {ImagePatches{.rows = 4, .columns = 6, .channels = 3, .patch = 2, .mean = 0.25, .deviation = 0.5},
        ImagePatches{.rows = 8, .columns = 4, .channels = 5, .patch = 4, .mean = 0.25, .deviation = 0.5}}) {
    const Index size = patches.patch, channels = patches.channels, across = patches.columns / size;
    CHECK(patches.patches() == patches.rows / size * across);
    CHECK(patches.patch_dim() == size * size * channels);
    Cpu::Context ctx(1);
    auto p = pass<double>(ctx, patches, 2);
    p.forward();
    for (Index n = 0; n < 2; ++n)
      for (Index a = 0; a < patches.rows / size; ++a)
        for (Index b = 0; b < across; ++b)
          for (Index i = 0; i < size; ++i)
            for (Index j = 0; j < size; ++j)
              for (Index c = 0; c < channels; ++c) {
                const double pixel = p.x(n, ((size * a + i) * patches.columns + size * b + j) * channels + c);
                CHECK(p.y(n, (a * across + b) * patches.patch_dim() + (i * size + j) * channels + c) ==
                      doctest::Approx((pixel - 0.25) / 0.5).epsilon(1e-15));
              }
  }
}

TEST_CASE("ImagePatches: one patch or one-pixel patches copy x unchanged") {
  Cpu::Context ctx(1);
  for (const Index patch : {1, 4}) {
    auto p = pass<float>(ctx, ImagePatches{.rows = 4, .columns = 4, .patch = patch}, 3);
    p.forward();
    CHECK(same_bits(values(p.x), values(p.y)));
  }
}

TEST_CASE("ImagePatches: gradients and conformance") {
  const auto report = check::conformance<Cpu, double>(
      ImagePatches{.rows = 8, .columns = 4, .channels = 5, .patch = 4, .mean = 0.1, .deviation = 0.3},
      {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("ImagePatches: runs the update rule's step on its output") {
  Cpu::Context ctx(1);
  const ImagePatches branch{.rows = 4, .columns = 4, .patch = 2};
  auto alone = pass<double>(ctx, branch, 3);
  auto stream = pass<double>(ctx, Residual{update::Plain{}, branch}, 3);
  alone.forward();
  stream.forward();
  for (Index i = 0; i < alone.y.size(); ++i) CHECK(stream.y.data()[i] == alone.y.data()[i] + stream.x.data()[i]);
}

TEST_CASE("ImagePatches: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  const auto says = [&](const ImagePatches& patches) { return message_of([&] { patches.expect_options(); }); };
  CHECK(says({.patch = 0}) == "ImagePatches: patch: expected at least 1, got 0");
  CHECK(says({.channels = 0}) == "ImagePatches: channels: expected at least 1, got 0");
  CHECK(says({.rows = 6}) == "ImagePatches: rows: expected a multiple of patch = 4, got 6");
  CHECK(says({.columns = 0}) == "ImagePatches: columns: expected a multiple of patch = 4, got 0");
  CHECK(says({.mean = quiet_nan}) == "ImagePatches: mean: expected a finite number, got nan");
  CHECK(says({.deviation = 0}) == "ImagePatches: deviation: expected more than 0, got 0");
  auto p = pass<float>(ctx, ImagePatches{.rows = 4, .columns = 4, .patch = 2}, 3);
  p.x.resize(3, 15);
  CHECK(message_of([&] { p.forward(); }) == "ImagePatches.forward: x: expected [?, 16], got [3, 15]");
  CHECK(p.untouched());
}
