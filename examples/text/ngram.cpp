// Evaluates interpolated Kneser–Ney n-grams on a text: the baseline of language models on the same files.
//
//   ngram TRAIN [--evaluate FILE]... [--unit character] [--order 5] [--threshold 1]
//
// The vocabulary is collected from all files; n-grams are counted in TRAIN. The end of a line is a token. All tokens
// that occur less often than the threshold become one unknown token, so perplexities with different thresholds are not
// comparable.
// Exit code 0: done; 2: an option or file is invalid (one line on stderr says which); 1: any other error.
#include <CLI/App.hpp>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <gatefold/data/vocabulary.hpp>
#include <map>
#include <string>
#include <vector>

#include "../support/command_line.hpp"
#include "../support/kneser_ney.hpp"

namespace {

using gatefold::Index;
using gatefold::data::TokenId;
using gatefold::data::Unit;

struct Options {
  std::string train{};
  std::vector<std::string> evaluate{};
  Unit unit = Unit::character;
  int order = 5;
  Index threshold = 1;
};

void run(const Options& o) {
  std::vector<std::filesystem::path> files{o.train};
  files.insert(files.end(), o.evaluate.begin(), o.evaluate.end());
  const auto vocabulary = gatefold::data::read_vocabulary(files, o.unit, o.threshold);
  const std::vector<TokenId> text = gatefold::data::read_ids(o.train, vocabulary);
  const baseline::KneserNey model(text, o.order, vocabulary.size());
  std::printf("%s: %zu tokens, vocabulary %lld, order %d, discounts", o.train.c_str(), text.size(),
              static_cast<long long>(vocabulary.size()), o.order);
  for (int n = 1; n <= o.order; ++n) std::printf(" %.4f", model.discount(n));
  std::printf("\n");
  for (const std::string& file : o.evaluate) {
    const std::vector<TokenId> ids = gatefold::data::read_ids(file, vocabulary);
    gatefold::expect(ids.size() >= 2, "ngram", file, "at least 2 tokens", ids.size());
    const double bits = model.bits(ids);
    std::printf("%s: %zu tokens, bits %.4f, perplexity %.4f\n", file.c_str(), ids.size(), bits, std::exp2(bits));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Count interpolated Kneser-Ney n-grams in a text and evaluate them on other texts");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("train", o.train, "text file in which n-grams are counted")->required();
  app.add_option("--evaluate", o.evaluate, "text files on which the n-grams are evaluated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--unit", o.unit, "what a token is: character or word")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, Unit>{{"character", Unit::character}, {"word", Unit::word}}));
  app.add_option("--order", o.order, "number of tokens of the longest n-grams")
      ->check(CLI::Range(1, 63))
      ->capture_default_str();
  app.add_option("--threshold", o.threshold, "tokens that occur less often are replaced by the unknown token")
      ->check(CLI::Range(Index(1), Index(1) << 40))
      ->capture_default_str();
  return command_line::run("ngram", app, argc, argv, [&] {
    command_line::limit_memory();
    run(o);
  });
}
