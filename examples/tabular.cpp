// The program of docs/how-to/tabular.md: two tasks on rows with three id fields and two numeric columns.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
using namespace gatefold;
using Rows = Tensor<float, 2, Cpu>;

struct Visits {  // stands for your data: rows (user, item, weekday, price, age), and a target for each task
  Rows rows, bought, rating;
};
Visits draw(Cpu::Context& ctx, Seed seed, Index count) {
  Visits v{uniform_tensor<float>(ctx, seed, 1.0, count, 5), Rows(count, 1), Rows(count, 1)};
  const float ids[] = {60, 40, 7};
  for (Index n = 0; n < count; ++n) {
    for (int f = 0; f < 3; ++f) v.rows(n, f) = std::floor((v.rows(n, f) + 1) / 2 * ids[f]);
    const float taste = std::sin(v.rows(n, 0)) * std::cos(3 * v.rows(n, 1));
    v.bought(n, 0) = 2 * taste - v.rows(n, 3) + (v.rows(n, 2) >= 5 ? 0.5f : 0) > 0 ? 1 : -1;
    v.rating(n, 0) = taste + 0.3f * v.rows(n, 4);
  }
  return v;
}
int main() {
  // [snippet model]
  Cpu::Context ctx;
  const Mlp<Gelu> mlp{.model_dim = 32, .hidden_dim = 64};
  const Chain model{Fields{.vocabularies = {60, 40, 7}, .dim = 16, .numeric = 2},  // [N, 3 + 2] to [N, 3 * 16 + 2]
                    Linear{.model_dim = 50, .output_dim = 32},
                    Residual{update::Plain{}, PreNorm{LayerNorm{}, OneExpert{mlp}}},
                    MultiGate{SoftmaxDense{.scores = {.experts = 4}}, mlp, 2},  // to [N, 2 * 32]
                    Towers{Linear{.model_dim = 32, .output_dim = 1}, 2}};       // to [N, 2]
  const MultiTask losses{TaskLoss{1, Logistic{}}, TaskLoss{1, MeanSquaredError{}, 0.5}};
  Trainer trainer{ctx, model, losses, optim::AdamW{.lr = 3e-3, .decay = 1e-3}, Seed{1}};
  // [/snippet]
  // [snippet train]
  for (int step = 0; step <= 600; ++step) {
    const Visits batch = draw(ctx, Seed{2}.fork(static_cast<std::uint64_t>(step)), 256);
    const double loss = trainer.step(batch.rows, {batch.bought, batch.rating});
    if (step % 200 == 0) std::printf("step %d  loss %.2f\n", step, loss);
  }
  // [/snippet]
  // [snippet use]
  const auto path = std::filesystem::temp_directory_path() / "gatefold_tabular.safetensors";
  io::save(path, ctx, {}, io::Part{"", trainer.params});
  const auto params = io::load(path, ctx, model);
  const Visits unseen = draw(ctx, Seed{3}, 1000);
  Rows y(1000, 2);
  Carry<decltype(model), float, Cpu> carry;
  model.begin(ctx, params, 1000, carry);
  infer(model, ctx, params, unseen.rows, carry, y);
  Index right = 0;
  for (Index n = 0; n < 1000; ++n) right += (y(n, 0) > 0) == (unseen.bought(n, 0) > 0);
  std::printf("%d of 1000 right; probability %.2f, rating %.2f\n", int(right), 1 / (1 + std::exp(-y(0, 0))), y(0, 1));
  // [/snippet]
  std::filesystem::remove(path);
}
