#include "gatefold/gate/mixing/independent.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/check/gradient.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

template <class M = Independent, class T>
Tensor<T, 2, Cpu> probabilities(const Tensor<T, 2, Cpu>& z) {
  Cpu::Context ctx(2);
  Nothing<T, Cpu> none;
  Tensor<T, 2, Cpu> q(z.extent(0), z.extent(1));
  M{}.forward(ctx, none, z, z, q, none, none);
  return q;
}

}  // namespace

TEST_CASE_TEMPLATE("Independent (1): computes the softmax of every row", T, float, double) {
  for (const Index experts : {1, 2, 5, 257}) {
    Cpu::Context ctx(1);
    const auto z = uniform_tensor<T>(ctx, Seed{2}, 30, 40, experts);
    const auto q = probabilities(z);
    for (Index n = 0; n < 40; ++n) {
      long double total = 0;
      for (Index e = 0; e < experts; ++e) total += std::exp(static_cast<long double>(z(n, e)));
      for (Index e = 0; e < experts; ++e)
        CHECK(static_cast<double>(q(n, e)) ==
              doctest::Approx(static_cast<double>(std::exp(static_cast<long double>(z(n, e))) / total))
                  .epsilon(16.0 * std::numeric_limits<T>::epsilon()));
    }
  }
}

TEST_CASE("Independent: equal logits give equal probabilities") {
  const auto q = probabilities(matrix<double>({{-3, -3, -3, -3}}));
  for (Index e = 0; e < 4; ++e) CHECK(q(0, e) == 0.25);
  CHECK(probabilities(matrix<float>({{-1000}}))(0, 0) == 1);
}

TEST_CASE("Independent: logits of ±1000 neither overflow nor give NaN") {
  const auto q = probabilities(matrix<float>({{1000, -1000, 1000}, {-1000, -1000, -1001}}));
  CHECK(values(q) == std::vector<double>{0.5, 0, 0.5, q(1, 0), q(1, 0), q(1, 2)});
  CHECK(q(1, 0) == rounded<float>(1 / (2 + std::exp(-1.0))));
  const auto masked = probabilities(matrix<double>({{-infinity, 0, 0}, {0, -infinity, 0}}));
  CHECK(values(masked) == std::vector<double>{0, 0.5, 0.5, 0.5, 0, 0.5});
}

TEST_CASE("Independent: NaN stays in its row") {
  const auto q = probabilities(matrix<double>({{0, 0}, {quiet_nan, 0}, {0, quiet_nan}, {0, 0}}));
  for (const Index n : {0, 3}) CHECK(q(n, 0) == 0.5);
  for (const Index n : {1, 2}) CHECK(std::isnan(q(n, 0)));
}

TEST_CASE_TEMPLATE("Independent mixings: rank by the logits", M, Independent, IndependentSigmoid) {
  const auto z = matrix<float>({{1000, -1000, -999}});
  const View<const float, 2, Cpu> view = z;
  CHECK(M{}.rank(view, Nothing<float, Cpu>{}).data() == z.data());
}

TEST_CASE_TEMPLATE("Independent mixings: gradients equal finite differences", M, Independent, IndependentSigmoid) {
  Cpu::Context ctx(1);
  Nothing<double, Cpu> none;
  auto z = uniform_tensor<double>(ctx, Seed{2}, 2, 6, 5);
  const auto dq = uniform_tensor<double>(ctx, Seed{3}, 1, 6, 5), drank = uniform_tensor<double>(ctx, Seed{4}, 1, 6, 5);
  Tensor<double, 2, Cpu> dz(6, 5), dx(6, 5);
  const auto q = probabilities<M>(z);
  M{}.backward(ctx, none, z, z, q, none, drank, dq, dz, dx, none, none, none);
  const auto report = check::compare_gradients(
      {{"z", z.data(), std::as_const(dz).data(), z.size()}},
      [&] {
        const auto p = probabilities<M>(z);
        double f = 0;
        for (Index i = 0; i < z.size(); ++i) f += p.data()[i] * dq.data()[i] + z.data()[i] * drank.data()[i];
        return f;
      },
      [] { return 0; }, {});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE_TEMPLATE("IndependentSigmoid (1): computes the sigmoid of every logit", T, float, double) {
  for (const Index experts : {1, 2, 5, 257}) {
    Cpu::Context ctx(1);
    const auto z = uniform_tensor<T>(ctx, Seed{2}, 30, 40, experts);
    const auto q = probabilities<IndependentSigmoid>(z);
    for (Index i = 0; i < z.size(); ++i)
      CHECK(static_cast<double>(q.data()[i]) ==
            doctest::Approx(static_cast<double>(1 / (1 + std::exp(-static_cast<long double>(z.data()[i])))))
                .epsilon(16.0 * std::numeric_limits<T>::epsilon()));
  }
}

TEST_CASE("IndependentSigmoid: logits of ±1000 give 1 and 0") {
  CHECK(values(probabilities<IndependentSigmoid>(matrix<float>({{1000, -1000, 0}}))) == std::vector<double>{1, 0, 0.5});
  CHECK(values(probabilities<IndependentSigmoid>(matrix<double>({{infinity, -infinity, 0}}))) ==
        std::vector<double>{1, 0, 0.5});
}

TEST_CASE("IndependentSigmoid: NaN stays in its row") {
  const auto q = probabilities<IndependentSigmoid>(matrix<double>({{0, 0}, {quiet_nan, 0}, {0, quiet_nan}, {0, 0}}));
  for (const Index n : {0, 3}) CHECK(q(n, 0) == 0.5);
  CHECK(std::isnan(q(1, 0)));
  CHECK(std::isnan(q(2, 1)));
}
