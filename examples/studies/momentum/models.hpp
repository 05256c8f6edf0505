#pragma once

#include "../../training/one_of.hpp"
#include "../language/model.hpp"

namespace studies::momentum {

using gatefold::Index;
using gatefold::Seed;
using namespace gatefold::update;
using lm::Model;
using lm::Setting;

/// As in paper 001, AdamFirst uses Adam only in the first layer, and heavy ball in the others. RmsPropFirst uses
/// RmsProp instead of Adam.
using AdamFirst = First<Adam, HeavyBall>;
using RmsPropFirst = First<RmsProp, HeavyBall>;

/// The update rules of the models for which the paper compares only three rules.
using Basic = training::OneOf<Plain, HeavyBall, AdamFirst>;
/// All update rules that the paper compares.
using Rule =
    training::OneOf<Plain, HeavyBall, AdamFirst, Robust, Nesterov, RmsPropFirst, SharpnessAware, ComplexMomentum,
                    TimeVarying, ScheduledRestart, LearnedHeavyBall, ZeroOrderHold, Adam, RmsProp>;

/// These functions make a model with a mixture in every layer (switch), in every second layer (glam), or in every layer
/// of a model that is built like the one in the paper's code (reference). Each is in a separate file, so that they
/// compile in parallel.
std::unique_ptr<Model> make_switch(const Setting&, Index vocabulary, const Rule&, Seed);
std::unique_ptr<Model> make_glam(const Setting&, Index vocabulary, const Basic&, Seed);
std::unique_ptr<Model> make_reference(const Setting&, Index vocabulary, const Basic&, Seed);

// Make the same models as the functions above, but on a GPU. nvcc compiles them.
std::unique_ptr<Model> make_switch_on_cuda(const Setting&, Index vocabulary, const Rule&, Seed);
std::unique_ptr<Model> make_glam_on_cuda(const Setting&, Index vocabulary, const Basic&, Seed);
std::unique_ptr<Model> make_reference_on_cuda(const Setting&, Index vocabulary, const Basic&, Seed);

}  // namespace studies::momentum
