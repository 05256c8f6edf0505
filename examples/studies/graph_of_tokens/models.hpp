#pragma once

#include "../language/model.hpp"

namespace studies::graph_of_tokens {

using gatefold::Index;
using gatefold::Seed;
using lm::Model;
using lm::Setting;

/// The routers that the paper changes, and whether every layer has a mixture, or every other.
enum class Base { smoe, glam, x_moe, smoe_dropout };

/// Whose probabilities a word's router mixes: nobody's, similar words', or those of words it attends to.
struct Mixing {
  double tau = 1, sigma = 1;
  bool causal = true, only_confident = false;
};

/// The same model of every base; a source file for each mixing, so that they compile side by side.
std::unique_ptr<Model> make_independent(Base, const Mixing&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_similarity(Base, const Mixing&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_attention(Base, const Mixing&, const Setting&, Index vocabulary, Seed);

// Those whose setting names a GPU: compiled by nvcc.
std::unique_ptr<Model> make_independent_on_cuda(Base, const Mixing&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_similarity_on_cuda(Base, const Mixing&, const Setting&, Index vocabulary, Seed);
std::unique_ptr<Model> make_attention_on_cuda(Base, const Mixing&, const Setting&, Index vocabulary, Seed);

}  // namespace studies::graph_of_tokens
