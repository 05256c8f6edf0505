// The program of docs/tutorials/daily_tools.md: small tools for training a model, for example averages, frozen parts
// and several tasks.
#include <cstdio>
#include <filesystem>
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
#include <iostream>
#include <vector>
using namespace gatefold;

namespace {

/// Makes a model of two mixture layers and a linear layer with 3 outputs.
auto model_with(Index experts) {
  return Chain{
      Stack{Residual{update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                                              Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}}},
            2},
      Linear{.model_dim = 8, .output_dim = 3}};
}

}  // namespace

int main() {
  Cpu::Context ctx(1);
  const auto model = model_with(4);
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 32, 8);
  const auto target = uniform_tensor<float>(ctx, Seed{2}, 1.0, 32, 3);
  const auto folder = std::filesystem::temp_directory_path() / "gatefold_daily_tools";
  std::filesystem::create_directories(folder);

  // [snippet summary]
  std::cout << summary(model);
  // [/snippet]

  // [snippet average]
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::Averaged{optim::AdamW{.lr = 1e-3}, 0.9}, Seed{1}};
  for (int step = 0; step < 100; ++step) trainer.step(x, target);
  swap_averages(trainer);  // trainer.params are the averages
  const double averaged = trainer.evaluate(x, target);
  swap_averages(trainer);  // trainer.params are the trained parameters again
  std::printf("loss %.4f, with averaged parameters %.4f\n", trainer.evaluate(x, target), averaged);
  // [/snippet]

  // [snippet find]
  const auto router = find<2>(trainer.params, "layers.0.layers.1.branch.gate.scores.weight");  // [D, E]
  std::printf("router of layer 1: weight (0, 0) is %.3f\n", static_cast<double>(router(0, 0)));
  // [/snippet]

  // [snippet clone]
  auto best = clone(ctx, trainer.params);
  trainer.step(x, target);
  copy_pack(ctx, best, trainer.params);  // back to the best parameters
  // [/snippet]

  // [snippet load]
  io::save(folder / "model.safetensors", ctx, {}, io::Part{"", trainer.params});
  const auto loaded = io::load(folder / "model.safetensors", ctx, model);
  // [/snippet]
  std::printf("loaded %d values\n", static_cast<int>(count_values(loaded)));

  // [snippet not-trained]
  Trainer routers{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 1e-3}, Seed{1}, NotTrained{"**.branch.expert"}};
  copy_pack(ctx, trainer.params, routers.params);
  routers.step(x, target);  // experts keep their values
  // [/snippet]

  // [snippet expert-rates]
  const auto factor = [](const Name&, Index expert) { return expert < 2 ? 0.1 : 1.0; };
  Trainer slower{ctx, model, MeanSquaredError{}, optim::ExpertRates{optim::AdamW{.lr = 1e-3}, factor}, Seed{1}};
  slower.step(x, target);
  // [/snippet]

  // [snippet tasks]
  const MultiTask losses{TaskLoss{1, MeanSquaredError{}, 0.5}, TaskLoss{2, CrossEntropy{.ignore = -1}}};
  Trainer tasks{ctx, model, losses, optim::AdamW{.lr = 1e-3}, Seed{1}};
  const auto prices = uniform_tensor<float>(ctx, Seed{3}, 1.0, 32, 1);  // [N, 1] for output 0
  const std::vector<Index> labels(32, 1);                               // [N] for outputs 1 and 2
  std::printf("loss of both tasks %.4f\n", tasks.step(x, {prices, labels}));
  // [/snippet]

  // [snippet experts]
  const auto small_model = model_with(3);
  Trainer small{ctx, small_model, MeanSquaredError{}, optim::Averaged{optim::AdamW{.lr = 1e-3}, 0.9}, Seed{1}};
  select_experts(trainer, {0, 2, 3}, small);  // experts 0, 2 and 3, with their optimizer state
  small.step(x, target);
  // [/snippet]

  // [snippet upcycle]
  const Residual dense{update::Plain{}, OneExpert{Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}}};
  const Residual mixture{update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                                  Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}}};
  const auto of_dense = dense.init<float, Cpu>(ctx, Seed{1});  // or the parameters of a trained dense model
  const auto of_mixture = upcycle(ctx, mixture, of_dense, Seed{2}, {.noise = 0.01});
  // [/snippet]
  std::printf("%d values become %d\n", static_cast<int>(count_values(of_dense)),
              static_cast<int>(count_values(of_mixture)));
  std::filesystem::remove_all(folder);
}
