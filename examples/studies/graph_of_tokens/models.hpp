#pragma once

#include "../language/model.hpp"

namespace studies::graph_of_tokens {

using gatefold::Index;
using gatefold::Seed;
using lm::Model;
using lm::Setting;

/// The routers that the paper changes. The base also decides whether every layer or every other layer has a mixture.
enum class Base { smoe, glam, x_moe, smoe_dropout };

/// Options of the mixings. Routing probabilities of a word are mixed with those of similar words (`tau`, `causal`,
/// `only_confident`), with those of the words that this word attends to (`sigma`, `only_confident`), or not at all.
struct Mixing {
  double tau = 1, sigma = 1;
  bool causal = true, only_confident = false;
};

/// Make the model of a base, one function for each mixing. Each function has its own source file, so that they compile
/// in parallel.
std::unique_ptr<Model> make_independent(Base, const Mixing&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_similarity(Base, const Mixing&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_attention(Base, const Mixing&, const Setting&, Index vocabulary, Seed);

// Make the same models on a GPU. nvcc compiles these functions.
std::unique_ptr<Model> make_independent_on_cuda(Base, const Mixing&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_similarity_on_cuda(Base, const Mixing&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_attention_on_cuda(Base, const Mixing&, const Setting&, Index vocabulary, Seed);

}  // namespace studies::graph_of_tokens
