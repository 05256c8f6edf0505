#include "gatefold/expert/norm_expert.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/gradient.hpp"
#include "support/experts.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("NormExpert (1): equals loops, with a gain and a bias per expert; again gives the same bits") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts()) {
    Bank<double, NormExpert> b(ctx, {.model_dim = 5, .epsilon = 0.1}, counts, 6);
    fill_uniform(ctx, Seed{5}, -1, 1, b.params.gain);
    fill_uniform(ctx, Seed{6}, -1, 1, b.params.bias);
    b.forward();
    CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
            double mean = 0, variance = 0;
            for (const double v : x) mean += v / 5;
            for (const double v : x) variance += (v - mean) * (v - mean) / 5;
            std::vector<double> z;
            for (Index j = 0; j < 5; ++j)
              z.push_back((x[std::size_t(j)] - mean) / std::sqrt(variance + 0.1) * b.params.gain(e, j) +
                          b.params.bias(e, j));
            return z;
          })) <= 1e-14);
    Tensor<double, 2, Cpu> z(b.z.extent(0), 5);
    b.expert.again(ctx, b.params, b.groups(), b.saved, z);
    CHECK(same_bits(values(z), values(b.z)));
  }
}

TEST_CASE("NormExpert: slots nobody owns are neither read nor written; gradients") {
  const auto broken = broken_promises<double>(NormExpert{.model_dim = 5}, [](auto& bank) {
    bank.poison(bank.saved.unit);
    for (Index i = bank.used(); i < bank.saved.inverse.size(); ++i) bank.saved.inverse.data()[i] = quiet_nan;
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  Cpu::Context ctx(1);
  const auto report = check::gradients(ctx, NormExpert{.model_dim = 5});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("NormExpert: slots that lie after those of other kinds") {
  const auto broken = broken_for_later_slots<double>(NormExpert{.model_dim = 5});
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("NormExpert: starts as plain normalisation; options and shapes that do not fit say so") {
  Cpu::Context ctx(1);
  auto p = NormExpert{.model_dim = 2}.init<double, Cpu>(ctx, 3, {});
  CHECK(values(p.gain) == std::vector<double>(6, 1.0));
  CHECK(values(p.bias) == std::vector<double>(6, 0.0));
  CHECK(message_of([&] { (void)NormExpert{}.init<double, Cpu>(ctx, 1, {}); }) ==
        "NormExpert.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)NormExpert{.model_dim = 2, .epsilon = 0}.init<double, Cpu>(ctx, 1, {}); }) ==
        "NormExpert.init: epsilon: expected more than 0, got 0");
  CHECK(message_of([&] { NormExpert{.model_dim = 2, .epsilon = quiet_nan}.validate(p, 3); }) ==
        "NormExpert: epsilon: expected more than 0, got nan");
  CHECK(message_of([&] { NormExpert{.model_dim = 2}.validate(p, 4); }) ==
        "NormExpert: params.gain: expected [4, 2], got [3, 2]");
}
