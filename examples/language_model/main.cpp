// A language model of several blocks, each with attention and a mixture of experts. Trains on a text, compares its
// predictions on another part of the text with n-grams, and generates text.
//
//   language_model [train | evaluate | generate] [--config NAME | FILE] [--run FOLDER] [--data FOLDER | --text FILE] …
//
// A run is a folder. A run that is killed and started again gives the same bits as an uninterrupted run, on any number
// of threads. Ctrl-C saves the state of the run and ends the program. With --shards N the program divides each batch
// into N parts (shards). mpirun -n R spreads the shards over R processes; the bits are the same for any R. Every option
// can also be in the configuration, a JSON file: {"dim": 128, …}.
// Exit code 0: done; 2: an option, file or size is invalid (one line on stderr says which); 1: any other error.
#include <CLI/App.hpp>
#include <filesystem>
#include <gatefold/core/error.hpp>
#include <string>

#include "../support/command_line.hpp"
#include "../support/weights.hpp"
#include "../training/config.hpp"
#include "configs.hpp"
#include "options.hpp"
#include "report.hpp"
#include "run.hpp"
#include "sharded.hpp"
#include "text.hpp"
#include "train.hpp"

namespace {

using gatefold::Joined;
using language::Options;

void add_options(CLI::App& app, Options& o) {
  const auto positive = CLI::Range(language::Index(1), language::Index(1) << 20);
  const auto steps = CLI::Range(language::Index(1), language::Index(1) << 40);
  const auto any = CLI::Range(language::Index(0), language::Index(1) << 40);
  const auto add = [&](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->capture_default_str();
  };
  add("command", o.command, "what to do: train, evaluate or generate")
      ->check(CLI::IsMember({"train", "evaluate", "generate"}));
  add("--config", o.config,
      "small, medium, large or glam (models of paper 001), or a JSON file with options; the command line overrides it");
  add("--run", o.run, "folder of the run: state, best model, metrics, pictures, report");
  app.add_flag("--fresh", o.fresh, "start a new run; deletes the files of the previous run in the folder");
  app.add_flag("--dry-run", o.dry_run, "print the sizes, the time of a step and of the whole run; write nothing");
  add("--data", o.data, "folder that contains train.txt, valid.txt and test.txt");
  add("--text", o.text, "one text file instead of --data; its last lines are the validation and test texts");
  add("--unit", o.unit, "what a token is")->check(CLI::IsMember({"character", "word"}));
  add("--threshold", o.threshold, "tokens that occur less often are replaced by the unknown token")->check(steps);
  add("--order", o.order, "order of the n-grams for comparison (0: 5 for characters, 3 for words)")
      ->check(CLI::Range(0, 63));
  add("--backend", o.backend, "backend; with …-bf16, experts multiply in bfloat16 (only with --update heavy-ball)")
      ->check(CLI::IsMember(language::backends()));
  add("--layout", o.layout, "switch: a mixture in every block; glam: a dense block after every block with a mixture")
      ->check(CLI::IsMember(language::layouts()));
  add("--initial", o.initial,
      "initial weights of experts and embedding: fan-in: U(±1/√width), N(0, 0.1²); reference: paper 001's code")
      ->check(CLI::IsMember(language::initials()));
  add("--update", o.update, "residual update rule of the mixtures")->check(CLI::IsMember(language::updates()));
  add("--mu", o.mu, "momentum μ of heavy-ball, adam and nesterov")->check(command_line::within(-1, 1));
  add("--gamma", o.gamma, "step size γ of heavy-ball, adam, nesterov and time-varying")
      ->check(command_line::above_zero());
  add("--blocks", o.blocks, "number of blocks, each with attention and a mixture; dense blocks do not count")
      ->check(positive);
  add("--dim", o.dim, "width of a token")->check(positive);
  add("--heads", o.heads, "heads of attention, a divisor of dim")->check(positive);
  add("--experts", o.experts, "experts per mixture")->check(positive);
  add("--k", o.k, "experts per token")->check(positive);
  add("--hidden", o.hidden, "hidden width of an expert")->check(positive);
  add("--dropout", o.dropout, "dropout rate of attention probabilities and of outputs of mixtures")
      ->check(command_line::within(0, 0.99));
  add("--expert-dropout", o.expert_dropout, "dropout rate of the hidden values of experts")
      ->check(command_line::within(0, 0.99));
  add("--length", o.length, "tokens of a sequence and of the attention window")->check(positive);
  add("--batch", o.batch, "sequences per step")->check(positive);
  add("--accumulate", o.accumulate, "parts of a batch, computed one after another to save memory; a divisor of batch")
      ->check(positive);
  app.add_flag("--recompute", o.recompute, "run blocks again in backward; needs less memory and gives the same bits");
  add("--steps", o.steps, "steps of the run")->check(steps);
  add("--stop", o.stop, "stop after this step; a later run continues (0: do not stop)")->check(any);
  add("--warmup", o.warmup, "warm-up steps, in which the learning rate rises; then it falls as a cosine")->check(any);
  add("--lr", o.lr, "learning rate after warm-up")->check(command_line::above_zero());
  add("--floor", o.floor, "learning rate at the end, divided by --lr (1: constant after the warm-up)")
      ->check(command_line::within(0, 1));
  add("--decay", o.decay, "weight decay")->check(command_line::above_zero(true));
  add("--decayed", o.decayed, "tensors that decay: all, weights (no biases, no gains) or no-embedding (other weights)")
      ->check(CLI::IsMember({"all", "weights", "no-embedding"}));
  add("--clip", o.clip, "largest norm of the gradient")->check(command_line::above_zero());
  add("--balance", o.balance, "weight of the balance loss")->check(command_line::above_zero(true));
  add("--seed", o.seed, "seed; the same seed gives the same bits with any number of threads")
      ->check(command_line::seed());
  add("--log", o.log, "steps between two training losses in the metrics")->check(steps);
  add("--validate", o.validate, "steps between validations")->check(steps);
  add("--valid-tokens", o.valid_tokens, "tokens of the validation text that a validation reads")->check(steps);
  add("--save", o.save, "steps between two saves of the state of the run")->check(steps);
  add("--shards", o.shards,
      "shards (parts of a batch); 1 to SHARDS processes of mpirun give the same bits (0: no shards)")
      ->check(CLI::Range(language::Index(0), language::Index(4096)));
  add("--rebalance", o.rebalance, "steps between moves of experts that balance the load of the shards (0: no moves)")
      ->check(any);
  add("--threads", o.threads, "number of threads (0: one for each processor)")->check(CLI::Range(0, 1024));
  add("--weights", o.weights, "for evaluate and generate: pack the weights in this type")
      ->check(CLI::IsMember(command_line::forms_of_weights()));
  add("--prompt", o.prompt, "text that the generated text continues");
  add("--tokens", o.tokens, "number of generated tokens")->check(any);
  app.add_flag("--no-cache", o.no_cache, "read all tokens again for each new token instead of caching keys and values");
  add("--temperature", o.temperature, "temperature of sampling (0: the most probable token)")
      ->check(command_line::above_zero(true));
  add("--top-p", o.top_p, "sample only among the fewest tokens with at least this total probability")
      ->check(command_line::within(0, 1));
  add("--draw", o.draw, "seed of sampling")->check(command_line::seed());
  add("--log-probabilities", o.log_probabilities, "file for ln p of each token of the test text except the first");
}

/// @throws ArgumentError if two options contradict each other; the message names both
void expect_no_contradiction(const CLI::App& app, const Options& o) {
  using gatefold::expect, language::is_text;
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  expect(!(given("--data") && given("--text")), "options", "text", "one of data and text", "both");
  expect(!given("--mu") || language::has_mu(o.update), "options", "mu", "an update with this option", o.update);
  expect(!given("--gamma") || language::has_gamma(o.update), "options", "gamma", "an update with this option",
         o.update);
  expect(!o.backend.ends_with("-bf16") || o.update == "heavy-ball", "options", "backend",
         Joined{"cpu or cuda for the update ", o.update}, o.backend);
  expect(o.k <= o.experts, "options", "k", Joined{"at most experts = ", o.experts}, o.k);
  expect(o.dim % o.heads == 0, "options", "heads", Joined{"a divisor of dim = ", o.dim}, o.heads);
  expect(o.batch % o.accumulate == 0, "options", "accumulate", Joined{"a divisor of batch = ", o.batch}, o.accumulate);
  expect(o.rebalance == 0 || o.shards > 0, "options", "rebalance", "0 without shards", o.rebalance);
  expect(o.rebalance == 0 || !o.recompute, "options", "rebalance",
         "0 with recompute, which does not count the slots of an expert", o.rebalance);
  expect(!o.dry_run || (o.shards == 0 && o.command == "train"), "options", "dry-run",
         "false with shards and for the commands evaluate and generate", "true");
  expect(o.warmup < o.steps, "options", "warmup", Joined{"less than steps = ", o.steps}, o.warmup);
  expect(is_text(o.prompt), "options", "prompt", "UTF-8", "other bytes");
  expect(o.command != "train" || o.weights == "float", "options", "weights", "float for the command train", o.weights);
  expect(o.command == "train" || !o.fresh, "options", "fresh", "false for the commands evaluate and generate", "true");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.run = training::from_program("language_model.run");
  o.data = training::from_program("../../text/bible");
  CLI::App app("Train or evaluate a language model with mixtures of experts, or generate text with it");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_options(app, o);
  return command_line::run("language_model", app, argc, argv, [&] {
    command_line::limit_memory();
    if (const auto known = language::kConfigs.find(o.config); known != language::kConfigs.end()) {
      training::parse_config(app, o.config, known->second);
    } else if (!o.config.empty()) {
      training::read_config(app, o.config);
    }
    const training::Folder folder = language::folder_of(o);
    const auto kept = o.command == "train" ? folder.state() : folder.best();
    if (!o.fresh && (o.command != "train" || std::filesystem::exists(kept)))
      training::on_run(o, [&] {
        training::adopt(kept, o, [&](const char* name) { return app.count(std::string("--") + name) > 0; });
      });
    expect_no_contradiction(app, o);
    if (o.command == "evaluate") return language::evaluate(o);
    if (o.command == "generate") return language::generate(o);
    if (o.shards > 0) return language::train_on_shards(o);
    language::train(o, {}, language::make_model);
  });
}
