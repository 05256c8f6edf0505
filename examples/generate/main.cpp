// Reads a decoder from a folder of Hugging Face's hub, optionally trains it on ids of tokens and saves it in another
// folder, and generates tokens. The ids of the tokens are on stdout, in one line for each prompt; all other lines are
// on stderr. ids.py converts text to ids and back.
// Exit code 0: done; 2: an option, file or size is invalid (one line on stderr says which); 1: any other error.
#include <CLI/App.hpp>

#include "../support/command_line.hpp"
#include "../support/weights.hpp"
#include "run.hpp"

int main(int argc, char** argv) {
  generating::Options o;
  CLI::App app{"Generate tokens with a decoder from a folder of the Hugging Face Hub, or train and save it"};
  const auto add = [&](const char* name, auto& value, const char* text) { return app.add_option(name, value, text); };
  const auto whole = [](long long least) { return CLI::Range(least, 1LL << 40); };
  auto* model = add("--model", o.model, "folder with config.json and model.safetensors (none: a tiny random decoder)");
  auto* prompt = add("--prompt-ids", o.prompt, "ids that the generated tokens continue, separated by commas");
  add("--prompts", o.prompts, "file with a prompt in each line, ids separated by spaces")
      ->check(CLI::ExistingFile)
      ->excludes(prompt->delimiter(','));
  add("--tokens", o.tokens, "largest number of generated tokens of each prompt")->check(whole(0));
  add("--stop-ids", o.stop,
      "ids of tokens that end the output, separated by commas (default: eos_token_id of --model; -1: none)")
      ->delimiter(',');
  add("--temperature", o.sampling.temperature, "temperature of sampling (0: the most probable token)")
      ->check(command_line::above_zero(true));
  add("--top-k", o.sampling.top_k, "sample only among the k most probable tokens (0: all)")->check(whole(0));
  add("--top-p", o.sampling.top_p, "sample only among the fewest tokens with at least this total probability")
      ->check(command_line::within(0, 1));
  add("--seed", o.sampling.seed, "seed of sampling and of a random decoder")->check(command_line::seed());
  add("--threads", o.threads, "number of threads (0: one for each processor)")->check(CLI::Range(0, 1024));
  auto* weights = add("--weights", o.weights, "pack the weights of matrix products in this type");
  auto* save_frozen = add("--save-frozen", o.save_frozen, "file to which the packed weights are written");
  save_frozen->needs(weights->check(CLI::IsMember(command_line::forms_of_weights())));
  app.add_flag("--mappable", o.mappable, "write --save-frozen in a form that --frozen can map into memory")
      ->needs(save_frozen);
  auto* frozen = add("--frozen", o.frozen, "file written by --save-frozen, to read instead of model.safetensors");
  frozen->check(CLI::ExistingFile)->needs(model)->excludes(weights);
  auto* train = add("--train", o.train, "file of ids, separated by spaces, to train on")->check(CLI::ExistingFile);
  train->excludes(frozen);
  add("--steps", o.steps, "training steps of one sequence each, including those of --checkpoint")
      ->check(whole(1))
      ->needs(train);
  add("--length", o.length, "tokens of a training sequence")->check(whole(1))->needs(train);
  add("--lr", o.lr, "learning rate")->check(command_line::above_zero())->needs(train);
  add("--only", o.only, "train only tensors whose name in the folder contains this text")->needs(train);
  add("--checkpoint", o.checkpoint, "file for the training state; a later run continues from it")->needs(train);
  add("--save", o.save, "folder to write; gets the files and element types of --model")->needs(model)->excludes(frozen);
  return command_line::run("generate", app, argc, argv, [&] {
    command_line::limit_memory();
    const gatefold::io::DecoderConfig config = generating::config_of(o);
    gatefold::with_decoder(config.sizes, [&](const auto& decoder) { generating::run(o, config, decoder); });
  });
}
