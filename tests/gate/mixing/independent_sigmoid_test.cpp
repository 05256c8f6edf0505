#include "gatefold/gate/mixing/independent_sigmoid.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/check/gradient.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

template <class T>
Tensor<T, 2, Cpu> probabilities(const Tensor<T, 2, Cpu>& z) {
  Cpu::Context ctx(2);
  Nothing<T, Cpu> none;
  Tensor<T, 2, Cpu> q(z.extent(0), z.extent(1));
  IndependentSigmoid{}.forward(ctx, none, z, z, q, none, none);
  return q;
}

}  // namespace

TEST_CASE_TEMPLATE("IndependentSigmoid (1): sigmoid of every logit", T, float, double) {
  for (const Index experts : {1, 2, 5, 257}) {
    Cpu::Context ctx(1);
    const auto z = uniform_tensor<T>(ctx, Seed{2}, 30, 40, experts);
    const auto q = probabilities(z);
    for (Index i = 0; i < z.size(); ++i)
      CHECK(static_cast<double>(q.data()[i]) ==
            doctest::Approx(static_cast<double>(1 / (1 + std::exp(-static_cast<long double>(z.data()[i])))))
                .epsilon(16.0 * std::numeric_limits<T>::epsilon()));
  }
}

TEST_CASE("IndependentSigmoid: logits of ±1000 give 1 and 0") {
  CHECK(values(probabilities(matrix<float>({{1000, -1000, 0}}))) == std::vector<double>{1, 0, 0.5});
  CHECK(values(probabilities(matrix<double>({{infinity, -infinity, 0}}))) == std::vector<double>{1, 0, 0.5});
}

TEST_CASE("IndependentSigmoid: NaN stays in its row") {
  const auto q = probabilities(matrix<double>({{0, 0}, {quiet_nan, 0}, {0, quiet_nan}, {0, 0}}));
  for (const Index n : {0, 3}) CHECK(q(n, 0) == 0.5);
  CHECK(std::isnan(q(1, 0)));
  CHECK(std::isnan(q(2, 1)));
}

TEST_CASE("IndependentSigmoid (1): ranks by the logits") {
  const auto z = matrix<float>({{1000, -1000, -999}});
  const View<const float, 2, Cpu> view = z;
  CHECK(IndependentSigmoid{}.rank(view, Nothing<float, Cpu>{}).data() == z.data());
}

TEST_CASE("IndependentSigmoid: gradients of probabilities and rank") {
  Cpu::Context ctx(1);
  Nothing<double, Cpu> none;
  auto z = uniform_tensor<double>(ctx, Seed{2}, 2, 6, 5);
  const auto dq = uniform_tensor<double>(ctx, Seed{3}, 1, 6, 5), drank = uniform_tensor<double>(ctx, Seed{4}, 1, 6, 5);
  Tensor<double, 2, Cpu> dz(6, 5), dx(6, 5);
  const auto q = probabilities(z);
  IndependentSigmoid{}.backward(ctx, none, z, z, q, none, drank, dq, dz, dx, none, none, none);
  const auto report = check::compare_gradients(
      {{"z", z.data(), std::as_const(dz).data(), z.size()}},
      [&] {
        const auto p = probabilities(z);
        double f = 0;
        for (Index i = 0; i < z.size(); ++i) f += p.data()[i] * dq.data()[i] + z.data()[i] * drank.data()[i];
        return f;
      },
      [] { return 0; }, {});
  CHECK_MESSAGE(report, report.str());
}
