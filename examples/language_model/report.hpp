#pragma once

#include <chrono>
#include <cmath>
#include <cstdio>
#include <gatefold/io/replacement.hpp>
#include <memory>
#include <string>

#include "../support/weights.hpp"
#include "evaluate.hpp"
#include "generate.hpp"
#include "model.hpp"
#include "ngram.hpp"
#include "plot.hpp"
#include "run.hpp"
#include "text.hpp"

namespace language {

/// Checks that a file can be written, and leaves no file behind.
/// @throws gatefold::FileError if it cannot be written
inline void expect_writable(const std::string& path) {
  if (!path.empty()) const gatefold::io::Replacement tried(path);
}

/// Prints the bits per token of the model and of the n-grams on the validation and test texts. Adds them to `metrics`
/// and draws the picture, unless `metrics` is null. Writes the file of the option `log_probabilities`, if it is given.
inline void report(Model& model, const Options& o, const Text& text, Metrics* metrics, const training::Folder& folder) {
  const auto valid = log_probabilities(model, o, "valid", text.valid),
             test = log_probabilities(model, o, "test", text.test);
  const Ngram n = ngram(o, text);
  const char* of = o.unit.c_str();
  std::printf("\nbits per %s     valid     test\n", of);
  std::printf("%-14s %9.4f %9.4f\n", "this model", bits(valid), bits(test));
  std::printf("Kneser-Ney %d   %9.4f %9.4f\n", n.order, n.valid, n.test);
  if (unit(o) == Unit::word)
    std::printf("perplexity     %9.2f %9.2f, of the n-grams %.2f and %.2f\n", std::exp2(bits(valid)),
                std::exp2(bits(test)), std::exp2(n.valid), std::exp2(n.test));
  if (metrics != nullptr) {
    metrics->add({{"step", o.steps},
                  {"best_step", metrics->best(kGoal).first},
                  {"best_valid_bits", bits(valid)},
                  {"best_test_bits", bits(test)},
                  {"ngram_order", n.order},
                  {"ngram_valid_bits", n.valid},
                  {"ngram_test_bits", n.test}});
    metrics->write();
    draw(*metrics, n, o, folder.picture().string());
  }
  if (!o.log_probabilities.empty()) {
    std::string lines;
    char line[40];
    for (const double log_p : test) {
      std::snprintf(line, sizeof line, "%.9g\n", log_p);
      lines += line;
    }
    gatefold::io::Replacement file(o.log_probabilities);
    file.write(lines.data(), lines.size());
    file.commit();
  }
}

/// Generates and prints text. For the command `generate`, also prints the speed of the generation on stderr.
inline void say(Model& model, const Options& o, const Vocabulary& vocabulary) {
  const auto begun = std::chrono::steady_clock::now();
  std::printf("%s\n", generate(model, o, vocabulary).c_str());
  std::fflush(stdout);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  if (o.command == "generate")
    std::fprintf(stderr, "%lld %ss in %.3f s: %.0f a second\n", static_cast<long long>(o.tokens), o.unit.c_str(),
                 seconds, static_cast<double>(o.tokens) / seconds);
}

/// The model of a run that was best on validation, and the vocabulary of this model. Both are read from a checkpoint,
/// without the text of the run. The option `weights` selects the form of the model's weights.
struct Best {
  Vocabulary vocabulary;
  std::unique_ptr<Model> model;

  explicit Best(const Options& o)
      : vocabulary(vocabulary_of(folder_of(o).best(), o)), model(make_model(o, vocabulary.size())) {
    model->load(folder_of(o).best());
    if (o.weights != "float") model->freeze(command_line::form_of_weights(o.weights));
  }
};

/// Evaluates the best model of a run on the text that the options name, which can differ from the text of the run.
inline void evaluate(const Options& o) {
  expect_writable(o.log_probabilities);
  const Best best(o);
  report(*best.model, o, read_text(o, best.vocabulary), nullptr, folder_of(o));
}

inline void generate(const Options& o) {
  const Best best(o);
  say(*best.model, o, best.vocabulary);
}

}  // namespace language
