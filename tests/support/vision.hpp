#pragma once

#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/model/vision_transformer.hpp"

/// The parts of the small vision transformers in the tests and in tests/golden/vision.py.
namespace gatefold::support {

inline VisionSizes tiny_images(bool class_token) {
  return {.side = 4,
          .channels = 2,
          .patch = 2,
          .model_dim = 4,
          .heads = 2,
          .depth = 4,
          .classes = 3,
          .class_token = class_token,
          .mean = 0.3,
          .deviation = 0.7};
}
inline const Mlp<Gelu> network{.model_dim = 4, .hidden_dim = 3};
inline const LinearScores scores{.experts = 3, .bias = false};
inline const Mixture vmoe{SoftmaxTopK{.scores = scores, .selection = {.k = 2, .renormalise = false}}, network};
inline const Mixture similar{
    SimilarityAware<SoftmaxTopK>{.scores = scores, .mixing = {.tau = 2, .causal = false}, .selection = {.k = 2}},
    network};
inline const Mixture soft{SoftMoe{.count = 3}, network};

}  // namespace gatefold::support
