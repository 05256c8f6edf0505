// Paper 001, MomentumSMoE: word perplexity of language models whose mixtures of experts enter the residual stream by
// momentum, clean and after the word-swap attack, beside the plain sum; what their layers do.
//
//   momentum [--quick] [--seeds 3] [--steps 1600] [--only smoe,heavy_ball] …
//   momentum --tables     of what is done so far
//   momentum --costs      time and memory of each rule over the plain sum
//
// Exit code 0: done; 2: an option or file does not fit (one line on stderr says which); 1: anything else.

#include "../language/study.hpp"
#include "cases.hpp"

namespace {

using namespace studies;
using namespace studies::lm;

const std::vector<std::string> kSeen{"smoe", "heavy_ball", "adam", "robust", "negative", "complex"};

std::string more_tables(const std::vector<Case>& cases, const Done& done) {
  const auto of = [&](const char* title, int decimals, const auto& value) {
    return layer_table(title, kSeen, cases, done, decimals, value);
  };
  const auto inside = [](const char* a, const char* b) {
    return [=](const Json& layer) { return layer.contains(a) ? of_key(layer[a], b) : std::nullopt; };
  };
  return of("Mean norm of the mixture's output (figures 2 and 3)", 2,
            [](const Json& layer) { return of_key(layer, "norm"); }) +
         of("Picks whose expert answers with the largest norm of all, in % (figure 5)", 1,
            [](const Json& layer) {
              return layer["rank"].empty() ? std::nullopt : std::optional(100 * layer["rank"][0].get<double>());
            }) +
         of("Eigenvalues σ of −∂u/∂x at which the plain sum settles, in % (lemma 1 with μ = 0)", 1,
            [&](const Json& layer) {
              const auto share = inside("plain", "stable")(layer);
              return share ? std::optional(100 * *share) : std::nullopt;
            }) +
         of("The same with μ = 0.7", 1,
            [&](const Json& layer) {
              const auto share = inside("momentum", "stable")(layer);
              return share ? std::optional(100 * *share) : std::nullopt;
            }) +
         of("Mean of the larger |λ|, μ = 0", 3, inside("plain", "radius")) +
         of("Mean of the larger |λ|, μ = 0.7", 3, inside("momentum", "radius"));
}

void draw_all(const std::filesystem::path& out, const std::vector<Case>& cases, const Done& done) {
  draw(out / "momentum_curves.svg",
       {curves("Rules", kSeen, cases, done),
        layer_lines("Output of the mixtures", "mean norm", kSeen, cases, done, "norm")},
       2);
}

Comparison comparison(const Setting& setting, Index vocabulary) {
  momentum::Cases cases(setting, vocabulary);
  return {cases.all, cases.groups, more_tables, draw_all};
}

}  // namespace

int main(int argc, char** argv) {
  return study_of_language("momentum", "Momentum through depth in language models (paper 001)", argc, argv, comparison);
}
