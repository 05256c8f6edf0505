#include "gatefold/distributed/given_scores.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

TEST_CASE("MixedRows: joins and splits rows and their adjoints") {
  using Rows = dist::MixedRows<double, Cpu>;
  constexpr Index items = 3, experts = 2;
  Cpu::Context ctx(1);
  Tensor<double, 2, Cpu> part(items, experts), rows(items, Rows::parts * experts);
  for (const auto p : {Rows::logits, Rows::rank, Rows::probabilities}) {
    for (Index n = 0; n < items; ++n)
      for (Index e = 0; e < experts; ++e) part(n, e) = static_cast<double>(100 * p + 10 * n + e);
    Rows::put(ctx, part.view(), p, rows.view(), false);
  }
  for (Index n = 0; n < items; ++n)
    for (Index c = 0; c < rows.extent(1); ++c)
      CHECK(rows(n, c) == static_cast<double>(100 * (c / experts) + 10 * n + c % experts));

  Tensor<double, 2, Cpu> z(items, experts), q(items, experts);
  const dist::GivenMixing mixing;
  dist::GivenMixing::Saved<double, Cpu> saved;
  dist::MixedScores{experts}.forward<double, Cpu>(ctx, {}, rows, z);
  mixing.forward<double, Cpu>(ctx, {}, rows, z, q, saved, {});
  const auto rank = mixing.rank<double, Cpu>(z, saved);
  for (Index n = 0; n < items; ++n)
    for (Index e = 0; e < experts; ++e) {
      CHECK(z(n, e) == static_cast<double>(10 * n + e));
      CHECK(rank(n, e) == static_cast<double>(100 + 10 * n + e));
      CHECK(q(n, e) == static_cast<double>(200 + 10 * n + e));
    }

  // Each adjoint is added to its own part of dx.
  const Tensor<double, 2, Cpu> drank = constant_tensor<double>(ctx, 3, items, experts),
                               dq = constant_tensor<double>(ctx, 5, items, experts),
                               dlogits = constant_tensor<double>(ctx, 7, items, experts);
  Tensor<double, 2, Cpu> dz = constant_tensor<double>(ctx, 9, items, experts),
                         dx = constant_tensor<double>(ctx, 1, items, Rows::parts * experts);
  Nothing<double, Cpu> none;
  mixing.backward<double, Cpu>(ctx, {}, rows, z, q, saved, drank, dq, dz, dx, none, {}, none);
  dist::MixedScores{experts}.backward<double, Cpu>(ctx, {}, rows, dlogits, dx, none);
  for (Index n = 0; n < items; ++n)
    for (Index e = 0; e < experts; ++e) {
      CHECK(dz(n, e) == 0);
      CHECK(dx(n, e) == 8);
      CHECK(dx(n, experts + e) == 4);
      CHECK(dx(n, 2 * experts + e) == 6);
    }
}

TEST_CASE("MixedRows: padding rows of 0 weigh all experts equally") {
  constexpr Index items = 2, experts = 4;
  Cpu::Context ctx(1);
  const auto rows = constant_tensor<double>(ctx, 0, items, dist::MixedRows<double, Cpu>::parts * experts);
  Tensor<double, 2, Cpu> z(items, experts), q(items, experts);
  dist::GivenMixing::Saved<double, Cpu> saved;
  const std::vector<double> valid{1, 0};
  dist::GivenMixing{}.forward<double, Cpu>(ctx, {}, rows, z, q, saved, {valid});
  for (Index e = 0; e < experts; ++e) {
    CHECK(q(0, e) == 0);
    CHECK(q(1, e) == 0.25);
  }
}

TEST_CASE("GivenScores: logits are the items, backward adds adjoints") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 3), dz = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 3);
  Tensor<double, 2, Cpu> z(4, 3), dx = constant_tensor<double>(ctx, 1, 4, 3);
  Nothing<double, Cpu> none;
  dist::GivenScores{3}.forward<double, Cpu>(ctx, {}, x, z);
  dist::GivenScores{3}.backward<double, Cpu>(ctx, {}, x, dz, dx, none);
  for (Index i = 0; i < x.size(); ++i) {
    CHECK(z.data()[i] == x.data()[i]);
    CHECK(dx.data()[i] == 1 + dz.data()[i]);
  }
}

namespace {

/// Adds up a row in place.
struct RowSum {
  double* sum;
  template <class Lanes>
  void operator()(const Lanes&, Index n, double* row) const {
    sum[n] = row[0] + row[1] + row[2];
  }
};

}  // namespace

TEST_CASE("GivenScores: passes logits row by row, including infinities") {
  Cpu::Context ctx(1);
  auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 2, 3);
  x(1, 0) = -std::numeric_limits<double>::infinity();
  Tensor<double, 2, Cpu> z(2, 3);
  for (const bool kept : {true, false}) {
    double sum[2] = {};
    dist::GivenRows{{3}}.forward_rows<double, Cpu>(ctx, {}, x, kept ? z.view() : View<double, 2, Cpu>(nullptr, 2, 3),
                                                   RowSum{sum});
    CHECK(sum[0] == x(0, 0) + x(0, 1) + x(0, 2));
    CHECK(sum[1] == x(1, 0));
  }
  for (Index i = 0; i < x.size(); ++i) CHECK(z.data()[i] == x.data()[i]);
}
