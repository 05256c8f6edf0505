#include "gatefold/loss/multi_task.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index ignored = -1;

/// Tasks of two numbers, four classes, and a sign, in columns [0, 2), [2, 6) and [6, 7).
auto losses(MeanOver mean = MeanOver::targets) {
  return MultiTask{TaskLoss{2, MeanSquaredError{}, 0.5}, TaskLoss{4, CrossEntropy{.ignore = ignored}, 3.0, mean},
                   TaskLoss{1, Logistic{}}};
}
template <class T>
struct Batch {
  Tensor<T, 2, Cpu> y, numbers, signs;
  std::vector<Index> labels{};
  Batch(Cpu::Context& ctx, Index items, bool ignores = true)
      : y(uniform_tensor<T>(ctx, Seed{1}, 1, items, 7)),
        numbers(uniform_tensor<T>(ctx, Seed{2}, 1, items, 2)),
        signs(items, 1) {
    for (Index n = 0; n < items; ++n) {
      labels.push_back(ignores && n % 3 == 1 ? ignored : n * 5 % 4);
      signs(n, 0) = n % 2 == 0 ? T(1) : T(-1);
    }
  }
};
/// Equation (1) in double, in loops.
template <class T>
double expected_loss(const Batch<T>& b, MeanOver mean) {
  const Index items = b.y.extent(0);
  const auto y = [&](Index n, Index c) { return static_cast<double>(b.y(n, c)); };
  double squares = 0, entropy = 0, logistic = 0, counted = 0;
  for (Index n = 0; n < items; ++n) {
    for (Index d = 0; d < 2; ++d) squares += std::pow(y(n, d) - static_cast<double>(b.numbers(n, d)), 2);
    logistic += std::log1p(std::exp(-static_cast<double>(b.signs(n, 0)) * y(n, 6)));
    const Index label = b.labels[static_cast<std::size_t>(n)];
    if (label == ignored) continue;
    double total = 0;
    for (Index c = 0; c < 4; ++c) total += std::exp(y(n, 2 + c));
    entropy += std::log(total) - y(n, 2 + label);
    ++counted;
  }
  const double all = static_cast<double>(items), of_labels = mean == MeanOver::items ? all : counted;
  return 0.5 * squares / (2 * all) + (of_labels > 0 ? 3 * entropy / of_labels : 0) + logistic / all;
}
template <class T>
double loss_of(Cpu::Context& ctx, const Batch<T>& b, MeanOver mean) {
  Tensor<T, 1, Cpu> value(1);
  forward(losses(mean), ctx, b.y, {b.numbers, b.labels, b.signs}, value);
  return static_cast<double>(value(0));
}

const Mixture model{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                    Mlp<Gelu>{.model_dim = 7, .hidden_dim = 5}};
/// Calls run.step with items [begin, end) of a batch. If `waits`, calls run.accumulate instead, which keeps the
/// gradient for the next step. Returns the loss.
template <class R>
double part(R& run, const Batch<double>& b, Index begin, Index end, bool waits) {
  const auto rows = [&](const auto& t) { return View<const double, 2, Cpu>(t).rows(begin, end - begin); };
  const View<const Index, 1, Cpu> labels(b.labels.data() + begin, end - begin);
  if (waits) return run.accumulate(rows(b.y), {rows(b.numbers), labels, rows(b.signs)});
  return run.step(rows(b.y), {rows(b.numbers), labels, rows(b.signs)});
}

}  // namespace

TEST_CASE_TEMPLATE("MultiTask (1): equals the weighted sum of the tasks' losses", T, float, double) {
  Cpu::Context ctx(2);
  for (const MeanOver mean : {MeanOver::targets, MeanOver::items})
    for (const Index items : {1, 2, 5, 100}) {
      const Batch<T> b(ctx, items);
      CHECK(loss_of(ctx, b, mean) == doctest::Approx(expected_loss(b, mean)).epsilon(sizeof(T) == 4 ? 1e-6 : 1e-13));
    }
  // If no label counts, the other tasks still count.
  Batch<T> b(ctx, 5);
  for (Index& label : b.labels) label = ignored;
  CHECK(loss_of(ctx, b, MeanOver::targets) ==
        doctest::Approx(expected_loss(b, MeanOver::targets)).epsilon(sizeof(T) == 4 ? 1e-6 : 1e-13));
}

TEST_CASE("MultiTask: the gradient equals central differences") {
  Cpu::Context ctx(2);
  for (const MeanOver mean : {MeanOver::targets, MeanOver::items}) {
    Batch<double> b(ctx, 5);
    const auto report = check::loss_gradients(ctx, losses(mean), b.y, {b.numbers, b.labels, b.signs});
    CAPTURE(report.str());
    CHECK(report);
    CHECK(report.checked == 35);
  }
  // A MultiTask inside a task: their weights multiply.
  Batch<double> b(ctx, 5);
  const MultiTask nested{
      TaskLoss{2, MeanSquaredError{}},
      TaskLoss{5, MultiTask{TaskLoss{4, CrossEntropy{.ignore = ignored}}, TaskLoss{1, Logistic{}, 2.0}}, 0.5}};
  CHECK(check::loss_gradients(ctx, nested, b.y, {b.numbers, {b.labels, b.signs}}));
}

TEST_CASE("MultiTask: one task equals its loss, bit for bit") {
  Cpu::Context ctx(2);
  const Batch<float> b(ctx, 9);
  const auto y = uniform_tensor<float>(ctx, Seed{5}, 1, 9, 4);
  const CrossEntropy entropy{.ignore = ignored};
  Tensor<float, 1, Cpu> value(1), expected(1);
  Tensor<float, 2, Cpu> dy(9, 4), expected_dy(9, 4);
  forward(MultiTask{TaskLoss{4, entropy}}, ctx, y, {b.labels}, value);
  backward(MultiTask{TaskLoss{4, entropy}}, ctx, y, {b.labels}, dy);
  forward(entropy, ctx, y, b.labels, expected);
  backward(entropy, ctx, y, b.labels, expected_dy);
  CHECK(value(0) == expected(0));
  CHECK(same_bits(values(dy), values(expected_dy)));
}

TEST_CASE("MultiTask: accumulated parts equal one step of the whole batch") {
  // Without ignored labels, all tasks count equally many targets. With ignored labels, this is so only if all tasks
  // take their mean over items.
  for (const bool ignores : {false, true}) {
    Cpu::Context ctx(2);
    const Batch<double> b(ctx, 12, ignores);
    const auto of = losses(ignores ? MeanOver::items : MeanOver::targets);
    const auto run = [&] { return Trainer{ctx, model, of, optim::Sgd{.lr = 0.3}, Seed{1}, Element<double>{}}; };
    auto whole = run(), parts = run();
    const double expected = part(whole, b, 0, 12, false);
    part(parts, b, 0, 2, true);
    part(parts, b, 2, 7, true);
    CHECK(part(parts, b, 7, 12, false) == doctest::Approx(expected).epsilon(1e-13));
    const auto a = values(whole.params), c = values(parts.params);
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - c[i]));
    CHECK(worst < 1e-14);
  }
}

TEST_CASE("MultiTask: parts with different target counts are refused") {
  Cpu::Context ctx(1);
  const Batch<double> b(ctx, 6);
  Trainer run{ctx, model, losses(), optim::Sgd{.lr = 0.3}, Seed{1}, Element<double>{}};
  const std::string message =
      "MultiTask.counted: task 1: expected 3 targets that count, as in task 0 (for accumulated parts or shards use "
      "TaskLoss{…, MeanOver::items}), got 2";
  CHECK(message_of([&] { part(run, b, 0, 3, true); }) == message);
  CHECK(run.waiting() == 0);
  part(run, b, 2, 4, true);  // both labels count
  CHECK(message_of([&] { part(run, b, 0, 3, false); }) == message);
  CHECK(run.waiting() == 1);
  run.forget();
  part(run, b, 0, 3, false);  // a whole batch
}

TEST_CASE("MultiTask: wrong targets and options are refused") {
  Cpu::Context ctx(1);
  Batch<double> b(ctx, 4);
  auto of = losses();
  Trainer run{ctx, model, of, optim::Sgd{.lr = 0.3}, Seed{1}, Element<double>{}};
  const auto before = values(run.params);
  const auto refuses = [&](const std::string& message) {
    CHECK(message_of([&] { part(run, b, 0, 4, false); }) == message);
    CHECK(message_of([&] { run.evaluate(b.y, {b.numbers, b.labels, b.signs}); }) == message);
  };
  b.labels[3] = 4;
  refuses("MultiTask: task 1: CrossEntropy: target: expected labels from 0 to 3, got 4");
  b.labels[3] = 0;
  b.signs(2, 0) = 0;
  refuses("MultiTask: task 2: Logistic: target: expected labels -1 or +1, got 0");
  b.signs(2, 0) = 1;
  std::get<0>(run.loss.tasks).columns = 3;
  refuses("MultiTask: columns of y: expected 8 (the sum of the columns of all tasks), got 7");
  std::get<0>(run.loss.tasks).columns = 0;
  refuses("MultiTask: columns of task 0: expected at least 1, got 0");
  std::get<0>(run.loss.tasks).columns = 2;
  std::get<2>(run.loss.tasks).weight = std::numeric_limits<double>::infinity();
  refuses("MultiTask: weight of task 2: expected a finite number, got inf");
  std::get<2>(run.loss.tasks).weight = 0;
  CHECK(same_bits(values(run.params), before));
  const auto three = View<const double, 2, Cpu>(b.y).rows(0, 3);
  CHECK(message_of([&] {
          run.step(three, {b.numbers, b.labels, b.signs});
        }) == "Trainer.step: x and target: expected the same number of items, got 3 and 4");
  part(run, b, 0, 4, false);
}

#if GATEFOLD_TEST_COUNTS
TEST_CASE("MultiTask: no step after the first allocates") {
  Cpu::Context ctx(2);
  const Batch<double> b(ctx, 6);
  Trainer run{ctx, model, losses(MeanOver::items), optim::Sgd{.lr = 0.3}, Seed{1}, Element<double>{}};
  part(run, b, 0, 6, false);
  const int before = support::allocations;
  for (int t = 0; t < 3; ++t) part(run, b, 0, 6, false);
  CHECK(support::allocations == before);
}
#endif
