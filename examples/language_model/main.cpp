// A small language model on the characters of a text: attention, then a mixture of experts, twice. Begins with
// a row for each character and for its place. Goes on from a checkpoint at any step.
//
//   language_model [--text FILE] [--steps 300] [--save FILE] [--load FILE] …
//
// Exit code 0: done; 2: an option, file or size does not fit (one line on stderr says which); 1: anything else.
#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "../support/command_line.hpp"

namespace {

using namespace gatefold;

struct Options {
  std::string text = "/usr/share/common-licenses/GPL-3", save{}, load{};
  Index steps = 300;
  double lr = 3e-3;
  std::uint64_t seed = 1;
  int threads = 0;
};

constexpr Index kLength = 32, kSequences = 8, kDim = 32;

/// A text as numbers of the characters that occur in it.
struct Text {
  std::vector<Index> ids{};
  std::string alphabet{};

  explicit Text(const std::string& path) {
    RegularFile file(path);
    std::string all(file.size(), '\0');
    file.read(all.data(), all.size(), 0);
    if (static_cast<Index>(all.size()) <= kLength)
      throw FileError(path + ": expected more than " + std::to_string(kLength) + " characters, got " +
                      std::to_string(all.size()));
    std::array<Index, 256> id{};
    id.fill(-1);
    for (const char c : all) {
      Index& of = id[static_cast<unsigned char>(c)];
      if (of < 0) {
        of = static_cast<Index>(alphabet.size());
        alphabet += c;
      }
      ids.push_back(of);
    }
  }
  Index characters() const { return static_cast<Index>(alphabet.size()); }
  Index size() const { return static_cast<Index>(ids.size()); }
};

auto make_model(Index characters) {
  const WithAuxiliary<SoftmaxTopK, Balance> gate{
      .scores = {.experts = 4}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.01}}};
  return Chain{
      Embedding{.vocabulary = characters, .model_dim = kDim, .places = kLength, .initial = Initial::normal(0.1)},
      Stack{Block{Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = kDim, .heads = 2}}},
                  Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, Mixture{gate, Mlp<Gelu>{kDim, 2 * kDim}}}}},
            2},
      LayerNorm{kDim}};
}

void train(const Options& o) {
  const Text text(o.text);
  Cpu::Context ctx(o.threads);
  const auto model = make_model(text.characters());
  const StreamedCrossEntropy loss_of{.vocabulary = text.characters(), .model_dim = kDim};
  Trainer trainer{ctx, model, loss_of, optim::Clipped{optim::AdamW{.lr = o.lr}, 1.0}, Seed{o.seed}};
  if (!o.load.empty()) load_checkpoint(o.load, trainer);

  Extra<decltype(model), float, Cpu> extra;
  std::get<1>(extra.layers).attention.length = kLength;
  std::vector<Index> x(static_cast<std::size_t>(kSequences * kLength)), next(x.size());
  while (trainer.state.step < o.steps) {
    // Where sequences begin is a function of the seed and the step alone, so that a run can go on.
    const auto step = static_cast<std::uint64_t>(trainer.state.step);
    for (Index s = 0; s < kSequences; ++s) {
      const double u = uniform<double>(trainer.seed.fork(1), step, static_cast<std::uint64_t>(s));
      const Index* ids = text.ids.data() + static_cast<Index>(u * static_cast<double>(text.size() - kLength));
      std::copy_n(ids, kLength, x.begin() + s * kLength);
      std::copy_n(ids + 1, kLength, next.begin() + s * kLength);
    }
    const double loss = trainer.step(x, next, extra);
    if (trainer.state.step % 10 == 0 || trainer.state.step == o.steps)
      std::printf("step %4lld  loss %.6f  balance %.6f\n", static_cast<long long>(trainer.state.step), loss,
                  trainer.auxiliary());
  }
  if (!o.save.empty()) save_checkpoint(o.save, trainer, {{"alphabet", std::to_string(text.characters())}});

  // The text goes on as the model would have it.
  std::vector<Index> window(text.ids.begin(), text.ids.begin() + kLength);
  Tensor<float, 2, Cpu> y(kLength, kDim), z(1, text.characters());
  const auto& output = trainer.params.loss;
  std::string said;
  for (int i = 0; i < 60; ++i) {
    trainer.infer(window, y, extra);
    Cpu::gemm<float>(ctx, y.view().rows(kLength - 1, 1), false, output.weight.view(), true, false, z.view(),
                     fn::Store{});
    Index best = 0;
    for (Index c = 1; c < text.characters(); ++c)
      if (z(0, c) + output.bias(c) > z(0, best) + output.bias(best)) best = c;
    const char c = text.alphabet[static_cast<std::size_t>(best)];
    said += c == '\n' ? ' ' : c;
    window.erase(window.begin());
    window.push_back(best);
  }
  std::printf("it goes on: %s\n", said.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("A small language model on the characters of a text");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--text", o.text, "file to learn from")->capture_default_str();
  app.add_option("--steps", o.steps, "steps, those of --load among them")
      ->check(CLI::Range(Index(0), Index(1) << 40))
      ->capture_default_str();
  app.add_option("--lr", o.lr, "learning rate")->check(command_line::above_zero())->capture_default_str();
  app.add_option("--seed", o.seed,
                 "the same seed gives the same bits, on any number of threads (with --load: the checkpoint's)")
      ->check(command_line::seed())
      ->capture_default_str();
  app.add_option("--threads", o.threads, "threads (0: all)")->check(CLI::Range(0, 1024))->capture_default_str();
  app.add_option("--save", o.save, "where to write the checkpoint")->capture_default_str();
  app.add_option("--load", o.load, "checkpoint to go on from");
  return command_line::run("language_model", app, argc, argv, [&] {
    command_line::limit_memory();
    train(o);
  });
}
