#include "gatefold/backend/softmax.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using naive::random_vector;

namespace {

template <class T>
std::vector<T> softmax(const std::vector<T>& z, Index rows) {
  Cpu::Context ctx(1);
  const Index columns = static_cast<Index>(z.size()) / rows;
  std::vector<T> p(z.size());
  Cpu::for_rows(ctx, rows,
                functor::Softmax<T, Cpu>{View<const T, 2, Cpu>(z.data(), rows, columns),
                                         View<T, 2, Cpu>(p.data(), rows, columns)});
  return p;
}

}  // namespace

TEST_CASE_TEMPLATE("softmax: rows equal the definition", T, float, double) {
  for (const Index columns : {1, 2, 7, 8, 16, 21, 257}) {
    const Index rows = 4;
    const auto z = random_vector<T>(rows * columns, 1);
    const auto p = softmax(z, rows);
    for (Index n = 0; n < rows; ++n) {
      double total = 0, sum = 0;
      auto at = [&](Index e) { return static_cast<std::size_t>(n * columns + e); };
      for (Index e = 0; e < columns; ++e) total += std::exp(static_cast<double>(z[at(e)]));
      for (Index e = 0; e < columns; ++e) {
        const double expected = std::exp(static_cast<double>(z[at(e)])) / total;
        CHECK(std::abs(static_cast<double>(p[at(e)]) - expected) <= 8 * std::numeric_limits<T>::epsilon() * expected);
        sum += static_cast<double>(p[at(e)]);
      }
      CHECK(std::abs(sum - 1) <= static_cast<double>(columns) * std::numeric_limits<T>::epsilon());
    }
  }
}

TEST_CASE_TEMPLATE("softmax: gives known results for equal, huge, infinite logits", T, float, double) {
  const T inf = std::numeric_limits<T>::infinity();
  for (const T v : softmax<T>({5, 5, 5, 5}, 1)) CHECK(v == T(0.25));
  CHECK(softmax<T>({1000, -1000, 0}, 1) == std::vector<T>{1, 0, 0});
  CHECK(softmax<T>({-1000, -1000}, 1) == std::vector<T>{0.5, 0.5});
  CHECK(softmax<T>({0, -inf}, 1) == std::vector<T>{1, 0});
  CHECK(softmax<T>({-3}, 1) == std::vector<T>{1});
  for (const T v : softmax<T>({1, std::numeric_limits<T>::quiet_NaN(), 2}, 1)) CHECK(std::isnan(v));
}

TEST_CASE_TEMPLATE("softmax: a NaN affects only its own row", T, float, double) {
  for (const Index columns : {1, 8, 16, 19, 64})
    for (Index at = 0; at < columns; ++at) {
      auto z = random_vector<T>(2 * columns, 3);
      const auto before = softmax(z, 2);
      z[static_cast<std::size_t>(at)] = std::numeric_limits<T>::quiet_NaN();
      const auto p = softmax(z, 2);
      Index wrong = 0;
      for (Index e = 0; e < columns; ++e) {
        wrong += !std::isnan(p[static_cast<std::size_t>(e)]);
        wrong += p[static_cast<std::size_t>(columns + e)] != before[static_cast<std::size_t>(columns + e)];
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE_TEMPLATE("log-softmax: is accurate for very large logits", T, float, double) {
  Cpu::Context ctx(1);
  const double epsilon = std::numeric_limits<T>::epsilon();
  for (const Index columns : {1, 2, 8, 19, 64})
    for (const double scale : {1.0, 1e3, 1e9, 1e17}) {
      const Index rows = 3;
      auto z = random_vector<T>(rows * columns, 3);
      for (T& v : z) v *= static_cast<T>(scale);
      for (Index n = 0; n < rows; ++n)  // each row has its maximum twice if it has several columns
        z[static_cast<std::size_t>(n * columns)] = z[static_cast<std::size_t>(n * columns + columns / 2)] =
            static_cast<T>(scale * (n + 2));
      std::vector<T> log_p(z.size());
      Cpu::for_rows(ctx, rows,
                    functor::LogSoftmax<T, Cpu>{View<const T, 2, Cpu>(z.data(), rows, columns),
                                                View<T, 2, Cpu>(log_p.data(), rows, columns)});
      for (Index n = 0; n < rows; ++n) {
        const auto at = [&](Index e) { return static_cast<std::size_t>(n * columns + e); };
        const long double top = z[at(0)];
        long double sum = 0;
        for (Index e = 0; e < columns; ++e) sum += std::exp(static_cast<long double>(z[at(e)]) - top);
        for (Index e = 0; e < columns; ++e) {
          const auto expected = static_cast<double>(static_cast<long double>(z[at(e)]) - top - std::log(sum));
          CHECK(std::abs(static_cast<double>(log_p[at(e)]) - expected) <=
                4 * epsilon * (std::abs(expected) + static_cast<double>(columns)));
        }
      }
    }
}

TEST_CASE("softmax: works in place") {
  Cpu::Context ctx(1);
  std::vector<double> z{1, 2, 3};
  const auto expected = softmax(z, 1);
  Cpu::for_rows(
      ctx, 1,
      functor::Softmax<double, Cpu>{View<const double, 2, Cpu>(z.data(), 1, 3), View<double, 2, Cpu>(z.data(), 1, 3)});
  CHECK(z == expected);
}

TEST_CASE("softmax backward: equals central differences") {
  const Index rows = 3;
  for (const Index columns : {2, 5, 257}) {
    Cpu::Context ctx(1);
    auto z = random_vector<double>(rows * columns, 1);
    const auto c = random_vector<double>(rows * columns, 2), p = softmax(z, rows);
    std::vector<double> dz(z.size(), 99);
    const View<const double, 2, Cpu> pv(p.data(), rows, columns), cv(c.data(), rows, columns);
    Cpu::for_rows(ctx, rows,
                  functor::SoftmaxBackward<double, Cpu>{pv, cv, View<double, 2, Cpu>(dz.data(), rows, columns)});
    auto f = [&] {
      const auto q = softmax(z, rows);
      double v = 0;
      for (std::size_t i = 0; i < q.size(); ++i) v += q[i] * c[i];
      return v;
    };
    const double h = 1e-4;
    for (std::size_t i = 0; i < z.size(); i += 7) {
      const double at = z[i];
      double g[4];
      const double step[4] = {h, -h, 2 * h, -2 * h};
      for (int k = 0; k < 4; ++k) z[i] = at + step[k], g[k] = f();
      z[i] = at;
      const double numeric = (8 * (g[0] - g[1]) - (g[2] - g[3])) / (12 * h);
      CHECK(std::abs(numeric - dz[i]) <= 1e-10 * std::abs(dz[i]) + 1e-10);
    }
  }
}

TEST_CASE("softmax backward: one column has gradient 0") {
  Cpu::Context ctx(1);
  const double p = 1, dp = 3;
  double dz = 7;
  Cpu::for_rows(
      ctx, 1,
      functor::SoftmaxBackward<double, Cpu>{View<const double, 2, Cpu>(&p, 1, 1), View<const double, 2, Cpu>(&dp, 1, 1),
                                            View<double, 2, Cpu>(&dz, 1, 1)});
  CHECK(dz == 0);
}
