#include "gatefold/papers/corruption.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index kSide = 28, kPixels = kSide * kSide;

/// Returns smooth grey pictures: a bright blob on a dark ground, with stripes.
Tensor<float, 2, Cpu> pictures(Index items) {
  Tensor<float, 2, Cpu> x(items, kPixels);
  for (Index n = 0; n < items; ++n)
    for (Index r = 0; r < kSide; ++r)
      for (Index c = 0; c < kSide; ++c) {
        const double dr = static_cast<double>(r - 9 - n % 10), dc = static_cast<double>(c - 10 - n % 8);
        const double stripes = 0.75 + 0.25 * std::sin(static_cast<double>(r * (1 + n % 3) + c));
        x(n, r * kSide + c) = static_cast<float>(0.9 * std::exp(-(dr * dr + dc * dc) / 60) * stripes);
      }
  return x;
}
template <class T>
Tensor<T, 2, Cpu> corrupted(const Corrupt& corrupt, const Tensor<T, 2, Cpu>& x, Random at = {Seed{3}},
                            int threads = 1) {
  Cpu::Context ctx(threads);
  Tensor<T, 2, Cpu> y(x.extent(0), x.extent(1));
  fill(ctx, y.view(), static_cast<T>(quiet_nan));
  corrupt(ctx, x.view(), at, y);
  return y;
}
double distance(const Tensor<float, 2, Cpu>& a, const Tensor<float, 2, Cpu>& b) {
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i)
    sum += std::pow(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]), 2);
  return std::sqrt(sum / static_cast<double>(a.extent(0)));
}
double level(Corruption kind, Index severity) {
  return kCorruptions[static_cast<std::size_t>(kind)].level[static_cast<std::size_t>(severity - 1)];
}
/// Returns an image [1, rows · columns] with the given values in row-major order.
Tensor<double, 2, Cpu> image(Index rows, Index columns, const std::vector<double>& values) {
  Tensor<double, 2, Cpu> x(1, rows * columns);
  std::copy(values.begin(), values.end(), x.data());
  return x;
}

}  // namespace

TEST_CASE("kCorruptions: lists each kind in order, with its name") {
  const char* names[] = {"gaussian_noise", "blur", "contrast", "brightness", "pixelate", "occlusion"};
  REQUIRE(kCorruptions.size() == std::size(names));
  for (std::size_t i = 0; i < kCorruptions.size(); ++i) {
    CHECK(static_cast<std::size_t>(kCorruptions[i].kind) == i);
    CHECK(std::string(Corrupt{.kind = kCorruptions[i].kind}.name()) == names[i]);
  }
}

TEST_CASE("Corrupt: distance grows with severity; severity 0 changes nothing") {
  const auto x = pictures(40);
  for (const Severities& kind : kCorruptions) {
    CAPTURE(kind.name);
    double before = 0;
    CHECK(same_bits(values(corrupted({kind.kind, 0}, x)), values(x)));
    for (Index severity = 1; severity <= 5; ++severity) {
      const auto y = corrupted({kind.kind, severity}, x);
      const auto [low, high] = std::minmax_element(y.data(), y.data() + y.size());
      CHECK(*low >= 0);
      CHECK(*high <= 1);
      CHECK(distance(x, y) > 1.05 * before);
      before = distance(x, y);
    }
  }
}

TEST_CASE("Corrupt: threads and batch change no bit of an image") {
  const auto x = pictures(9);
  Tensor<float, 2, Cpu> some(4, kPixels);
  std::copy_n(x.data(), some.size(), some.data());
  for (const Severities& kind : kCorruptions) {
    const Corrupt corrupt{kind.kind, 4};
    const auto one = corrupted(corrupt, x), many = corrupted(corrupt, x, {Seed{3}}, 8),
               fewer = corrupted(corrupt, some);
    CHECK(same_bits(values(one), values(many)));
    CHECK(std::memcmp(one.data(), fewer.data(), sizeof(float) * static_cast<std::size_t>(fewer.size())) == 0);
  }
}

TEST_CASE("Corrupt: only noise and occlusion depend on the random stream") {
  const auto x = pictures(3);
  for (const Severities& kind : kCorruptions) {
    const bool drawn = kind.kind == Corruption::gaussian_noise || kind.kind == Corruption::occlusion;
    const auto here = values(corrupted({kind.kind, 3}, x));
    CHECK(same_bits(here, values(corrupted({kind.kind, 3}, x, {Seed{4}}))) == !drawn);
    CHECK(same_bits(here, values(corrupted({kind.kind, 3}, x, {Seed{3}, 1}))) == !drawn);
  }
}

TEST_CASE("Corrupt (1): noise has its deviation; brightness adds a constant") {
  Cpu::Context ctx(1);
  const auto grey = constant_tensor<double>(ctx, 0.5, 50, kPixels);
  for (const Index severity : {1, 2}) {  // few values are clipped at 0 or 1
    const double sigma = level(Corruption::gaussian_noise, severity);
    const auto noise = values(corrupted({Corruption::gaussian_noise, severity}, grey));
    double sum = 0, squares = 0;
    for (const double v : noise) sum += v - 0.5, squares += (v - 0.5) * (v - 0.5);
    const double n = static_cast<double>(noise.size());
    CHECK(std::abs(sum / n) < 5 * sigma / std::sqrt(n));
    CHECK(std::abs(squares / n / (sigma * sigma) - 1) < 5 * std::sqrt(2 / n) + 1e-3);
  }
  const auto light = corrupted({Corruption::brightness, 5, 1, 3}, image(1, 3, {0, 0.5, 0.9}));
  CHECK(light(0, 0) == doctest::Approx(0.25).epsilon(1e-13));
  CHECK(light(0, 1) == doctest::Approx(0.75).epsilon(1e-13));
  CHECK(light(0, 2) == 1);
}

TEST_CASE("Corrupt (2): contrast scales the difference from the image's mean") {
  const auto y = corrupted({Corruption::contrast, 3, 2, 2}, image(2, 2, {0, 0.2, 0.6, 1}));  // mean 0.45, times 0.2
  const double expected[] = {0.36, 0.4, 0.48, 0.56};
  for (Index p = 0; p < 4; ++p) CHECK(y(0, p) == doctest::Approx(expected[p]).epsilon(1e-14));
}

TEST_CASE("Corrupt (3): blur equals a normalised sum with repeated edges") {
  const Index rows = 5, columns = 7;
  Cpu::Context ctx(1);
  auto x = uniform_tensor<double>(ctx, Seed{8}, 0.5, 1, rows * columns);
  for (Index p = 0; p < x.size(); ++p) x(0, p) += 0.5;
  for (Index severity = 1; severity <= 5; ++severity) {
    const double sigma = level(Corruption::blur, severity);
    const auto y = corrupted({Corruption::blur, severity, rows, columns}, x);
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < columns; ++c) {
        double sum = 0, total = 0;
        for (Index i = -8; i <= 8; ++i)
          for (Index j = -8; j <= 8; ++j) {
            const double w = std::exp(-static_cast<double>(i * i + j * j) / (2 * sigma * sigma));
            const Index from_r = std::clamp<Index>(r + i, 0, rows - 1),
                        from_c = std::clamp<Index>(c + j, 0, columns - 1);
            sum += w * x(0, from_r * columns + from_c);
            total += w;
          }
        CHECK(y(0, r * columns + c) == doctest::Approx(sum / total).epsilon(1e-12));
      }
    const auto flat = corrupted({Corruption::blur, severity}, constant_tensor<double>(ctx, 0.3, 1, kPixels));
    for (const double v : values(flat)) CHECK(v == doctest::Approx(0.3).epsilon(1e-14));
  }
}

TEST_CASE("Corrupt (4): pixelate sets each cell to its mean") {
  // Each side has half as many cells as pixels, so a cell has two by two pixels. An image of 3 columns has
  // round(1.5) = 2 cells: one of two pixels and one of one pixel.
  const auto y = corrupted({Corruption::pixelate, 3, 2, 4}, image(2, 4, {0, 0.4, 1, 1, 0.4, 0, 0.6, 0.2}));
  for (Index p = 0; p < 8; ++p) CHECK(y(0, p) == doctest::Approx(p % 4 < 2 ? 0.2 : 0.7).epsilon(1e-14));
  const auto odd = corrupted({Corruption::pixelate, 3, 1, 3}, image(1, 3, {0.2, 0.4, 0.9}));
  CHECK(odd(0, 0) == doctest::Approx(0.3).epsilon(1e-14));
  CHECK(odd(0, 1) == doctest::Approx(0.3).epsilon(1e-14));
  CHECK(odd(0, 2) == doctest::Approx(0.9).epsilon(1e-14));
  const auto x = pictures(5);
  for (Index severity = 1; severity <= 5; ++severity) {
    const auto cells = corrupted({Corruption::pixelate, severity}, x);
    for (Index n = 0; n < 5; ++n) {
      double before = 0, after = 0;
      std::vector<float> different(cells.data() + n * kPixels, cells.data() + (n + 1) * kPixels);
      for (Index p = 0; p < kPixels; ++p)
        before += static_cast<double>(x(n, p)), after += static_cast<double>(cells(n, p));
      CHECK(after == doctest::Approx(before).epsilon(1e-7));
      std::sort(different.begin(), different.end());
      different.erase(std::unique(different.begin(), different.end()), different.end());
      CHECK(static_cast<double>(different.size()) <=
            std::pow(std::round(level(Corruption::pixelate, severity) * kSide), 2));
    }
  }
}

TEST_CASE("Corrupt (5): occlusion blackens one square, anywhere in the image") {
  Cpu::Context ctx(1);
  const Index items = 2000;
  const auto white = constant_tensor<float>(ctx, 1, items, kPixels);
  for (const Index severity : {1, 5}) {
    const auto side = static_cast<Index>(std::round(level(Corruption::occlusion, severity) * kSide));
    const auto y = corrupted({Corruption::occlusion, severity}, white);
    std::vector<int> tops(static_cast<std::size_t>(kSide - side + 1)), lefts(tops);
    int wrong = 0;
    for (Index n = 0; n < items; ++n) {
      const float* pixel = &y(n, 0);
      const Index first = std::find(pixel, pixel + kPixels, 0.0f) - pixel, top = first / kSide, left = first % kSide;
      REQUIRE(top + side <= kSide);
      REQUIRE(left + side <= kSide);
      ++tops[static_cast<std::size_t>(top)];
      ++lefts[static_cast<std::size_t>(left)];
      for (Index p = 0; p < kPixels; ++p) {
        const Index r = p / kSide - top, c = p % kSide - left;
        wrong += (pixel[p] == 0) != (0 <= r && r < side && 0 <= c && c < side);
        wrong += pixel[p] != 0 && pixel[p] != 1;
      }
    }
    CHECK(wrong == 0);
    const double expected = static_cast<double>(items) / static_cast<double>(tops.size()),
                 freedom = static_cast<double>(tops.size()) - 1;
    for (const std::vector<int>& counts : {tops, lefts}) {
      double chi_squared = 0;
      for (const int n : counts) chi_squared += (n - expected) * (n - expected) / expected;
      CHECK(chi_squared < freedom + 5 * std::sqrt(2 * freedom));
    }
  }
}

TEST_CASE("Corrupt: no image and one pixel work; wrong options throw") {
  CHECK(corrupted({}, Tensor<float, 2, Cpu>(0, kPixels)).size() == 0);
  for (const Severities& kind : kCorruptions)
    CHECK(std::isfinite(corrupted({kind.kind, 5, 1, 1}, image(1, 1, {0.5}))(0, 0)));
  Cpu::Context ctx(1);
  const auto x = pictures(2);
  Tensor<float, 2, Cpu> y(2, kPixels), other(1, kPixels);
  const auto said = [&](const Corrupt& corrupt, auto& out) {
    return message_of([&] { corrupt(ctx, x.view(), {}, out); });
  };
  CHECK(said({.severity = 6}, y) == "Corrupt: severity: expected 0 to 5, got 6");
  CHECK(said({.severity = -1}, y) == "Corrupt: severity: expected 0 to 5, got -1");
  CHECK(said({.rows = 0}, y) == "Corrupt: rows: expected at least 1, got 0");
  CHECK(said({.columns = 0}, y) == "Corrupt: columns: expected at least 1, got 0");
  CHECK(said({.rows = 27}, y) == "Corrupt: x: expected [?, 756], got [2, 784]");
  CHECK(said({}, other) == "Corrupt: y: expected [2, 784], got [1, 784]");
  CHECK(message_of([&] { Corrupt{}(ctx, y.view(), {}, y); }) ==
        "Corrupt: y: expected memory that does not overlap x, got memory of x");
}

using gatefold::support::message_of;

TEST_CASE("corruption_error (1): equals numbers calculated by hand") {
  // The errors of the two corruptions sum to 1.5 and 0.6, the errors of the baseline to 2.0 and 0.5. The ratio of the
  // total sums would be 2.1 / 2.5 = 0.84.
  const std::vector<double> error{0.1, 0.2, 0.3, 0.4, 0.5, 0.0, 0.1, 0.1, 0.2, 0.2};
  const std::vector<double> baseline{0.2, 0.3, 0.4, 0.5, 0.6, 0.1, 0.1, 0.1, 0.1, 0.1};
  const auto ce = metric::corruption_error(error, baseline);
  REQUIRE(ce.of.size() == 2);
  CHECK(ce.of[0] == doctest::Approx(0.75).epsilon(1e-14));
  CHECK(ce.of[1] == doctest::Approx(1.2).epsilon(1e-14));
  CHECK(ce.mean == doctest::Approx(0.975).epsilon(1e-14));
  CHECK(metric::corruption_error(baseline, baseline).mean == doctest::Approx(1).epsilon(1e-14));
  const auto two = metric::corruption_error(std::vector<double>{1, 2, 3, 4}, std::vector<double>{1, 1, 7, 7}, 2);
  CHECK(two.of == std::vector<double>{1.5, 0.5});
  CHECK(two.mean == 1);
}

TEST_CASE("corruption_error: wrong arguments throw") {
  const std::vector<double> five(5, 0.5), ten(10, 0.5), four(4, 0.5), none;
  std::vector<double> perfect(10, 0.5);
  for (std::size_t i = 5; i < 10; ++i) perfect[i] = 0;
  const auto said = [](const std::vector<double>& a, const std::vector<double>& b, Index severities = 5) {
    return message_of([&] { (void)metric::corruption_error(a, b, severities); });
  };
  CHECK(said(four, four) == "corruption_error: error: expected a multiple of severities = 5, got 4");
  CHECK(said(none, none) == "corruption_error: error: expected a multiple of severities = 5, got 0");
  CHECK(said(five, ten) == "corruption_error: baseline: expected 5 numbers, as many as error has, got 10");
  CHECK(said(five, five, 0) == "corruption_error: severities: expected at least 1, got 0");
  CHECK(said(ten, perfect) == "corruption_error: baseline: expected an error above 0 for each corruption, got 0");
}
