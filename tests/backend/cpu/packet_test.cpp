#include "gatefold/backend/cpu/packet.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "support/naive.hpp"

using namespace gatefold;
namespace packet = cpu::packet;

namespace {

template <class T>
std::vector<T> lanes(const packet::Of<T>& v) {
  std::vector<T> all(static_cast<std::size_t>(packet::size<T>));
  packet::store(all.data(), v);
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("packet: load, store and fill work at any address", T, float, double) {
  constexpr std::size_t n = static_cast<std::size_t>(packet::size<T>);
  const auto x = naive::random_vector<T>(static_cast<Index>(n) + 3, 1);
  for (std::size_t first = 0; first < 3; ++first) {
    std::vector<T> y(n + 4, T(7));
    packet::store(y.data() + first, packet::load(x.data() + first));
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == (i >= first && i < first + n ? x[i] : T(7)));
  }
  const auto filled = lanes<T>(packet::filled(T(2.5))), numbers = lanes<T>(packet::lane_numbers<T>());
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(filled[i] == T(2.5));
    CHECK(numbers[i] == T(i));
  }
}

TEST_CASE_TEMPLATE("packet: madd fuses in all lanes or in no lane", T, float, double) {
  constexpr std::size_t n = static_cast<std::size_t>(packet::size<T>);
  int fused = 0, plain = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto a = naive::random_vector<T>(n, seed), b = naive::random_vector<T>(n, seed + 100),
               c = naive::random_vector<T>(n, seed + 200);
    const auto x = packet::load(a.data()), y = packet::load(b.data()), z = packet::load(c.data());
    const auto sum = lanes<T>(packet::madd<T>(x, y, z)), least = lanes<T>(packet::min<T>(x, y)),
               size = lanes<T>(packet::abs<T>(x)), root = lanes<T>(packet::sqrt<T>(packet::abs<T>(x)));
    for (std::size_t i = 0; i < n; ++i) {
      volatile T product = a[i] * b[i];
      fused += sum[i] == std::fma(a[i], b[i], c[i]);
      plain += sum[i] == product + c[i];
      CHECK(least[i] == std::min(a[i], b[i]));
      CHECK(size[i] == std::abs(a[i]));
      CHECK(root[i] == std::sqrt(std::abs(a[i])));
    }
  }
  const int all = static_cast<int>(50 * n);
  CHECK((fused == all || plain == all));
  const T nan = std::numeric_limits<T>::quiet_NaN();
  CHECK(std::isnan(lanes<T>(packet::min<T>(packet::filled(nan), packet::filled(T(1))))[0]));
  CHECK(lanes<T>(packet::min<T>(packet::filled(T(1)), packet::filled(nan)))[0] == 1);
  CHECK(!std::signbit(lanes<T>(packet::abs<T>(packet::filled(T(-0.0))))[0]));
}

TEST_CASE_TEMPLATE("packet: sum and largest find values in any lane", T, float, double) {
  constexpr std::size_t n = static_cast<std::size_t>(packet::size<T>);
  std::vector<T> x(n);
  for (std::size_t at = 0; at < n; ++at) {
    for (std::size_t i = 0; i < n; ++i) x[i] = i == at ? T(1000) : -T(i);  // whole numbers: exact in any order
    T sum = 0;
    for (const T v : x) sum += v;
    CHECK(packet::sum<T>(packet::load(x.data())) == sum);
    CHECK(packet::largest<T>(packet::load(x.data())) == 1000);
  }
}

TEST_CASE_TEMPLATE("packet: scaling by powers of 2 is exact until overflow", T, float, double) {
  const int most = std::is_same_v<T, float> ? 128 : 1024;
  for (int n = 2 - most; n <= most; ++n)
    for (const T v : {T(1), T(1.5), T(0.75)}) {
      const T expected = std::ldexp(v, n);
      if (std::isnormal(expected) || std::isinf(expected))
        CHECK(lanes<T>(packet::scaled<T>(packet::filled(v), packet::filled(T(n))))[0] == expected);
    }
  CHECK(std::isnan(
      lanes<T>(packet::scaled<T>(packet::filled(std::numeric_limits<T>::quiet_NaN()), packet::filled(T(1))))[0]));
}

TEST_CASE_TEMPLATE("packet: transpose exchanges rows and columns of a square block", T, float, double) {
  constexpr int n = packet::size<T>;
  packet::Of<T> rows[n];
  for (int i = 0; i < n; ++i) rows[i] = packet::lane_numbers<T>() + packet::filled(T(100 * i));
  packet::transpose<T>(rows);
  for (int i = 0; i < n; ++i) {
    const auto row = lanes<T>(rows[i]);
    for (int j = 0; j < n; ++j) CHECK(row[static_cast<std::size_t>(j)] == T(100 * j + i));
  }
}
