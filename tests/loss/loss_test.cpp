#include "gatefold/loss/loss.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/train/checkpoint.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;

namespace {

template <class T>
struct Counting {
  T operator()(Index i) const { return static_cast<T>(i); }
};

template <class T>
T mean(Index terms, Index count) {
  Cpu::Context ctx(2);
  Tensor<T, 1, Cpu> value(1);
  value(0) = 77;  // overwritten
  mean_loss<T, Cpu>(ctx, terms, {count}, Counting<T>{}, value);
  return value(0);
}

}  // namespace

TEST_CASE_TEMPLATE("mean_loss: sums the terms and divides by the count", T, float, double) {
  CHECK(mean<T>(5, 5) == 2);
  CHECK(mean<T>(5, 2) == 5);
  CHECK(mean<T>(1, 1) == 0);
  CHECK(mean<T>(4097, 4096) == T(4096.0 * 4097.0 / 2 / 4096));
}

TEST_CASE_TEMPLATE("mean_loss: equal terms give that term, for any count", T, float, double) {
  Cpu::Context ctx(2);
  Tensor<T, 1, Cpu> value(1);
  const T term = static_cast<T>(std::log(10.0));
  for (const Index terms : {1, 1000, 4096, 100000}) {
    const std::vector<T> all(static_cast<std::size_t>(terms), term);
    mean_loss<T, Cpu>(ctx, terms, {terms}, functor::Term<T>{all.data()}, value);
    // Each term of a block and each block adds at most half an ulp of the sum in double.
    CHECK(std::abs(static_cast<double>(value(0) - term)) <=
          std::max<double>(std::numeric_limits<T>::epsilon(), 4200 * 0x1p-53) * static_cast<double>(term));
  }
}

TEST_CASE_TEMPLATE("share_of_mean: divides by the number of items that count", T, float, double) {
  Cpu::Context ctx(1);
  const auto mark = ctx.mark();
  const std::vector<Index> label{3, -1, 0, -1, 7};
  const auto share = [&](Index ignore) {
    return static_cast<double>(detail_::loss::share_of_mean<Cpu>(ctx, label, ignore).template of<T>());
  };
  CHECK(share(ignore_none) == static_cast<double>(T(1) / 5));
  CHECK(share(-1) == static_cast<double>(T(1) / 3));
  CHECK(share(2) == static_cast<double>(T(1) / 5));
  const std::vector<Index> none(4, -1);
  CHECK((detail_::loss::share_of_mean<Cpu>(ctx, none, -1).template of<T>()) == 1);  // a share of a sum that is 0
}

TEST_CASE_TEMPLATE("mean_loss: no items give 0", T, float, double) {
  CHECK(mean<T>(0, 0) == 0);
  CHECK(mean<T>(0, 3) == 0);
}

TEST_CASE("mean_loss: a value tensor without exactly one element throws") {
  Cpu::Context ctx(1);
  Tensor<double, 1, Cpu> two(2), none(0);
  CHECK_THROWS_WITH_AS((mean_loss<double, Cpu>(ctx, 3, {3}, Counting<double>{}, two)),
                       "mean_loss: value: expected [1], got [2]", ArgumentError);
  CHECK_THROWS_AS((mean_loss<double, Cpu>(ctx, 3, {3}, Counting<double>{}, none)), ArgumentError);
}

TEST_CASE_TEMPLATE("loss: T and B are deduced from the outputs", T, float, double) {
  Cpu::Context ctx(1);
  const auto y = uniform_tensor<T>(ctx, Seed{1}, 1, 3, 2), target = uniform_tensor<T>(ctx, Seed{2}, 1, 3, 2);
  Tensor<T, 1, Cpu> value(1), of_views(1);
  Tensor<T, 2, Cpu> dy(3, 2);
  forward(MeanSquaredError{}, ctx, y, target, value);
  forward(MeanSquaredError{}, ctx, y.view(), target, of_views);
  backward(MeanSquaredError{}, ctx, y, target, dy);
  double mean = 0;
  for (Index n = 0; n < 3; ++n)
    for (Index d = 0; d < 2; ++d) {
      const double difference = double(y(n, d)) - double(target(n, d));
      mean += difference * difference / 6;
      CHECK(double(dy(n, d)) == doctest::Approx(difference / 3).epsilon(1e-6));
    }
  CHECK(double(value(0)) == doctest::Approx(mean).epsilon(1e-6));
  CHECK(of_views(0) == value(0));
}

using support::message_of, support::same_bits, support::values;

namespace {

constexpr Index kVocabulary = 13, kDim = 4;

auto body() { return Chain{Embedding{.vocabulary = kVocabulary, .model_dim = kDim}, Linear{.model_dim = kDim}}; }
StreamedCrossEntropy head(bool tied = false) {
  return {.vocabulary = kVocabulary, .model_dim = kDim, .tied = tied, .ignore = -1};
}
const optim::Clipped kOptimizer{optim::AdamW{.lr = 0.05, .decay = 0.1}, 0.7};

struct Batch {
  std::vector<Index> ids, next;
};
Batch batch(std::uint64_t step) {
  Batch b;
  for (std::uint64_t n = 0; n < 12; ++n) {
    b.ids.push_back(static_cast<Index>(uniform<double>(Seed{5}, step, n) * kVocabulary));
    b.next.push_back(n % 5 == 3 ? -1 : (b.ids.back() * 3 + 1) % kVocabulary);
  }
  return b;
}
template <class T, class L>
auto trainer(Cpu::Context& ctx, const L& loss) {
  return Trainer{ctx, body(), loss, kOptimizer, Seed{1}, Element<T>{}};
}

std::string names_of(const auto& pack) {
  std::string names;
  for_each_tensor([&](const Name& name, const auto&) { names += name.str() + " "; }, pack);
  return names;
}

}  // namespace

TEST_CASE("ModelAndLoss: a loss without parameters keeps the model's Params") {
  using Of = decltype(trainer<float>(std::declval<Cpu::Context&>(), CrossEntropy{}));
  static_assert(std::is_same_v<Of::Params, Params<decltype(body()), float, Cpu>>);
}

TEST_CASE("ModelAndLoss: StreamedCrossEntropy trains like Linear and CrossEntropy") {
  Cpu::Context ctx(2);
  auto streamed = trainer<double>(ctx, head());
  Trainer plain{ctx,
                Chain{body(), Linear{.model_dim = kDim, .output_dim = kVocabulary}},
                CrossEntropy{.ignore = -1},
                kOptimizer,
                Seed{1},
                Element<double>{}};
  auto& [of_body, of_output] = plain.params.layers;
  copy_pack(ctx, std::as_const(streamed.params.model), of_body);
  for (Index v = 0; v < kVocabulary; ++v) {
    of_output.branch.expert.bias(0, v) = streamed.params.loss.bias(v);
    for (Index d = 0; d < kDim; ++d) of_output.branch.expert.weight(0, d, v) = streamed.params.loss.weight(v, d);
  }
  for (std::uint64_t t = 0; t < 4; ++t) {
    const Batch b = batch(t);
    CHECK(streamed.step(b.ids, b.next) == doctest::Approx(plain.step(b.ids, b.next)).epsilon(1e-13));
  }
  CHECK(support::difference(values(streamed.params.model), values(of_body)) < 1e-11);
  for (Index v = 0; v < kVocabulary; ++v)
    for (Index d = 0; d < kDim; ++d)
      CHECK(streamed.params.loss.weight(v, d) ==
            doctest::Approx(of_output.branch.expert.weight(0, d, v)).epsilon(1e-11));
  const Batch b = batch(9);
  CHECK(streamed.evaluate(b.ids, b.next) == doctest::Approx(plain.evaluate(b.ids, b.next)).epsilon(1e-12));
  CHECK(streamed.output().extent(1) == kDim);
}

TEST_CASE("ModelAndLoss: a tied model and loss share one table") {
  Cpu::Context ctx(1);
  auto tied = trainer<double>(ctx, head(true));
  CHECK(names_of(tied.params) ==
        "model.layers.0.weight model.layers.0.place model.layers.1.weight model.layers.1.bias loss.weight loss.bias ");
  CHECK(tied.params.loss.weight.size() == 0);
  CHECK(count_values(tied.params) == kVocabulary * kDim + kDim * kDim + kDim + kVocabulary);

  // The gradient of the table is the sum of the gradients that two tables with the same values get in model and loss.
  auto apart = trainer<double>(ctx, head(false));
  copy_pack(ctx, std::as_const(tied.params.model), apart.params.model);
  auto& table = std::get<0>(apart.params.model.layers).branch.weight;
  copy(ctx, std::as_const(table).view(), apart.params.loss.weight.view());
  copy(ctx, std::as_const(tied.params.loss.bias).view(), apart.params.loss.bias.view());
  const Batch b = batch(1);
  apart.optimizer.norm = tied.optimizer.norm = 1e9;
  CHECK(tied.step(b.ids, b.next) == doctest::Approx(apart.step(b.ids, b.next)).epsilon(1e-14));
  const auto& both = std::get<0>(tied.grads.model.layers).branch.weight;
  CHECK(both.all_touched());
  const auto& in = std::get<0>(apart.grads.model.layers).branch.weight;
  CHECK(!in.all_touched());
  for (Index v = 0; v < kVocabulary; ++v)
    for (Index d = 0; d < kDim; ++d)
      CHECK(both(v, d) == doctest::Approx(in(v, d) + apart.grads.loss.weight(v, d)).epsilon(1e-13));
  double last = 0, first = tied.evaluate(b.ids, b.next);
  for (int t = 0; t < 60; ++t) last = tied.step(b.ids, b.next);
  CHECK(last < first / 2);
}

TEST_CASE("ModelAndLoss: threads change no bit; steps allocate nothing") {
  for (const bool tied : {false, true}) {
    const auto run = [&](int threads) {
      Cpu::Context ctx(threads, threads > 1);
      auto t = trainer<float>(ctx, head(tied));
      std::vector<Batch> batches{batch(0), batch(1), batch(2)};
      t.step(batches[0].ids, batches[0].next);
      t.evaluate(batches[0].ids, batches[0].next);
      const int before = support::allocations;
      for (const Batch& b : batches) {
        t.step(b.ids, b.next);
        t.evaluate(b.ids, b.next);
      }
      CHECK(support::allocations - before == 0);
      return values(t.params, t.state);
    };
    const auto one = run(1);
    for (const int threads : {2, 3, 8}) CHECK(same_bits(run(threads), one));
  }
}

TEST_CASE("ModelAndLoss: a checkpoint restores model and loss exactly") {
  const auto path = std::filesystem::temp_directory_path() / "gatefold_model_and_loss.safetensors";
  for (const bool tied : {false, true}) {
    Cpu::Context ctx(2), later(1);
    auto whole = trainer<float>(ctx, head(tied));
    auto resumed = trainer<float>(later, head(tied));
    const std::vector<Batch> batches{batch(0), batch(1), batch(2)};
    for (const Batch& b : batches) whole.step(b.ids, b.next);
    save_checkpoint(path, whole);
    load_checkpoint(path, resumed);
    CHECK(same_bits(values(resumed.params, resumed.state), values(whole.params, whole.state)));
    for (const Batch& b : batches) CHECK(resumed.step(b.ids, b.next) == whole.step(b.ids, b.next));
    CHECK(same_bits(values(resumed.params, resumed.state), values(whole.params, whole.state)));
  }
  std::filesystem::remove(path);
}

TEST_CASE("ModelAndLoss: ignored labels give loss 0 and keep all parameters") {
  Cpu::Context ctx(1);
  auto t = trainer<float>(ctx, head());
  t.optimizer.optimizer.decay = 0;
  const Batch b = batch(0);
  const std::vector<Index> none(b.ids.size(), -1);
  const auto before = values(t.params);
  CHECK(t.step(b.ids, none) == 0);
  CHECK(t.evaluate(b.ids, none) == 0);
  CHECK(values(t.params) == before);
}

TEST_CASE("ModelAndLoss: a non-finite loss gradient takes no step") {
  Cpu::Context ctx(1);
  auto t = trainer<float>(ctx, head());
  t.params.loss.bias(3) = std::nanf("");
  const auto before = values(t.state);
  const Batch b = batch(0);
  CHECK_THROWS_AS(t.step(b.ids, b.next), NotFiniteError);
  CHECK(same_bits(values(t.state), before));
}
