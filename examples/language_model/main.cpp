// A language model of several blocks, each with attention and a mixture of experts. Trains on a text, compares its
// predictions on another part of the text with n-grams, and generates text.
//
//   language_model [train | evaluate | generate] [--config FILE] [--run FOLDER] [--data FOLDER | --text FILE] …
//
// A run is a folder. A run that is killed and started again gives the same bits as an uninterrupted run, on any number
// of threads. Ctrl-C saves and ends. With --shards N the program divides each batch into N parts (shards). mpirun -n R
// spreads the shards over R processes; the bits are the same for any R. Every option can also be in the configuration,
// a JSON file: {"dim": 128, …}.
// Exit code 0: done; 2: an option, file or size is invalid (one line on stderr says which); 1: any other error.
#include <CLI/App.hpp>
#include <filesystem>
#include <gatefold/core/error.hpp>
#include <string>

#include "../support/command_line.hpp"
#include "../support/weights.hpp"
#include "../training/config.hpp"
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
  add("command", o.command, "train, evaluate or generate")->check(CLI::IsMember({"train", "evaluate", "generate"}));
  add("--config", o.config, "file of JSON with options, which the command line goes before");
  add("--run", o.run, "folder of the run: its state, its best model, metrics, a picture");
  app.add_flag("--fresh", o.fresh, "begin the run again, forget what is in its folder");
  add("--data", o.data, "folder of train.txt, valid.txt and test.txt");
  add("--text", o.text, "one file instead, of whose lines the last are valid and test");
  add("--unit", o.unit, "what tokens are")->check(CLI::IsMember({"character", "word"}));
  add("--threshold", o.threshold, "tokens seen less often are one unknown token")->check(steps);
  add("--order", o.order, "tokens of the n-grams beside (0: 5 characters, 3 words)")->check(CLI::Range(0, 63));
  add("--backend", o.backend, "where it computes; …-bf16: experts multiply bfloat16 (heavy-ball alone)")
      ->check(CLI::IsMember(language::backends()));
  add("--update", o.update, "how a mixture enters the residual stream")->check(CLI::IsMember(language::updates()));
  add("--mu", o.mu, "momentum")->check(command_line::within(-1, 1));
  add("--gamma", o.gamma, "step along the momentum")->check(command_line::above_zero());
  add("--blocks", o.blocks, "attention and mixture, so often")->check(positive);
  add("--dim", o.dim, "width of a token")->check(positive);
  add("--heads", o.heads, "heads of attention, a divisor of dim")->check(positive);
  add("--experts", o.experts, "experts per mixture")->check(positive);
  add("--k", o.k, "experts per token")->check(positive);
  add("--hidden", o.hidden, "hidden width of an expert")->check(positive);
  add("--dropout", o.dropout, "of attention and of what mixtures give")->check(command_line::within(0, 0.99));
  add("--expert-dropout", o.expert_dropout, "of the hidden values of experts")->check(command_line::within(0, 0.99));
  add("--length", o.length, "tokens of a sequence, and as far as attention reaches")->check(positive);
  add("--batch", o.batch, "sequences per step")->check(positive);
  add("--accumulate", o.accumulate, "parts of a batch, one after the other: less memory, a divisor of batch")
      ->check(positive);
  app.add_flag("--recompute", o.recompute, "blocks run again in backward: less memory, the same bits");
  add("--steps", o.steps, "steps of the run")->check(steps);
  add("--stop", o.stop, "leave after this step, to go on later (0: no)")->check(any);
  add("--warmup", o.warmup, "steps in which the learning rate rises; then it falls as a cosine")->check(any);
  add("--lr", o.lr, "learning rate after warm-up")->check(command_line::above_zero());
  add("--decay", o.decay, "weight decay")->check(command_line::above_zero(true));
  add("--decayed", o.decayed, "what decays: all, weights (no bias, no gain) or those but the embedding")
      ->check(CLI::IsMember({"all", "weights", "no-embedding"}));
  add("--clip", o.clip, "largest norm of the gradient")->check(command_line::above_zero());
  add("--balance", o.balance, "weight of the balance loss")->check(command_line::above_zero(true));
  add("--seed", o.seed, "the same seed gives the same bits, on any number of threads")->check(command_line::seed());
  add("--log", o.log, "steps between lines of metrics")->check(steps);
  add("--validate", o.validate, "steps between validations")->check(steps);
  add("--valid-tokens", o.valid_tokens, "tokens of valid that they read")->check(steps);
  add("--save", o.save, "steps between states")->check(steps);
  add("--shards", o.shards, "parts of a batch that mpirun -n 1 … shards processes share: the same bits (0: no parts)")
      ->check(CLI::Range(language::Index(0), language::Index(4096)));
  add("--rebalance", o.rebalance, "steps after which experts move to where their loads are even (0: they stay)")
      ->check(any);
  add("--threads", o.threads, "threads (0: all)")->check(CLI::Range(0, 1024));
  add("--weights", o.weights, "for evaluate and generate: pack the weights in this type")
      ->check(CLI::IsMember(command_line::forms_of_weights()));
  add("--prompt", o.prompt, "what the model goes on from");
  add("--tokens", o.tokens, "tokens that it writes")->check(any);
  app.add_flag("--no-cache", o.no_cache, "read all again for each token, instead of keeping keys and values");
  add("--temperature", o.temperature, "of its choices (0: the likeliest)")->check(command_line::above_zero(true));
  add("--top-p", o.top_p, "probability of the tokens that it chooses among")->check(command_line::within(0, 1));
  add("--draw", o.draw, "seed of its choices")->check(command_line::seed());
  add("--log-probabilities", o.log_probabilities, "where to write ln p of every token of test but the first");
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
  CLI::App app("A language model of attention and mixtures of experts");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_options(app, o);
  return command_line::run("language_model", app, argc, argv, [&] {
    command_line::limit_memory();
    if (!o.config.empty()) training::read_config(app, o.config);
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
