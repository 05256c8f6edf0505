// Losses and their gradients, compared with PyTorch: tests/golden/losses.py.

#include <doctest/doctest.h>

#include <string>

#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/loss/sigmoid_cross_entropy.hpp"
#include "gatefold/loss/soft_cross_entropy.hpp"
#include "support/golden.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Compares value and gradient of every case of a file. target(case) makes the target of the loss.
template <class L, class F>
void loss_agrees(const char* file, const L& loss, F&& target) {
  std::string path = "loss/";
  path += file;
  for (Golden& g : Golden::read_all(path)) {
    CAPTURE(g.name);
    Cpu::Context ctx(2);
    auto y = g.matrix("y");
    auto dy = zeros_like(ctx, y);
    Tensor<double, 1, Cpu> value(1);
    const auto of = target(g);
    forward(loss, ctx, y, of, value);
    backward(loss, ctx, y, of, dy);
    g.compare("value", value);
    g.compare("dy", dy);
    CHECK(g.unread() == "");
  }
}

}  // namespace

TEST_CASE("golden: MeanSquaredError equals torch.nn.MSELoss") {
  loss_agrees("mean_squared_error", MeanSquaredError{}, [](Golden& g) { return g.matrix("target"); });
}

TEST_CASE("golden: CrossEntropy equals torch.nn.CrossEntropyLoss") {
  loss_agrees("cross_entropy", CrossEntropy{}, [](Golden& g) { return g.indices("target"); });
}

TEST_CASE("golden: CrossEntropy with ignore equals PyTorch with ignore_index") {
  loss_agrees("cross_entropy_ignored", CrossEntropy{.ignore = -1}, [](Golden& g) { return g.indices("target"); });
}

TEST_CASE("golden: CrossEntropy with label smoothing equals PyTorch") {
  loss_agrees("cross_entropy_smoothed", CrossEntropy{.ignore = -1, .label_smoothing = 0.1},
              [](Golden& g) { return g.indices("target"); });
}

TEST_CASE("golden: SoftCrossEntropy equals torch.nn.CrossEntropyLoss with probabilities") {
  loss_agrees("soft_cross_entropy", SoftCrossEntropy{}, [](Golden& g) { return g.matrix("target"); });
}

TEST_CASE("golden: SigmoidCrossEntropy equals torch.nn.BCEWithLogitsLoss") {
  loss_agrees("sigmoid_cross_entropy", SigmoidCrossEntropy{}, [](Golden& g) { return g.matrix("target"); });
}

TEST_CASE("golden: Logistic equals the mean of log(1 + exp(-t y))") {
  loss_agrees("logistic", Logistic{}, [](Golden& g) { return g.matrix("target"); });
}
