#include "gatefold/distributed/loss_of_shards.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "gatefold/distributed/shards.hpp"
#include "gatefold/gatefold.hpp"
#include "support/nan_of_nothing.hpp"

using namespace gatefold;

namespace {

/// Compares value and adjoint on shards of different sizes with those of all items at once.
template <class L>
void check_loss(const L& loss, const auto& target_of) {
  constexpr Index items = 11, width = 4;
  Cpu::Context one(1);
  const auto y = uniform_tensor<double>(one, Seed{1}, 2, items, width);
  const auto target = target_of(one, items, width);
  Tensor<double, 1, Cpu> value(1);
  Tensor<double, 2, Cpu> dy(items, width);
  forward(loss, one, y, target, value);
  backward(loss, one, y, target, dy);
  for (Index shards : {1, 2, 4, 15}) {
    std::atomic<int> wrong = 0;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto mine = shard.part_of(items);
      const dist::LossOfShards of_all{loss, &shard};
      typename L::template Target<double, Cpu> all = target;
      const auto part = all.rows(mine.first, mine.count);
      Tensor<double, 1, Cpu> v(1);
      Tensor<double, 2, Cpu> d(mine.count, width);
      forward(of_all, ctx, y.view().rows(mine.first, mine.count), part, v);
      backward(of_all, ctx, y.view().rows(mine.first, mine.count), part, d);
      if (!(std::abs(v(0) - value(0)) <= 1e-14 * std::abs(value(0)))) ++wrong;
      for (Index n = 0; n < mine.count; ++n)
        for (Index c = 0; c < width; ++c)
          if (!(std::abs(d(n, c) - dy(mine.first + n, c)) <= 1e-15)) ++wrong;
      if (of_all.no_batch(mine.count)) ++wrong;
      if (!of_all.no_batch(0)) ++wrong;
    });
    CAPTURE(shards);
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("LossOfShards: throws without a shard") {
  Cpu::Context ctx(1);
  dist::Shard<dist::Alone>* const none = nullptr;
  const Tensor<float, 2, Cpu> y(2, 3);
  const std::vector<Index> target{0, 1};
  Tensor<float, 1, Cpu> value(1);
  CHECK_THROWS_WITH_AS(forward(dist::LossOfShards{CrossEntropy{}, none}, ctx, y, target, value),
                       "LossOfShards: shard: expected the address of a shard of dist::run, got null", ArgumentError);
}

TEST_CASE("LossOfShards: takes the mean over the targets of all shards") {
  const auto labels = [](Cpu::Context&, Index items, Index width) {
    std::vector<Index> all;
    for (Index n = 0; n < items; ++n) all.push_back(n < 5 ? -1 : n % width);  // the loss ignores the first 5 targets
    return all;
  };
  check_loss(CrossEntropy{.ignore = -1}, labels);
  check_loss(support::NanOfNothing{}, labels);
  check_loss(MeanSquaredError{}, [](Cpu::Context& ctx, Index items, Index width) {
    return uniform_tensor<double>(ctx, Seed{2}, 1, items, width);
  });
}

TEST_CASE("LossOfShards: MultiTask losses equal those of one process") {
  constexpr Index items = 11;
  Cpu::Context one(1);
  const auto y = uniform_tensor<double>(one, Seed{1}, 2, items, 4),
             numbers = uniform_tensor<double>(one, Seed{2}, 1, items, 1);
  for (const bool ignores : {false, true}) {
    std::vector<Index> labels;
    for (Index n = 0; n < items; ++n) labels.push_back(ignores && n < 5 ? -1 : n % 3);
    const MultiTask losses{TaskLoss{1, MeanSquaredError{}, 0.5},
                           TaskLoss{3, CrossEntropy{.ignore = -1}, 2.0, ignores ? MeanOver::items : MeanOver::targets}};
    Tensor<double, 1, Cpu> value(1);
    Tensor<double, 2, Cpu> dy(items, 4);
    forward(losses, one, y, {numbers, labels}, value);
    backward(losses, one, y, {numbers, labels}, dy);
    for (Index shards : {1, 2, 4, 15}) {
      std::atomic<int> wrong = 0;
      dist::Alone world;
      dist::run(world, shards, [&](auto& shard) {
        Cpu::Context ctx(1);
        const auto mine = shard.part_of(items);
        const dist::LossOfShards of_all{losses, &shard};
        const auto some = numbers.view().rows(mine.first, mine.count);
        const auto some_labels = View<const Index, 1, Cpu>(labels).rows(mine.first, mine.count);
        Tensor<double, 1, Cpu> v(1);
        Tensor<double, 2, Cpu> d(mine.count, 4);
        forward(of_all, ctx, y.view().rows(mine.first, mine.count), {some, some_labels}, v);
        backward(of_all, ctx, y.view().rows(mine.first, mine.count), {some, some_labels}, d);
        if (!(std::abs(v(0) - value(0)) <= 1e-14)) ++wrong;
        for (Index n = 0; n < mine.count; ++n)
          for (Index c = 0; c < 4; ++c)
            if (!(std::abs(d(n, c) - dy(mine.first + n, c)) <= 1e-15)) ++wrong;
      });
      CAPTURE(shards);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("LossOfShards: gradients of a learned loss add up over shards") {
  constexpr Index items = 10, dim = 3, words = 6;
  const StreamedCrossEntropy loss{.vocabulary = words, .model_dim = dim, .ignore = -1};
  using Loss = StreamedCrossEntropy;
  Cpu::Context one(1);
  const auto y = uniform_tensor<double>(one, Seed{1}, 1, items, dim);
  const std::vector<Index> labels{-1, -1, -1, 5, 0, 2, 2, 1, -1, 3};
  const auto params = init_params<double, Cpu>(loss, one, Seed{2});
  Nothing<double, Cpu> model, dmodel;
  const auto run = [&](const auto& of, auto& ctx, Index first, Index count, auto& dy, auto& grads) {
    Tensor<double, 1, Cpu> value(1);
    Saved<Loss, double, Cpu> saved;
    const View<const Index, 1, Cpu> target = View<const Index, 1, Cpu>(labels).rows(first, count);
    const auto part = y.view().rows(first, count);
    of.template forward<double, Cpu>(ctx, params, model, part, target, value, saved);
    of.template backward<double, Cpu>(ctx, params, model, part, target, saved, dy, grads, dmodel);
    return value(0);
  };
  Tensor<double, 2, Cpu> dy(items, dim);
  auto grads = zeros_like(one, params);
  const double value = run(loss, one, 0, items, dy, grads);
  for (Index shards : {1, 2, 3, 4}) {  // of four shards, the first has no target that counts
    std::vector<std::vector<double>> parts(static_cast<std::size_t>(shards));
    std::atomic<int> wrong = 0;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto mine = shard.part_of(items);
      Tensor<double, 2, Cpu> d(mine.count, dim);
      auto g = zeros_like(ctx, params);
      for_each_tensor([&](const Name&, auto& t) { fill(ctx, t.view(), 0.25); }, g);
      const dist::LossOfShards of_all{support::LearnedNanOfNothing{loss}, &shard};
      const double found = run(of_all, ctx, mine.first, mine.count, d, g);
      if (!(std::abs(found - value) <= 1e-14)) ++wrong;
      for (Index n = 0; n < mine.count; ++n)
        for (Index k = 0; k < dim; ++k)
          if (!(std::abs(d(n, k) - dy(mine.first + n, k)) <= 1e-15)) ++wrong;
      auto& to = parts[static_cast<std::size_t>(shard.index())];
      for_each_tensor([&](const Name&, const auto& t) { to.insert(to.end(), t.data(), t.data() + t.size()); }, g);
    });
    std::size_t i = 0;
    for_each_tensor(
        [&](const Name&, const auto& t) {
          for (Index k = 0; k < t.size(); ++k, ++i) {
            double sum = 0;
            for (const auto& part : parts) sum += part[i] - 0.25;
            if (!(std::abs(sum - t.data()[k]) <= 1e-14)) ++wrong;
          }
        },
        grads);
    CAPTURE(shards);
    CHECK(wrong == 0);
  }
}
