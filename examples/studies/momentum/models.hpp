#pragma once

#include "../language/model.hpp"
#include "../language/one_of.hpp"

namespace studies::momentum {

using gatefold::Index;
using gatefold::Seed;
using namespace gatefold::update;
using lm::Model;
using lm::Setting;

/// The paper uses Adam and RmsProp only in the first layer.
using AdamFirst = First<Adam, HeavyBall>;
using RmsPropFirst = First<RmsProp, HeavyBall>;

/// The rules for the layouts on which the paper compares only three.
using Basic = lm::OneOf<Plain, HeavyBall, AdamFirst>;
/// All rules that the paper compares.
using Rule = lm::OneOf<Plain, HeavyBall, AdamFirst, Robust, Nesterov, RmsPropFirst, SharpnessAware, ComplexMomentum,
                       TimeVarying, ScheduledRestart, LearnedHeavyBall, ZeroOrderHold>;

/// Make a model with a mixture in every layer (switch), in every second layer (glam), or in every layer of the skeleton
/// of the paper's code (reference). Each has its own source file, so that they compile in parallel.
std::unique_ptr<Model> make_switch(const Setting&, Index vocabulary, const Rule&, Seed);
std::unique_ptr<Model> make_glam(const Setting&, Index vocabulary, const Basic&, Seed);
std::unique_ptr<Model> make_reference(const Setting&, Index vocabulary, const Basic&, Seed);

// Make the same models on a GPU. nvcc compiles these functions.
std::unique_ptr<Model> make_switch_on_cuda(const Setting&, Index vocabulary, const Rule&, Seed);
std::unique_ptr<Model> make_glam_on_cuda(const Setting&, Index vocabulary, const Basic&, Seed);
std::unique_ptr<Model> make_reference_on_cuda(const Setting&, Index vocabulary, const Basic&, Seed);

}  // namespace studies::momentum
