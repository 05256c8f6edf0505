// Measures the word perplexity of the language models of paper 002, Graph of Tokens, on clean text and after the
// word-swap attack. Compares routers that share probabilities among similar words, or among words that attend to each
// other, with routers that do not. Also measures how stable the routing is, and its entropy.
//
//   graph_of_tokens [--quick] [--seeds 3] [--steps 1600] [--only smoe,smoe_similarity] …
//   graph_of_tokens --tables     prints the tables of the runs that are done so far
//   graph_of_tokens --costs      prints time and memory of each model relative to its base
//
// The exit code is 0 after success, 2 if an option or a file is not valid (one line on stderr names it), and 1 after
// any other error.

#include "../language/study.hpp"
#include "cases.hpp"

namespace {

using namespace studies;

lm::Comparison comparison(const lm::Setting& setting, Index vocabulary) {
  const graph_of_tokens::Cases cases(setting, vocabulary);
  return {cases.all,
          cases.groups,
          {"smoe", "smoe_similarity", "smoe_attention", "smoe_similarity_ahead", "smoe_similarity_confident",
           "smoe_attention_confident", "smoe_tau_root", "k_1", "k_1_similarity", "k_1_attention"},
          {{"Words that change their experts in the last sixtieth of the steps, in % (figure 3)", "/fluctuation", 100,
            1, true},
           {"Mean entropy of a word's probabilities, in nats (figure 3)", "/entropy", 1, 3, true},
           {"Deviation of the experts' loads over their mean", "/load_variation", 1, 2},
           {"Mean weight S_ii of a word on itself, in %", "/on_itself", 100, 1}}};
}

}  // namespace

int main(int argc, char** argv) {
  return lm::study_of_language("graph_of_tokens",
                               "Routers that share their probabilities in language models (paper 002)", argc, argv,
                               comparison);
}
