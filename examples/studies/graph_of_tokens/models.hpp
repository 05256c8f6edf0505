#pragma once

#include <gatefold/gate/mixing/attention_posterior.hpp>
#include <optional>

#include "../../training/one_of.hpp"
#include "../language/model.hpp"

namespace studies::graph_of_tokens {

using gatefold::Index;
using gatefold::Seed;
using lm::Model;
using lm::Setting;

/// The existing models whose routers paper 002 changes. They also differ in whether every layer or every second layer
/// has a mixture.
enum class Base { smoe, glam, x_moe, smoe_dropout };

/// Options of all kinds of mixing. TokenSimilarity mixes the routing probabilities of a word with those of similar
/// words (`tau`, `last_tau`, `causal`, `only_confident`, `learned_metric`). If `last_tau` is set, τ changes
/// geometrically from `tau` before the first step to `last_tau` after the last step. AttentionPosterior mixes the
/// probabilities of a word with the probabilities of the words that it attends to (`sigma`, `only_confident`, `head`,
/// `mean_of_heads`). Independent does not mix.
struct Mixing {
  double tau = 1, sigma = 1;
  std::optional<double> last_tau{};
  bool causal = true, only_confident = false, learned_metric = false;
  gatefold::FollowedHead head = gatefold::FollowedHead::lowest_entropy;
  bool mean_of_heads = true;
};

/// The update rules of the mixtures. AdamFirst uses Adam only in the first layer, and heavy ball in the others.
using AdamFirst = gatefold::update::First<gatefold::update::Adam, gatefold::update::HeavyBall>;
using Rule = training::OneOf<gatefold::update::Plain, gatefold::update::HeavyBall, AdamFirst, gatefold::update::Robust>;

/// The parts in which the models differ. GLaM has only the plain rule.
struct Parts {
  Base base = Base::smoe;
  Mixing mixing{};
  Rule rule{};
};

/// These functions make a model, one function for each kind of mixing. Each is in a separate file, so that they compile
/// in parallel.
std::unique_ptr<Model> make_independent(const Parts&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_similarity(const Parts&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_attention(const Parts&, const Setting&, Index vocabulary, Seed);

// Make the same models as the functions above, but on a GPU. nvcc compiles them.
std::unique_ptr<Model> make_independent_on_cuda(const Parts&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_similarity_on_cuda(const Parts&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_attention_on_cuda(const Parts&, const Setting&, Index vocabulary, Seed);

}  // namespace studies::graph_of_tokens
