// A vision transformer with mixtures of experts on Fashion-MNIST: V-MoE with or without momentum and with the routers
// of paper 002, or Soft MoE. Trains it, then measures its accuracy on images that are clean, corrupted in six ways with
// five severities, or attacked along the gradient of the model.
//
//   vision [train | evaluate] [--config FILE] [--run FOLDER] [--backend cpu|cuda]
//          [--router vmoe|similarity|attention|soft] [--update plain|heavy-ball|robust] …
//
// A run is a folder. A run that is killed and started again gives the same bits as an uninterrupted run, on any number
// of threads. Ctrl-C saves and ends. Every option can also be in the configuration, a JSON file: {"dim": 64, …}.
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
  add("command", o.command, "train or evaluate")->check(CLI::IsMember({"train", "evaluate"}));
  add("--config", o.config, "file of JSON with options, which the command line goes before");
  add("--run", o.run, "folder of the run: its state, its best model, metrics, a picture");
  app.add_flag("--fresh", o.fresh, "begin the run again, forget what is in its folder");
  add("--data", o.data, "folder of the IDX files of Fashion-MNIST, .gz or plain");
  add("--train-images", o.train_images, "learn from the first so many images (0: all but those of validation)")
      ->check(any);
  add("--backend", o.backend, "where it computes")->check(CLI::IsMember(images::backends()));
  add("--router", o.router, "who goes where")->check(CLI::IsMember({"vmoe", "similarity", "attention", "soft"}));
  add("--update", o.update, "how a mixture enters the residual stream")
      ->check(CLI::IsMember({"plain", "heavy-ball", "robust"}));
  add("--mu", o.mu, "momentum of heavy-ball")->check(command_line::within(-1, 1));
  add("--gamma", o.gamma, "step of heavy-ball")->check(command_line::above_zero());
  add("--tau", o.tau, "temperature of similarity")->check(command_line::above_zero());
  add("--patch", o.patch, "side of a patch, a divisor of 28")->check(CLI::IsMember({1, 2, 4, 7, 14, 28}));
  add("--depth", o.depth, "layers, every second a mixture (soft: those of the second half)")->check(positive);
  add("--dim", o.dim, "width of a token")->check(positive);
  add("--heads", o.heads, "heads of attention, a divisor of dim")->check(positive);
  add("--experts", o.experts, "experts per mixture")->check(positive);
  add("--k", o.k, "experts per token (soft: slots per expert)")->check(positive);
  add("--hidden", o.hidden, "hidden width of an expert")->check(positive);
  add("--batch", o.batch, "images per step")->check(positive);
  add("--steps", o.steps, "steps of the run")->check(steps);
  add("--stop", o.stop, "leave after this step, to go on later (0: no)")->check(any);
  add("--warmup", o.warmup, "steps in which the learning rate rises; then it falls as a cosine")->check(any);
  add("--lr", o.lr, "learning rate after warm-up")->check(command_line::above_zero());
  add("--decay", o.decay, "weight decay")->check(command_line::above_zero(true));
  add("--clip", o.clip, "largest norm of the gradient")->check(command_line::above_zero());
  add("--dropout", o.dropout, "share of the values of mixtures and dense layers that is dropped")
      ->check(command_line::within(0, 0.99));
  add("--seed", o.seed, "the same seed gives the same bits, on any number of threads")->check(command_line::seed());
  add("--log", o.log, "steps between lines of metrics")->check(steps);
  add("--validate", o.validate, "steps between validations")->check(steps);
  add("--valid-images", o.valid_images, "training images that are kept for validation")->check(positive);
  add("--save", o.save, "steps between states")->check(steps);
  add("--threads", o.threads, "threads (0: all)")->check(CLI::Range(0, 1024));
  add("--test-images", o.test_images, "test images that are corrupted and attacked")->check(positive);
  add("--epsilon", o.epsilon, "how far an attack moves a pixel, which is between 0 and 1")
      ->check(command_line::above_zero());
  add("--attack-steps", o.attack_steps, "steps of pgd, each of epsilon / 4")->check(positive);
  add("--baseline-steps", o.baseline_steps, "steps of the linear classifier beside")->check(positive);
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
  CLI::App app("A vision transformer of mixtures of experts on Fashion-MNIST");
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
