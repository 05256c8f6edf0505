// Neighbouring columns that one thread reads and writes together: their arithmetic, and no access past the count, at
// any alignment.
#include "gatefold/backend/cuda/elements.cuh"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/backend/math.hpp"
#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

/// Sets to[i] = from[i] for the first `count` elements. The values loaded past them go to `past`.
template <int Size, class From, class To>
__global__ void move_kernel(const From* from, To* to, int count, float* past) {
  const ElementsAccess<Size> at{count};
  const Elements<Size> v = at.load(from);
  at.store(to, v);
  for (int i = count; i < Size; ++i) past[i] = v.v[i];
}

/// Moves `count` elements that begin at `place`, for every count up to Size and for eight neighbouring places.
template <int Size, class From, class To>
void check_moves() {
  CAPTURE(Size);
  Cuda::Context ctx;
  constexpr Index places = 8, all = places + Size + 1;
  std::vector<From> from;
  for (const float v : test::random_vector<float>(all, 1)) from.push_back(From(Bfloat16::from(v)));
  const std::vector<To> before(from.size(), To(Bfloat16::from(-77)));
  test::DeviceArray<From> on_from(ctx, from);
  for (Index place = 0; place < places; ++place)
    for (int count = 0; count <= Size; ++count) {
      CAPTURE(place);
      CAPTURE(count);
      test::DeviceArray<To> to(ctx, before);
      test::DeviceArray<float> past(ctx, std::vector<float>(Size, 0.f));
      move_kernel<Size><<<1, 1, 0, ctx.stream()>>>(on_from.data() + place, to.data() + place, count, past.data());
      expect_launched("move_kernel");
      std::vector<To> expected = before;
      for (Index i = place; i < place + count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        expected[at] = To(Bfloat16::from(float(from[at])));
      }
      CHECK(test::difference(expected, to.values()) == "");
      CHECK(test::difference(std::vector<float>(Size, 0.f), past.values()) == "");
    }
}

/// Applies operator or function `which` to eight values together, or to a single value.
struct All {
  template <class V>
  __device__ V operator()(int which, const V& a, const V& b) const {
    using functor::math::abs, functor::math::erf, functor::math::log, functor::math::sqrt, functor::math::tanh,
        functor::math::where_positive;
    V r = a;
    switch (which) {
      case 0:
        r += b;
        return r;
      case 1:
        r -= 2.f - b;
        return r;
      case 2:
        r *= b * 0.5f;
        return r;
      case 3:
        r /= 1.f / b;
        return r;
      case 4:
        return -a;
      case 5:
        return erf(a);
      case 6:
        return log(abs(a));
      case 7:
        return sqrt(abs(a));
      case 8:
        return tanh(a);
      default:
        return where_positive(a, a, b);
    }
  }
};
__global__ void all_kernel(int which, const float* a, const float* b, float* at_once, float* each) {
  const ElementsAccess<8> at{};
  at.store(at_once, All{}(which, at.load(a), at.load(b)));
  for (int i = 0; i < 8; ++i) each[i] = All{}(which, a[i], b[i]);
}
__global__ void device_kernel(const float* a, float* exponentials, float* reciprocals) {
  const ElementsAccess<8> at{};
  at.store(exponentials, exp(at.load(a)));
  at.store(reciprocals, reciprocal(at.load(a)));
}

}  // namespace

TEST_CASE("cuda: Elements: moves count neighbours, aligned or not") {
  check_moves<4, float, float>();
  check_moves<4, Bfloat16, float>();
  check_moves<8, float, Bfloat16>();
  check_moves<8, Bfloat16, Bfloat16>();
  check_moves<2, float, float>();
}

TEST_CASE("cuda: Elements: arithmetic gives the same bits as single values") {
  Cuda::Context ctx;
  auto a = test::random_vector<float>(8, 1);
  a[3] = -0.f;
  a[5] = NAN;
  test::DeviceArray<float> on_a(ctx, a), on_b(ctx, test::random_vector<float>(8, 2));
  for (int which = 0; which < 10; ++which) {
    CAPTURE(which);
    test::DeviceArray<float> at_once(ctx, std::vector<float>(8, -77.f)), each(ctx, std::vector<float>(8, -78.f));
    all_kernel<<<1, 1, 0, ctx.stream()>>>(which, on_a.data(), on_b.data(), at_once.data(), each.data());
    expect_launched("all_kernel");
    CHECK(test::difference(each.values(), at_once.values()) == "");
  }
}

TEST_CASE("cuda: Elements: exponentials, reciprocals equal device functions") {
  Cuda::Context ctx;
  const std::vector<float> a{0.f, 1.f, -1.f, 20.f, -20.f, 1e30f, -1e30f, 0.3f};
  test::DeviceArray<float> on_a(ctx, a), exponentials(ctx, a), reciprocals(ctx, a);
  device_kernel<<<1, 1, 0, ctx.stream()>>>(on_a.data(), exponentials.data(), reciprocals.data());
  expect_launched("device_kernel");
  const auto e = exponentials.values(), r = reciprocals.values();
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(a[i]);
    const double x = static_cast<double>(a[i]), exact = std::exp(x), inverse = 1 / x;
    if (a[i] < 1e30f) CHECK(std::abs(double(e[i]) - exact) <= (std::abs(x) + 4) * 0x1p-23 * exact);
    if (a[i] != 0.f) CHECK(std::abs(double(r[i]) - inverse) <= 0x1p-22 * std::abs(inverse));
  }
  CHECK(std::isinf(e[5]));
  CHECK(e[6] == 0.f);
  CHECK(std::isinf(r[0]));
}
