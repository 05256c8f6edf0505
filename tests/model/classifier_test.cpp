#include "gatefold/model/classifier.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("labels_of_last (2): only the last item has the label") {
  CHECK(labels_of_last({4, 0}, 3) == std::vector<Index>{-1, -1, 4, -1, -1, 0});
  CHECK(labels_of_last({4, 0}, 1, -7) == std::vector<Index>{4, 0});
  CHECK(labels_of_last({}, 3).empty());
  CHECK_THROWS_AS(labels_of_last({1}, 0), ArgumentError);
}

TEST_CASE("classifier (1): equals the layers written out") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, classifier(Linear{.model_dim = 3, .output_dim = 2}, 4), 5);
  p.forward();
  const auto& [first, second, third] = p.params.layers;
  for (Index n = 0; n < 5; ++n) {
    double h[2], f[2];
    for (Index d = 0; d < 2; ++d) {
      h[d] = first.branch.expert.bias(0, d);
      for (Index k = 0; k < 3; ++k) h[d] += p.x(n, k) * first.branch.expert.weight(0, k, d);
    }
    for (Index d = 0; d < 2; ++d) {
      f[d] = second.branch.branch.expert.bias(0, d);
      for (Index k = 0; k < 2; ++k) f[d] += h[k] * second.branch.branch.expert.weight(0, k, d);
    }
    for (Index c = 0; c < 4; ++c) {
      double y = third.branch.expert.bias(0, c);
      for (Index k = 0; k < 2; ++k) y += f[k] * third.branch.expert.weight(0, k, c);
      CHECK(p.y(n, c) == doctest::Approx(y).epsilon(1e-13));
    }
  }
}

TEST_CASE("classifier: learns labels; an additional softmax keeps the loss high") {
  for (const bool twice : {false, true}) {
    CAPTURE(twice);
    Cpu::Context ctx(1);
    Trainer trainer{ctx, classifier(Embedding{.vocabulary = 6, .model_dim = 4}, 2, 0),
                    twice ? CrossEntropy::reference({.ignore = -1}) : CrossEntropy{.ignore = -1},
                    optim::AdamW{.lr = 0.05, .decay = 0}, Seed{3}};
    const std::vector<Index> ids{0, 1, 2, 3, 4, 5}, target = labels_of_last({1, 0, 1}, 2);
    double loss = 0;
    for (int s = 0; s < 200; ++s) loss = trainer.step(ids, target);
    CHECK(loss >= (twice ? 0.31326 : 0));
    CHECK(loss < (twice ? 0.33 : 0.01));
  }
}

TEST_CASE("classifier: needs at least one class") {
  CHECK(message_of([] { (void)classifier(Linear{.model_dim = 3}, 0); }) ==
        "classifier: classes: expected at least 1, got 0");
}
