// Measures a trained model, layer by layer: how evenly the items use the experts, and how clearly the gate decides
// between experts. Also measures how stable the first layer is.
#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers.hpp>
#include <vector>
using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Index items = 512, dim = 16, clusters = 4, experts = 4, depth = 3;
  const double mu = 0.7, gamma = 1;
  const Mixture mixture{WithAuxiliary<SoftmaxTopK, Balance>{.scores = {.experts = experts}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = dim, .hidden_dim = 32}};
  const Stack model{Residual{update::HeavyBall{.mu = mu, .gamma = gamma}, mixture}, depth};
  Trainer trainer{ctx, model, CrossEntropy{}, optim::AdamW{.lr = 3e-3}, Seed{42}};

  // The items lie around four centres, one for each class. The first four outputs of the model are the logits of the
  // classes.
  const auto centres = uniform_tensor<float>(ctx, Seed{1}, 1.0, clusters, dim);
  auto x = uniform_tensor<float>(ctx, Seed{2}, 0.3, items, dim);
  std::vector<Index> labels;
  for (Index n = 0; n < items; ++n) {
    labels.push_back(n % clusters);
    for (Index d = 0; d < dim; ++d) x(n, d) += centres(n % clusters, d);
  }
  std::vector<Tensor<Index, 2, Cpu>> before;
  for (int step = 0; step < 60; ++step) {
    before.clear();
    for_each_mixture(trainer.saved, [&](const auto& m) { before.push_back(metric::picks(ctx, m.plan, 2)); });
    trainer.step(x, labels);
  }

  // [snippet metrics]
  std::printf("accuracy %.3f  perplexity %.3f\n", metric::accuracy(ctx, trainer.output(), labels),
              metric::perplexity(ctx, trainer.output(), labels));
  std::size_t layer = 0;
  for_each_mixture(trainer.saved, [&](const auto& m) {
    const metric::Load load = metric::load(ctx, m.plan);
    const auto now = metric::picks(ctx, m.plan, 2);
    std::printf("layer %zu  load cv %.3f, largest share %.3f  entropy %.3f  dispatch entropy %.3f  fluctuation %.3f\n",
                layer, load.coefficient_of_variation(), load.largest_share(),
                metric::entropy(ctx, m.gate.probabilities.view()),
                metric::dispatch_entropy(ctx, m.plan, labels, clusters),
                metric::fluctuation(ctx, before[layer].view(), now.view()).set);
    ++layer;
  });
  // [/snippet]

  // [snippet all-experts]
  const auto& first = trainer.params.layers[0].branch;  // the first mixture; its items are x
  const auto outputs = expert_outputs(ctx, mixture, first, x.view());
  const SparsePlan<float, Cpu>& plan = trainer.saved.layers[0].calls[0].plan;
  const auto gap = metric::pareto_gap(ctx, outputs.view(), metric::gate_weights(ctx, plan));
  const auto ranks = metric::norm_rank(ctx, plan, outputs);
  std::printf("least norm %.3f  gate %.3f  cosine %.3f  picks of the largest outputs %.3f\n", gap.mean.least,
              gap.mean.normalised, gap.mean.cosine, ranks[0]);
  // [/snippet]

  // [snippet stability]
  const auto j = jacobian(ctx, mixture, first, x.view().rows(0, 1));  // ∂u/∂x at one item
  auto sigma = cpu::eigenvalues(j.view());
  for (auto& v : sigma) v = -v;  // stability() expects the eigenvalues of −∂u/∂x
  const metric::Stability s = metric::stability(sigma, mu, gamma);
  std::printf("%s: radius %.3f, real parts of sigma from %.3f to %.3f\n", s.stable ? "stable" : "not stable", s.radius,
              s.smallest, s.largest);
  // [/snippet]
}
