// Trains a vision transformer with mixtures of experts on Fashion-MNIST. The model is V-MoE or Soft MoE, with or
// without momentum; V-MoE can also have a router of paper 002. Then measures the model's accuracy on images that are
// clean, corrupted in six ways with five severities, or attacked along the gradient of the model.
//
//   vision [train | evaluate] [--config FILE] [--run FOLDER] [--backend cpu|cuda]
//          [--router vmoe|similarity|attention|soft] [--update plain|heavy-ball|robust] …
//
// A run is a folder. A run that is killed and started again gives the same bits as an uninterrupted run, on any number
// of threads. Ctrl-C saves the state of the run and ends the program. Every option can also be in the configuration, a
// JSON file: {"dim": 64, …}.
// Exit code 0: done; 2: an option, file or size is invalid (one line on stderr says which); 1: any other error.
#include <CLI/App.hpp>
#include <filesystem>
#include <gatefold/core/error.hpp>
#include <string>

#include "../support/command_line.hpp"
#include "../training/config.hpp"
#include "options.hpp"
#include "report.hpp"
#include "run.hpp"
#include "train.hpp"

namespace {

using gatefold::Joined;
using images::Options;

void add_options(CLI::App& app, Options& o) {
  const auto positive = CLI::Range(images::Index(1), images::Index(1) << 20);
  const auto steps = CLI::Range(images::Index(1), images::Index(1) << 40);
  const auto any = CLI::Range(images::Index(0), images::Index(1) << 40);
  const auto add = [&](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->capture_default_str();
  };
  add("command", o.command, "what to do: train or evaluate")->check(CLI::IsMember({"train", "evaluate"}));
  add("--config", o.config, "JSON file with options; options on the command line override it");
  add("--run", o.run, "folder of the run: state, best model, metrics, pictures, report");
  app.add_flag("--fresh", o.fresh, "start a new run; deletes the files of the previous run in the folder");
  add("--data", o.data, "folder of the IDX files of Fashion-MNIST, .gz or plain");
  add("--train-images", o.train_images,
      "number of training images, the first of the file (0: all except the validation images)")
      ->check(any);
  app.add_flag("--flip", o.flip, "mirror half of the training images");
  add("--crop", o.crop, "shift training images by at most this number of pixels; zeros are outside (0: do not shift)")
      ->check(CLI::Range(images::Index(0), images::kSide - 1));
  add("--mixup", o.mixup, "mix pairs of training images with λ ~ Beta(mixup, mixup) (0: do not mix)")
      ->check(command_line::above_zero(true));
  add("--label-smoothing", o.label_smoothing, "share of the training target that is uniform over all classes")
      ->check(command_line::within(0, 1));
  add("--backend", o.backend, "backend that computes")->check(CLI::IsMember(images::backends()));
  add("--router", o.router, "router of the mixtures")
      ->check(CLI::IsMember({"vmoe", "similarity", "attention", "soft"}));
  add("--update", o.update, "residual update rule of the mixtures")
      ->check(CLI::IsMember({"plain", "heavy-ball", "robust"}));
  add("--mu", o.mu, "momentum μ of heavy-ball")->check(command_line::within(-1, 1));
  add("--gamma", o.gamma, "step size γ of heavy-ball")->check(command_line::above_zero());
  add("--tau", o.tau, "temperature τ of the router similarity")->check(command_line::above_zero());
  add("--patch", o.patch, "side of a patch, a divisor of 28")->check(CLI::IsMember({1, 2, 4, 7, 14, 28}));
  add("--depth", o.depth, "even number of layers; every second has a mixture (soft: all layers of the second half)")
      ->check(positive);
  add("--dim", o.dim, "width of a token")->check(positive);
  add("--heads", o.heads, "heads of attention, a divisor of dim")->check(positive);
  add("--experts", o.experts, "experts per mixture")->check(positive);
  add("--k", o.k, "experts per token (soft: slots per expert)")->check(positive);
  add("--hidden", o.hidden, "hidden width of an expert")->check(positive);
  add("--batch", o.batch, "images per step")->check(positive);
  add("--steps", o.steps, "steps of the run")->check(steps);
  add("--stop", o.stop, "stop after this step; a later run continues (0: do not stop)")->check(any);
  add("--warmup", o.warmup, "warm-up steps, in which the learning rate rises; then it falls as a cosine")->check(any);
  add("--lr", o.lr, "learning rate after warm-up")->check(command_line::above_zero());
  add("--decay", o.decay, "weight decay")->check(command_line::above_zero(true));
  add("--clip", o.clip, "largest norm of the gradient")->check(command_line::above_zero());
  add("--dropout", o.dropout, "dropout rate of the outputs of mixtures and dense layers")
      ->check(command_line::within(0, 0.99));
  add("--seed", o.seed, "seed; the same seed gives the same bits with any number of threads")
      ->check(command_line::seed());
  add("--log", o.log, "steps between two training losses in the metrics")->check(steps);
  add("--validate", o.validate, "steps between validations")->check(steps);
  add("--valid-images", o.valid_images,
      "number of training images, the last of the file, that are used only for validation")
      ->check(positive);
  add("--save", o.save, "steps between two saves of the state of the run")->check(steps);
  add("--threads", o.threads, "number of threads (0: one for each processor)")->check(CLI::Range(0, 1024));
  add("--test-images", o.test_images, "number of test images that are corrupted and attacked")->check(positive);
  add("--epsilon", o.epsilon, "largest change of a pixel by an attack; pixels are between 0 and 1")
      ->check(command_line::above_zero());
  add("--attack-steps", o.attack_steps, "steps of the attack PGD, each of size epsilon / 4")->check(positive);
  add("--baseline-steps", o.baseline_steps,
      "training steps of the linear classifier, the baseline of the corruption errors")
      ->check(positive);
}

/// @throws ArgumentError if two options contradict each other; the message names both
void expect_no_contradiction(const CLI::App& app, const Options& o) {
  using gatefold::expect;
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  for (const char* name : {"--mu", "--gamma"})
    expect(!given(name) || o.update == "heavy-ball", "options", name + 2, "update = heavy-ball, which has this option",
           o.update);
  expect(!given("--tau") || o.router == "similarity", "options", "tau", "router = similarity, which has this option",
         o.router);
  expect(o.update != "robust" || o.router == "vmoe", "options", "update",
         "plain or heavy-ball for the router " + o.router, o.update);
  expect(o.k <= o.experts || o.router == "soft", "options", "k", Joined{"at most experts = ", o.experts}, o.k);
  expect(o.dim % o.heads == 0, "options", "heads", Joined{"a divisor of dim = ", o.dim}, o.heads);
  expect(o.depth % 2 == 0, "options", "depth", "an even number", o.depth);
  expect(o.warmup < o.steps, "options", "warmup", Joined{"less than steps = ", o.steps}, o.warmup);
  expect(o.command == "train" || !o.fresh, "options", "fresh", "false for the command evaluate", "true");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.run = training::from_program("vision.run");
  CLI::App app("Train or evaluate a vision transformer with mixtures of experts on Fashion-MNIST");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_options(app, o);
  return command_line::run("vision", app, argc, argv, [&] {
    command_line::limit_memory();
    if (!o.config.empty()) training::read_config(app, o.config);
    const training::Folder folder = images::folder_of(o);
    const auto kept = o.command == "train" ? folder.state() : folder.best();
    if (!o.fresh && (o.command != "train" || std::filesystem::exists(kept)))
      training::on_run(o, [&] {
        training::adopt(kept, o, [&](const char* name) { return app.count(std::string("--") + name) > 0; });
      });
    expect_no_contradiction(app, o);
    o.command == "train" ? images::train(o) : images::evaluate_run(o);
  });
}
