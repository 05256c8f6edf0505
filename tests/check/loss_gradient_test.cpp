#include "gatefold/check/loss_gradient.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

enum class Fault { none, sign, adds, one_item_short, first_weight };

/// value = Σ w_j y_nj² / N with learned weights w.
struct Weighted {
  Fault fault = Fault::none;

  template <class T, class B>
  using Target = Nothing<T, B>;
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight;
    GATEFOLD_PACK(weight)
  };
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, 3)};
  }
  template <class T, class B>
  void validate(In<T, 2, B>, const Nothing<T, B>&) const {}
  template <class T, class B>
  void forward(typename B::Context&, const Params<T, B>& p, const auto&, In<T, 2, B> y, const Nothing<T, B>&,
               Out<T, 1, B> value, auto&) const {
    value(0) = 0;
    for (Index i = 0; i < y.size(); ++i) value(0) += p.weight(i % 3) * y.data()[i] * y.data()[i] / T(y.extent(0));
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, const auto&, In<T, 2, B> y, const Nothing<T, B>&,
                const auto&, Out<T, 2, B> dy, Params<T, B>& grads, auto&) const {
    for (Index i = 0; i < y.size() - (fault == Fault::one_item_short ? 3 : 0); ++i) {
      const T share = (fault == Fault::sign ? -1 : 1) / T(y.extent(0)), v = y.data()[i];
      dy.data()[i] = (fault == Fault::adds ? dy.data()[i] : 0) + 2 * share * p.weight(i % 3) * v;
      grads.weight(fault == Fault::first_weight ? 0 : i % 3) += share * v * v;
    }
  }
};

Tensor<double, 2, Cpu> outputs(Cpu::Context& ctx, Index items = 5) {
  return uniform_tensor<double>(ctx, Seed{4}, 1, items, 3);
}
/// Returns the names that the sentences are about.
std::vector<std::string> found(Fault fault) {
  Cpu::Context ctx(1);
  auto y = outputs(ctx);
  std::vector<std::string> names;
  for (const auto& sentence : check::loss_gradients(ctx, Weighted{fault}, y, {}).sentences)
    names.push_back(sentence.substr(0, sentence.find(':')));
  return names;
}

}  // namespace

TEST_CASE("loss_gradients: losses of the library pass, with ignored labels") {
  Cpu::Context ctx(2);
  auto y = outputs(ctx);
  const auto before = outputs(ctx), aim = uniform_tensor<double>(ctx, Seed{5}, 1, 5, 3);
  const std::vector<Index> labels{0, 2, -100, 1, 2};
  Tensor<double, 2, Cpu> signs(5, 1);
  for (Index n = 0; n < 5; ++n) signs(n, 0) = n % 2 ? 1 : -1;
  auto margin = uniform_tensor<double>(ctx, Seed{6}, 1, 5, 1);
  for (const auto& report :
       {check::loss_gradients(ctx, MeanSquaredError{}, y, aim),
        check::loss_gradients(ctx, CrossEntropy{.ignore = -100}, y, View<const Index, 1, Cpu>(labels)),
        check::loss_gradients(ctx, Logistic{}, margin, signs)}) {
    CHECK_MESSAGE(report, report.str());
    CHECK(report.worst < 1e-6);
  }
  for (Index i = 0; i < y.size(); ++i) CHECK(y.data()[i] == before.data()[i]);
}

TEST_CASE("loss_gradients: a learned loss is checked with its parameters") {
  Cpu::Context ctx(1);
  auto y = outputs(ctx);
  const auto report = check::loss_gradients(ctx, Weighted{}, y, {});
  CHECK_MESSAGE(report, report.str());
  CHECK(report.checked == 5 * 3 + 3);
}

TEST_CASE("loss_gradients: a wrong gradient is reported") {
  CHECK(found(Fault::sign) == std::vector<std::string>{"y[0]", "loss.weight[0]"});
  CHECK(found(Fault::adds) == std::vector<std::string>{"y[0]"});
  CHECK(found(Fault::one_item_short) == std::vector<std::string>{"y[12]", "loss.weight[0]"});
  CHECK(found(Fault::first_weight) == std::vector<std::string>{"loss.weight[0]"});
}

TEST_CASE("loss_gradients: throws the errors of the loss") {
  Cpu::Context ctx(1);
  auto y = outputs(ctx);
  const auto aim = uniform_tensor<double>(ctx, Seed{5}, 1, 4, 3);
  CHECK_THROWS_AS((void)check::loss_gradients(ctx, MeanSquaredError{}, y, aim), ArgumentError);
}
