#include "gatefold/loss/streamed_cross_entropy.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "support/counted_allocations.hpp"
#include "support/pass.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using support::message_of, support::same_bits, support::values;

namespace {

using Loss = StreamedCrossEntropy;

/// A model whose table [V, D] the loss may use.
template <class T>
struct Model {
  Table<T, Cpu> weight;
  GATEFOLD_PACK(weight)
};

/// A loss with its inputs and results.
template <class T>
struct Case {
  Loss loss;
  Loss::Params<T, Cpu> params, grads;
  Model<T> model, dmodel;
  Tensor<T, 2, Cpu> y, dy;
  Tensor<T, 1, Cpu> value;
  Loss::Saved<T, Cpu> saved;
  std::vector<Index> label;

  Case(Cpu::Context& ctx, const Loss& of, Index items)
      : loss(of),
        params(of.init<T, Cpu>(ctx, Seed{1})),
        grads(zeros_like(ctx, params)),
        model{uniform_tensor<T>(ctx, Seed{2}, 1, of.tied ? of.vocabulary : 0, of.model_dim)},
        dmodel(zeros_like(ctx, model)),
        y(uniform_tensor<T>(ctx, Seed{3}, 2, items, of.model_dim)),
        dy(items, of.model_dim),
        value(1) {
    for (Index n = 0; n < items; ++n) label.push_back((n * 977 + 5) % of.vocabulary);
  }
  T forward(Cpu::Context& ctx) {
    loss.forward(ctx, params, model, y, label, value, saved);
    return value(0);
  }
  void backward(Cpu::Context& ctx) { loss.backward(ctx, params, model, y, label, saved, dy, grads, dmodel); }

  double weight(Index v, Index d) const {
    return static_cast<double>(loss.tied ? model.weight(v, d) : params.weight(v, d));
  }
  /// Returns z[n, :] of equation (1) by a loop in double.
  std::vector<double> logits(Index n) const {
    std::vector<double> z;
    for (Index v = 0; v < loss.vocabulary; ++v) {
      double sum = loss.bias ? static_cast<double>(params.bias(v)) : 0;
      for (Index d = 0; d < loss.model_dim; ++d) sum += static_cast<double>(y(n, d)) * weight(v, d);
      z.push_back(sum);
    }
    return z;
  }
  Index label_of(Index n) const { return label[static_cast<std::size_t>(n)]; }
};

double log_sum_exp(const std::vector<double>& z) {
  const double top = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double v : z) sum += std::exp(v - top);
  return top + std::log(sum);
}

constexpr Index kMore = Loss::Blocks::columns + 3;  // more than one block of the vocabulary

}  // namespace

TEST_CASE_TEMPLATE("StreamedCrossEntropy (1): equals the equation for every option", T, float, double) {
  for (const bool tied : {false, true})
    for (const bool bias : {false, true})
      for (const Index vocabulary : {Index(1), Index(7), kMore}) {
        const Index items = 5, dim = 3;
        CAPTURE(tied);
        CAPTURE(bias);
        CAPTURE(vocabulary);
        Cpu::Context ctx(2, true);
        Case<T> c(ctx, {.vocabulary = vocabulary, .model_dim = dim, .bias = bias, .tied = tied, .ignore = -1}, items);
        c.label[2] = -1;
        const double got = static_cast<double>(c.forward(ctx));
        c.backward(ctx);
        double expected = 0;
        std::vector<double> dy(static_cast<std::size_t>(items * dim)), dw(static_cast<std::size_t>(vocabulary * dim)),
            db(static_cast<std::size_t>(bias ? vocabulary : 0));
        for (Index n = 0; n < items; ++n) {
          if (c.label_of(n) == -1) continue;
          const auto z = c.logits(n);
          const double normaliser = log_sum_exp(z);
          expected += (normaliser - z[static_cast<std::size_t>(c.label_of(n))]) / 4;
          for (Index v = 0; v < vocabulary; ++v) {
            const auto at = static_cast<std::size_t>(v);
            const double dz = (std::exp(z[at] - normaliser) - (v == c.label_of(n) ? 1 : 0)) / 4;
            if (bias) db[at] += dz;
            for (Index d = 0; d < dim; ++d) {
              dy[static_cast<std::size_t>(n * dim + d)] += dz * c.weight(v, d);
              dw[static_cast<std::size_t>(v * dim + d)] += dz * static_cast<double>(c.y(n, d));
            }
          }
        }
        const double tolerance = sizeof(T) == 4 ? 2e-5 : 1e-12;
        CHECK(std::abs(got - expected) <= tolerance * (1 + expected));
        CHECK(support::difference(values(c.dy), dy) < tolerance);
        CHECK(support::difference(tied ? values(c.dmodel) : values(c.grads.weight), dw) < tolerance);
        CHECK(support::difference(values(c.grads.bias), db) < tolerance);
        CHECK(c.grads.weight.size() == (tied ? 0 : vocabulary * dim));
      }
}

TEST_CASE("StreamedCrossEntropy: gradients of two blocks equal finite differences" *
          doctest::skip(support::slow_build)) {
  for (const bool tied : {false, true}) {
    Cpu::Context ctx(1);
    Case<double> c(ctx, {.vocabulary = kMore, .model_dim = 1, .tied = tied}, 2);
    c.label = {kMore - 1, 3};
    c.forward(ctx);
    c.backward(ctx);
    std::vector<check::GradientSlot> slots{{"y", c.y.data(), std::as_const(c.dy).data(), c.y.size()},
                                           {"bias", c.params.bias.data(), std::as_const(c.grads.bias).data(), kMore}};
    auto& weight = c.params.weight;
    if (tied) {
      slots.push_back({"table", c.model.weight.data(), std::as_const(c.dmodel.weight).data(), kMore});
    } else {
      slots.push_back({"weight", weight.data(), std::as_const(c.grads.weight).data(), kMore});
    }
    const auto report = check::compare_gradients(
        slots, [&] { return c.forward(ctx); }, [] { return 0; }, {.step = 1e-3});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE_TEMPLATE("StreamedCrossEntropy (2): label smoothing equals the equation", T, float, double) {
  for (const Index vocabulary : {Index(2), Index(7), kMore}) {
    const Index items = 4, dim = 3;
    const double epsilon = 0.3;
    CAPTURE(vocabulary);
    Cpu::Context ctx(2, true);
    Case<T> c(ctx, {.vocabulary = vocabulary, .model_dim = dim, .ignore = -1, .label_smoothing = epsilon}, items);
    c.label[2] = -1;
    const double got = static_cast<double>(c.forward(ctx));
    c.backward(ctx);
    Tensor<T, 1, Cpu> each(items);
    c.loss.each(ctx, c.params, c.model, c.y, c.label, each);
    double expected = 0;
    std::vector<double> dy(static_cast<std::size_t>(items * dim)), dw(static_cast<std::size_t>(vocabulary * dim)),
        db(static_cast<std::size_t>(vocabulary));
    const double tolerance = sizeof(T) == 4 ? 2e-5 : 1e-12;
    for (Index n = 0; n < items; ++n) {
      if (c.label_of(n) == -1) continue;
      const auto z = c.logits(n);
      const double normaliser = log_sum_exp(z), of_label = normaliser - z[static_cast<std::size_t>(c.label_of(n))];
      CHECK(std::abs(static_cast<double>(each(n)) - of_label) <= tolerance * (1 + of_label));  // without smoothing
      expected += (1 - epsilon) * of_label / 3;
      for (Index v = 0; v < vocabulary; ++v) {
        const auto at = static_cast<std::size_t>(v);
        const double of_class = epsilon / static_cast<double>(vocabulary);
        expected += of_class * (normaliser - z[at]) / 3;
        const double dz = (std::exp(z[at] - normaliser) - of_class - (v == c.label_of(n) ? 1 - epsilon : 0)) / 3;
        db[at] += dz;
        for (Index d = 0; d < dim; ++d) {
          dy[static_cast<std::size_t>(n * dim + d)] += dz * c.weight(v, d);
          dw[static_cast<std::size_t>(v * dim + d)] += dz * static_cast<double>(c.y(n, d));
        }
      }
    }
    CHECK(std::abs(got - expected) <= tolerance * (1 + expected));
    CHECK(support::difference(values(c.dy), dy) < tolerance);
    CHECK(support::difference(values(c.grads.weight), dw) < tolerance);
    CHECK(support::difference(values(c.grads.bias), db) < tolerance);
  }
}

TEST_CASE("StreamedCrossEntropy (2): smoothed gradients equal finite differences") {
  Cpu::Context ctx(1);
  Case<double> c(ctx, {.vocabulary = 11, .model_dim = 3, .ignore = 4, .label_smoothing = 0.2}, 5);
  c.label[1] = 4;
  c.forward(ctx);
  c.backward(ctx);
  auto& weight = c.params.weight;
  const std::vector<check::GradientSlot> slots{
      {"y", c.y.data(), std::as_const(c.dy).data(), c.y.size()},
      {"bias", c.params.bias.data(), std::as_const(c.grads.bias).data(), 11},
      {"weight", weight.data(), std::as_const(c.grads.weight).data(), weight.size()}};
  const auto report = check::compare_gradients(
      slots, [&] { return c.forward(ctx); }, [] { return 0; }, {.step = 1e-3});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("StreamedCrossEntropy: label_smoothing outside [0, 1] throws") {
  Cpu::Context ctx(1);
  Case<float> c(ctx, {.vocabulary = 3, .model_dim = 2, .label_smoothing = -1}, 2);
  CHECK(message_of([&] { c.forward(ctx); }) ==
        "StreamedCrossEntropy: label_smoothing: expected 0 <= label_smoothing <= 1, got -1");
}

TEST_CASE_TEMPLATE("StreamedCrossEntropy: one block equals CrossEntropy of its logits", T, float, double) {
  Cpu::Context ctx(1);
  const Index items = 9, vocabulary = 31;
  Case<T> c(ctx, {.vocabulary = vocabulary, .model_dim = 4}, items);
  const T got = c.forward(ctx);
  Tensor<T, 2, Cpu> z(items, vocabulary), log_p(items, vocabulary);
  Tensor<T, 1, Cpu> value(1), each(items);
  c.loss.logits(ctx, c.params, c.model, c.y, z);
  CrossEntropy{}.forward<T, Cpu>(ctx, z, c.label, value);
  CHECK(got == value(0));
  c.loss.log_probabilities(ctx, c.params, c.model, c.y, log_p);
  c.loss.each(ctx, c.params, c.model, c.y, c.label, each);
  const double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-13;
  double mean = 0;
  for (Index n = 0; n < items; ++n) {
    const auto naive = c.logits(n);
    const double normaliser = log_sum_exp(naive);
    for (Index v = 0; v < vocabulary; ++v) {
      CHECK(std::abs(static_cast<double>(z(n, v)) - naive[static_cast<std::size_t>(v)]) < tolerance);
      CHECK(std::abs(static_cast<double>(log_p(n, v)) - naive[static_cast<std::size_t>(v)] + normaliser) < tolerance);
    }
    CHECK(std::abs(static_cast<double>(each(n) + log_p(n, c.label_of(n)))) < tolerance);
    mean += static_cast<double>(each(n)) / static_cast<double>(items);
  }
  CHECK(mean == doctest::Approx(static_cast<double>(got)).epsilon(1e-6));
}

TEST_CASE("StreamedCrossEntropy: the number of threads changes no bit") {
  for (const auto& [items, vocabulary] : {std::pair{Loss::Blocks::rows + 5, Index(3)}, {Index(50), kMore}}) {
    const auto run = [items = items, vocabulary = vocabulary](int threads) {
      Cpu::Context ctx(threads, threads > 1);
      std::vector<double> all;
      for (const double smoothing : {0.0, 0.1}) {
        Case<float> c(ctx, {.vocabulary = vocabulary, .model_dim = 2, .ignore = 1, .label_smoothing = smoothing},
                      items);
        c.forward(ctx);
        c.backward(ctx);
        const auto some = values(c.value, c.dy, c.grads, c.saved.top, c.saved.total);
        all.insert(all.end(), some.begin(), some.end());
      }
      return all;
    };
    const auto one = run(1);
    for (const int threads : {2, 3, 8}) CHECK(same_bits(run(threads), one));
  }
}

TEST_CASE("StreamedCrossEntropy: an item's loss has equal bits in any batch") {
  Cpu::Context ctx(2, true);
  Case<float> c(ctx, {.vocabulary = kMore, .model_dim = 7}, 40);
  Tensor<float, 1, Cpu> all(40), alone(1);
  c.loss.each(ctx, c.params, c.model, c.y, c.label, all);
  for (const Index n : {0, 1, 20, 39}) {
    const std::vector<Index> label{c.label_of(n)};
    c.loss.each(ctx, c.params, c.model, c.y.view().rows(n, 1), label, alone);
    CHECK(alone(0) == all(n));
  }
}

TEST_CASE("StreamedCrossEntropy: memory does not grow with the vocabulary") {
  const Index items = 64, vocabulary = 30000;  // the logits would take 7.7 MB
  Cpu::Context ctx(2);
  Case<float> c(ctx, {.vocabulary = vocabulary, .model_dim = 4}, items);
  c.forward(ctx);
  c.backward(ctx);
  CHECK(ctx.capacity() < std::size_t(items * vocabulary) * sizeof(float) / 3);
  const int before = support::allocations;
  c.forward(ctx);
  c.backward(ctx);
  CHECK(support::allocations - before == 0);
}

#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("StreamedCrossEntropy: a vocabulary of 267,735 needs under 200 MB") {
  Cpu::Context ctx;
  Case<float> c(ctx, {.vocabulary = 267735, .model_dim = 352}, 4096);  // the logits would take 4.4 GB
  const double value = static_cast<double>(c.forward(ctx));
  c.backward(ctx);
  CHECK(ctx.capacity() < 200'000'000);
  CHECK(value == doctest::Approx(std::log(267735.0)).epsilon(0.05));  // before any training
  for (const double v : values(c.dy)) CHECK_MESSAGE(std::isfinite(v), v);
}
#endif

TEST_CASE_TEMPLATE("StreamedCrossEntropy: huge or equal logits neither overflow nor cancel", T, float, double) {
  Cpu::Context ctx(1);
  Case<T> c(ctx, {.vocabulary = kMore, .model_dim = 1}, 1);
  fill(ctx, c.params.weight.view(), 0);
  fill(ctx, c.params.bias.view(), T(3));
  c.label = {kMore - 1};
  CHECK(static_cast<double>(c.forward(ctx)) == doctest::Approx(std::log(static_cast<double>(kMore))).epsilon(1e-6));
  for (const Index best : {Index(0), kMore - 1}) {  // in the first block, and in the last
    c.params.bias(best) = 1000;
    c.label = {best};
    CHECK(c.forward(ctx) == 0);
    c.label = {best == 0 ? kMore - 1 : 0};
    CHECK(c.forward(ctx) == 997);
    set_zero(ctx, c.grads);
    c.backward(ctx);
    CHECK(c.grads.bias(best) == 1);
    CHECK(c.grads.bias(c.label_of(0)) == -1);
    c.params.bias(best) = 3;
  }
}

TEST_CASE_TEMPLATE("StreamedCrossEntropy: logits of minus infinity have probability 0", T, float, double) {
  Cpu::Context ctx(1);
  const T infinity = std::numeric_limits<T>::infinity();
  for (const bool last : {false, true}) {  // the other values are in the last block or in the first
    Case<T> c(ctx, {.vocabulary = kMore, .model_dim = 1}, 1);
    fill(ctx, c.params.weight.view(), 0);
    fill(ctx, c.params.bias.view(), -infinity);
    const Index one = last ? kMore - 1 : 0, other = last ? kMore - 2 : 1;
    c.params.bias(one) = c.params.bias(other) = 5;
    c.label = {one};
    CHECK(static_cast<double>(c.forward(ctx)) == doctest::Approx(std::log(2.0)).epsilon(1e-6));
    set_zero(ctx, c.grads);
    c.backward(ctx);
    for (Index v = 0; v < kMore; ++v) CHECK(c.grads.bias(v) == (v == one ? T(-0.5) : v == other ? T(0.5) : T(0)));
  }
}

TEST_CASE("StreamedCrossEntropy: ignored labels have no loss and no gradient") {
  for (const Index ignored : {-100, 3}) {  // no class, and a class
    const bool tied = ignored == 3;
    Cpu::Context ctx(1);
    const Loss loss{.vocabulary = 6, .model_dim = 3, .tied = tied, .ignore = ignored};
    Case<double> all(ctx, loss, 5), others(ctx, loss, 3);
    all.label = {ignored, 2, 0, ignored, 5};
    others.label = {2, 0, 5};
    for (Index n = 0; n < 3; ++n)
      for (Index d = 0; d < 3; ++d) others.y(n, d) = all.y(n == 2 ? 4 : n + 1, d);
    CHECK(all.forward(ctx) == doctest::Approx(others.forward(ctx)).epsilon(1e-14));
    all.backward(ctx);
    others.backward(ctx);
    CHECK(support::difference(values(all.grads, all.dmodel), values(others.grads, others.dmodel)) < 1e-14);
    for (Index d = 0; d < 3; ++d) {
      CHECK(all.dy(0, d) == 0);
      CHECK(all.dy(3, d) == 0);
      CHECK(all.dy(4, d) == doctest::Approx(others.dy(2, d)).epsilon(1e-14));
    }
    all.label.assign(5, ignored);
    set_zero(ctx, all.grads);
    set_zero(ctx, all.dmodel);
    CHECK(all.forward(ctx) == 0);
    all.backward(ctx);
    for (const double v : values(all.dy, all.grads, all.dmodel)) CHECK(v == 0);
  }
}

TEST_CASE("StreamedCrossEntropy: ignored items have dy = 0 for any values") {
  Cpu::Context ctx(1);
  for (const bool with_bias : {true, false})
    for (const bool tied : {true, false}) {
      const Loss loss{.vocabulary = 1500, .model_dim = 3, .bias = with_bias, .tied = tied, .ignore = -1};
      Case<float> clean(ctx, loss, 6), changed(ctx, loss, 6);
      clean.label = changed.label = {4, -1, 1400, -1, 7, -1};
      changed.y(1, 0) = std::numeric_limits<float>::quiet_NaN();
      changed.y(3, 1) = std::numeric_limits<float>::infinity();
      changed.y(5, 2) = 3e38f;  // makes its logits too large
      CHECK(changed.forward(ctx) == clean.forward(ctx));
      changed.backward(ctx);
      clean.backward(ctx);
      CHECK(same_bits(values(changed.dy, changed.grads, changed.dmodel), values(clean.dy, clean.grads, clean.dmodel)));
      for (const Index n : {1, 3, 5})
        for (Index d = 0; d < 3; ++d) CHECK(changed.dy(n, d) == 0);
    }
}

TEST_CASE("StreamedCrossEntropy: backward adds to gradients and overwrites dy") {
  Cpu::Context ctx(1);
  Case<double> c(ctx, {.vocabulary = kMore, .model_dim = 2}, 4);
  c.forward(ctx);
  c.backward(ctx);
  const auto dy = values(c.dy), grads = values(c.grads);
  c.backward(ctx);
  CHECK(same_bits(values(c.dy), dy));
  const auto twice = values(c.grads);
  for (std::size_t i = 0; i < grads.size(); ++i) CHECK(twice[i] == doctest::Approx(2 * grads[i]).epsilon(1e-12));
}

TEST_CASE("StreamedCrossEntropy: an empty batch has loss 0") {
  Cpu::Context ctx(1);
  Case<float> c(ctx, {.vocabulary = 5, .model_dim = 2}, 0);
  CHECK(c.forward(ctx) == 0);
  c.backward(ctx);
  for (const double v : values(c.grads)) CHECK(v == 0);
}

TEST_CASE("StreamedCrossEntropy: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { Loss{.model_dim = 2}.init<float, Cpu>(ctx, Seed{1}); }) ==
        "StreamedCrossEntropy.init: vocabulary: expected at least 1, got 0");
  CHECK(message_of([&] { Loss{.vocabulary = 2}.init<float, Cpu>(ctx, Seed{1}); }) ==
        "StreamedCrossEntropy.init: model_dim: expected at least 1, got 0");
  Case<float> c(ctx, {.vocabulary = 5, .model_dim = 2}, 3);
  c.label[1] = 5;
  CHECK(message_of([&] { c.forward(ctx); }) == "StreamedCrossEntropy: target: expected labels from 0 to 4, got 5");
  c.label = {0, 1};
  CHECK(message_of([&] { c.forward(ctx); }) == "StreamedCrossEntropy: target: expected [3], got [2]");
  c.label = {0, 1, 2};
  c.loss.model_dim = 3;
  CHECK(message_of([&] { c.forward(ctx); }) == "StreamedCrossEntropy: y: expected [?, 3], got [3, 2]");
  c.loss.model_dim = 2;
  c.loss.vocabulary = 6;
  CHECK(message_of([&] { c.forward(ctx); }) == "StreamedCrossEntropy: params.weight: expected [6, 2], got [5, 2]");
  c.loss.tied = true;
  c.params.weight.resize(0, 2);
  CHECK(message_of([&] { c.forward(ctx); }) == "StreamedCrossEntropy: params.bias: expected [6], got [5]");
  c.loss.bias = false;
  c.params.bias.resize(0);
  c.model.weight.resize(7, 2);
  CHECK(message_of([&] { c.forward(ctx); }) ==
        "StreamedCrossEntropy: the model's first Table: expected [6, 2], got [7, 2]");
  const Nothing<float, Cpu> none;
  CHECK(message_of([&] { c.loss.forward(ctx, c.params, none, c.y, c.label, c.value, c.saved); }) ==
        "StreamedCrossEntropy: model: expected a model with an Embedding, because the loss is tied to its Table, got "
        "no Embedding");
}
