// Measures the word perplexity of the language models of paper 001, MomentumSMoE, on clean text and after the word-swap
// attack. Compares mixtures whose output is added to the residual stream with momentum, and mixtures whose output is
// added without momentum (plain sum). Also measures each layer.
//
//   momentum [--quick] [--seeds 3] [--steps 1600] [--only smoe,heavy_ball] …
//   momentum --tables     prints the tables of the runs that are done so far
//   momentum --costs      prints time and memory of each rule relative to the plain sum
//
// The exit code is 0 after success, 2 if an option or a file is not valid (one line on stderr names it), and 1 after
// any other error.

#include "../language/study.hpp"
#include "cases.hpp"

namespace {

using namespace studies;

lm::Comparison comparison(const lm::Setting& setting, Index vocabulary) {
  const momentum::Cases cases(setting, vocabulary);
  return {
      cases.all,
      cases.groups,
      {"smoe", "heavy_ball", "adam", "robust", "negative", "complex"},
      {{"Mean norm of the mixture's output (figures 2 and 3)", "/norm", 1, 2, true},
       {"Picks whose expert has the output with the largest norm of all experts, in % (figure 5)", "/rank/0", 100, 1,
        true},
       {"Eigenvalues σ of −∂u/∂x for which the plain sum is stable, in % (lemma 1, μ = 0)", "/plain/stable", 100, 1},
       {"Eigenvalues σ of −∂u/∂x for which heavy ball is stable, in % (lemma 1, μ = 0.7)", "/momentum/stable", 100, 1},
       {"Spectral radius of lemma 1 (the larger |λ|), mean over σ, μ = 0", "/plain/radius", 1, 3},
       {"Spectral radius of lemma 1 (the larger |λ|), mean over σ, μ = 0.7", "/momentum/radius", 1, 3},
       {"Mean cosine of the mixture's output and the direction v of definition 1", "/direction/cosine", 1, 3},
       {"Mean norm of v", "/direction/least", 1, 3},
       {"Mean norm of the experts' unit vectors with the gate's weights", "/direction/normalised", 1, 3}}};
}

}  // namespace

int main(int argc, char** argv) {
  return lm::study_of_language("momentum", "Momentum through depth in language models (paper 001)", argc, argv,
                               comparison);
}
