#include <algorithm>

#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

TEST_CASE_TEMPLATE("a training run: the number of threads changes no bit", T, float, double) {
  constexpr Index items = 1000, classes = 7;
  Cpu::Context one(1);
  const auto x = uniform_tensor<T>(one, Seed{1}, 1, items, dim);
  std::vector<Index> labels;
  for (Index n = 0; n < items; ++n) labels.push_back(n % classes);
  const auto run = [&](const auto& optimizer, int threads, bool eager) {
    Cpu::Context ctx(threads, eager);
    const Chain model{Mixture{top_2, Linear{.model_dim = dim}}, Linear{.model_dim = dim, .output_dim = classes}};
    Trainer trainer{ctx, model, CrossEntropy{}, optimizer, Seed{2}, Element<T>{}};
    std::vector<double> all;
    for (int step = 0; step < 3; ++step) all.push_back(trainer.step(x, labels));
    for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); },
                    trainer.params);
    return all;
  };
  const auto check = [&](const auto& optimizer) {
    const auto expected = run(optimizer, 1, false);
    for (const int threads : {2, 3, 8}) {
      CAPTURE(threads);
      for (const bool eager : {false, true}) {
        const auto other = run(optimizer, threads, eager);
        CHECK(difference("run", expected.data(), other.data(), expected.size()) == "");
      }
    }
  };
  check(optim::Scheduled{optim::Clipped{optim::AdamW{.lr = 0.01, .decay = 0.1}, 0.1},
                         optim::WarmupCosine{.warmup = 2, .total = 9}});
  check(optim::Sgd{.lr = 0.1, .momentum = 0.9});
  check(optim::NormalizedGd{.lr = 0.1, .per_expert = false});
}

TEST_CASE_TEMPLATE("losses: the number of threads changes no bit", T, float, double) {
  const auto check = [](const auto& loss, Index items, Index width, const auto& target_of) {
    Cpu::Context one(1);
    const auto y = uniform_tensor<T>(one, Seed{1}, 3, items, width);
    const auto target = target_of(items, width);
    const auto run = [&](int threads, bool eager) {
      Cpu::Context ctx(threads, eager);
      Tensor<T, 1, Cpu> value(1);
      Tensor<T, 2, Cpu> dy(items, width);
      loss.template forward<T, Cpu>(ctx, y, target, value);
      loss.template backward<T, Cpu>(ctx, y, target, dy);
      std::vector<double> all(dy.data(), dy.data() + dy.size());
      all.push_back(static_cast<double>(value(0)));
      return all;
    };
    const auto expected = run(1, false);
    for (const int threads : {2, 3, 8})
      for (const bool eager : {false, true}) {
        const auto other = run(threads, eager);
        CHECK(difference("loss", expected.data(), other.data(), expected.size()) == "");
      }
  };
  const auto random = [](Index items, Index width) {
    Cpu::Context one(1);
    return uniform_tensor<T>(one, Seed{2}, 1, items, width);
  };
  const auto signs = [](Index items, Index width) {
    Cpu::Context one(1);
    auto t = constant_tensor<T>(one, 1, items, width);
    for (Index i = 0; i < t.size(); i += 2) t.data()[i] = -1;
    return t;
  };
  const auto labels = [](Index items, Index width) {
    std::vector<Index> all;
    for (Index n = 0; n < items; ++n) all.push_back(n % width);
    return all;
  };
  const auto between = [](Index items, Index width) {  // 0 and 1, too
    Cpu::Context one(1);
    auto t = uniform_tensor<T>(one, Seed{3}, 1, items, width);
    for (Index i = 0; i < t.size(); ++i) t.data()[i] = std::min<T>(std::max<T>(t.data()[i], 0), T(0.5)) * 2;
    return t;
  };
  for (const Index items : {few, Index(30000)}) {
    check(MeanSquaredError{}, items, 11, random);
    check(Logistic{}, items, 1, signs);
    check(CrossEntropy{}, items, 11, labels);
    check(CrossEntropy{.label_smoothing = 0.1}, items, 11, labels);
    check(SoftCrossEntropy{}, items, 11, between);
    check(SigmoidCrossEntropy{}, items, 11, between);
  }
}
