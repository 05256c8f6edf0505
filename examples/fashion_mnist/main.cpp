// Trains a mixture-of-experts image classifier on Fashion-MNIST, on the CPU or a GPU, without Python.
//
//   fashion_mnist [--backend cpu|cpu-bf16|cuda] [--gate softmax|dense] [--update plain|heavy-ball] [--experts 8] …
//
// Exit code 0: done; 2: an option, file or checkpoint is invalid (one line on stderr says which); 1: any other error.

#include <CLI/App.hpp>
#include <filesystem>
#include <gatefold/core/error.hpp>
#include <gatefold/io/replacement.hpp>
#include <set>
#include <string>

#include "../support/command_line.hpp"
#include "options.hpp"

namespace {

/// Returns a path next to the program, so that a run leaves no file outside the build folder.
std::string beside_program(const char* name) {
  std::error_code error;
  const auto program = std::filesystem::canonical("/proc/self/exe", error);
  return error ? std::string(name) : (program.parent_path() / name).string();
}

}  // namespace

int main(int argc, char** argv) {
  fashion::Options o;
  o.json = beside_program("fashion_mnist.json");
  o.picture = beside_program("fashion_mnist.svg");
  o.save = beside_program("fashion_mnist.safetensors");

  CLI::App app("Train a mixture-of-experts classifier on Fashion-MNIST");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto positive = CLI::Range(fashion::Index(1), fashion::Index(1) << 20);
  app.add_option("--backend", o.backend,
                 "backend; with cpu-bf16, experts multiply in bfloat16; all backends read the same checkpoints")
      ->check(CLI::IsMember({"cpu", "cpu-bf16", "cuda"}))
      ->capture_default_str();
  app.add_option("--gate", o.gate,
                 "gate that chooses the experts of a token: softmax (the k best experts) or dense (all experts)")
      ->check(CLI::IsMember({"softmax", "dense"}))
      ->capture_default_str();
  app.add_option("--update", o.update, "residual update rule of the mixtures")
      ->check(CLI::IsMember({"plain", "heavy-ball"}))
      ->capture_default_str();
  app.add_option("--experts", o.experts, "experts per layer")->check(positive)->capture_default_str();
  app.add_option("--k", o.k, "experts per token")->check(positive)->capture_default_str();
  app.add_option("--layers", o.layers, "residual mixture layers")->check(positive)->capture_default_str();
  app.add_option("--dim", o.dim, "width of a token")->check(positive)->capture_default_str();
  app.add_option("--hidden", o.hidden, "hidden width of an expert")->check(positive)->capture_default_str();
  app.add_option("--patch", o.patch, "side of a patch, a divisor of 28")
      ->check(CLI::IsMember({1, 2, 4, 7, 14, 28}))
      ->capture_default_str();
  app.add_option("--epochs", o.epochs,
                 "passes over the training images, including those before --load (0: only evaluate)")
      ->check(CLI::Range(fashion::Index(0), fashion::Index(1) << 20))
      ->capture_default_str();
  app.add_option("--steps", o.steps,
                 "number of steps after which training stops, including those before --load (0: all epochs)")
      ->check(CLI::Range(fashion::Index(0), fashion::Index(1) << 40))
      ->capture_default_str();
  app.add_option("--batch", o.batch, "images per step")->check(positive)->capture_default_str();
  app.add_option("--lr", o.lr, "learning rate after warm-up")->check(command_line::above_zero())->capture_default_str();
  app.add_option("--balance", o.balance, "weight of the balance loss")
      ->check(command_line::above_zero(true))
      ->capture_default_str();
  app.add_option("--seed", o.seed,
                 "seed; the same seed gives the same bits with any number of threads (--load: seed of the checkpoint)")
      ->check(command_line::seed())
      ->capture_default_str();
  app.add_option("--threads", o.threads, "number of threads of the CPU backend (0: one for each processor)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--shards", o.shards,
                 "shards (parts of a batch); 1 to SHARDS processes of mpirun give the same bits (0: no shards)")
      ->check(CLI::Range(fashion::Index(0), fashion::Index(4096)))
      ->capture_default_str();
  app.add_option("--data", o.data, "folder of the IDX files, .gz or plain")->capture_default_str();
  app.add_option("--json", o.json, "where to write metrics (\"\": nowhere)")->capture_default_str();
  app.add_option("--picture", o.picture, "where to write the picture, SVG (\"\": nowhere)")->capture_default_str();
  app.add_option("--save", o.save, "where to write the checkpoint (\"\": nowhere)")->capture_default_str();
  app.add_option("--load", o.load, "continue training from this checkpoint (with --epochs 0: only evaluate it)");

  return command_line::run("fashion_mnist", app, argc, argv, [&] {
    using gatefold::expect;
    expect(o.k <= o.experts, "fashion_mnist", "--k", gatefold::Joined{"at most --experts = ", o.experts}, o.k);
    // The paths are checked before the training, because minutes of training should not end with a file that cannot be
    // written.
    std::set<std::filesystem::path> files;
    for (const std::string* path : {&o.json, &o.picture, &o.save}) {
      if (path->empty()) continue;
      const auto file = std::filesystem::absolute(*path).lexically_normal();
      if (!std::filesystem::is_directory(file.parent_path()))
        throw gatefold::FileError(*path + ": there is no folder " + file.parent_path().string());
      if (std::filesystem::is_directory(file)) throw gatefold::FileError(*path + ": is a folder");
      expect(files.insert(file).second, "fashion_mnist", "--json, --picture, --save", "different files", *path);
      const gatefold::io::Replacement tried(*path);
    }
    expect(o.shards == 0 || (o.backend == "cpu" && o.update == "heavy-ball"), "fashion_mnist", "--shards",
           "backend cpu and update heavy-ball", o.backend + " and " + o.update);
    if (o.backend != "cuda") command_line::limit_memory();
    if (o.backend == "cpu" && o.update == "heavy-ball" && o.gate == "softmax" && o.shards == 0)
      return fashion::train_default(o);
#ifdef FASHION_VARIANTS
    if (o.backend == "cpu-bf16")
      return o.update == "plain" ? fashion::train_plain_bf16(o) : fashion::train_heavy_ball_bf16(o);
    if (o.backend == "cpu" && o.shards > 0) return fashion::train_heavy_ball_on_shards(o);
    if (o.backend == "cpu") return o.update == "plain" ? fashion::train_plain(o) : fashion::train_dense(o);
#endif
    if (o.backend == "cuda") {
#ifdef FASHION_CUDA
      return o.update == "plain" ? fashion::train_plain_cuda(o) : fashion::train_heavy_ball_cuda(o);
#else
      throw gatefold::ArgumentError("--backend cuda: this program was built without CUDA: configure with "
                                    "-DGATEFOLD_CUDA=ON");
#endif
    }
    throw gatefold::ArgumentError(
        "--backend, --gate, --update, --shards: this program has only the default model: "
        "configure with -DFASHION_MNIST_VARIANTS=ON");
  });
}
