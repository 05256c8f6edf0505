// Paper 002, Graph of Tokens: word perplexity of language models whose routers share their probabilities among similar
// words, or follow attention, clean and after the word-swap attack, beside routers that do not; how steady and how sure
// they are.
//
//   graph_of_tokens [--quick] [--seeds 3] [--steps 1600] [--only smoe,smoe_similarity] …
//   graph_of_tokens --tables     of what is done so far
//   graph_of_tokens --costs      time and memory of each over its base
//
// Exit code 0: done; 2: an option or file does not fit (one line on stderr says which); 1: anything else.

#include "../language/study.hpp"
#include "cases.hpp"

namespace {

using namespace studies;
using namespace studies::lm;

const std::vector<std::string> kSeen{"smoe",
                                     "smoe_similarity",
                                     "smoe_attention",
                                     "smoe_similarity_ahead",
                                     "smoe_similarity_confident",
                                     "smoe_attention_confident",
                                     "smoe_tau_root"};
const std::vector<std::string> kTop1{"k_1", "k_1_similarity", "k_1_attention"};

/// What a word's perplexity is where the words after it are there, and where they are cut off.
std::string prefix_table(const std::vector<Case>& cases, const Done& done) {
  std::string rows;
  for (const Case& c : cases) {
    if (std::find(kSeen.begin(), kSeen.end(), c.name) == kSeen.end() || !done.contains(c.name)) continue;
    const auto& runs = done.at(c.name);
    rows +=
        "| " + c.label + " | " + shown(values(runs, "whole"), 2) + " | " + shown(values(runs, "prefixes"), 2) + " |\n";
  }
  if (rows.empty()) return {};
  return "**A block of the validation text, whole and word by word with what follows cut off**\n\n"
         "| model | whole | cut off |\n|---|---|---|\n" +
         rows + '\n';
}

std::string more_tables(const std::vector<Case>& cases, const Done& done) {
  std::string all = prefix_table(cases, done);
  for (const auto* names : {&kSeen, &kTop1}) {
    const std::string of = names == &kTop1 ? ", K = 1" : "";
    const auto table = [&](const std::string& title, int decimals, const char* key, double factor) {
      return layer_table(title + of, *names, cases, done, decimals, [=](const Json& layer) {
        const auto value = of_key(layer, key);
        return value ? std::optional(factor * *value) : std::nullopt;
      });
    };
    all += table("Words that change their experts in the last sixtieth of the steps, in %", 1, "fluctuation", 100) +
           table("Mean entropy of a word's probabilities, in nats", 3, "entropy", 1) +
           table("Deviation of the experts' loads over their mean", 2, "load_variation", 1);
  }
  return all;
}

void draw_all(const std::filesystem::path& out, const std::vector<Case>& cases, const Done& done) {
  draw(out / "graph_of_tokens_curves.svg",
       {curves("Routers", kSeen, cases, done),
        layer_lines("Words that change their experts", "share", kSeen, cases, done, "fluctuation"),
        layer_lines("Entropy of the routers", "nats", kSeen, cases, done, "entropy")},
       3);
}

Comparison comparison(const Setting& setting, Index vocabulary) {
  graph_of_tokens::Cases cases(setting, vocabulary);
  return {cases.all, cases.groups, more_tables, draw_all};
}

}  // namespace

int main(int argc, char** argv) {
  return study_of_language("graph_of_tokens", "Routers that share their probabilities in language models (paper 002)",
                           argc, argv, comparison);
}
