#pragma once

#include "../whole_training.hpp"

namespace studies::mot_text {

struct Sets {
  Items train, test;
};

/// These functions train a model on the task which_book or which_place. Each is in a separate file, so that they
/// compile in parallel.
Json learn_book(const Model&, WholeTransformer, const Sets&, const Recipe&, Seed, const Report&);
Json learn_place(const Model&, WholeTransformer, const Sets&, const Recipe&, Seed, const Report&);

/// Trains a model on the task TaskT.
/// @param net      the transformer; this function sets its member `outputs`
/// @param outputs  number of outputs of the model
template <class TaskT>
Json learn_text(const Model& model, WholeTransformer net, Index outputs, const Sets& sets, const Recipe& r, Seed seed,
                const Report& report) {
  constexpr Index classes = 10;
  net.outputs = outputs;
  if (model.kind >= Model::Kind::linear)
    return learn_alone<TaskT>(Linear{.model_dim = sets.train.x.extent(1), .output_dim = outputs}, sets.train, sets.test,
                              classes, r, seed, report);
  return learn_transformer<TaskT>(model, net, sets.train, sets.test, classes, r, seed, report);
}

}  // namespace studies::mot_text
