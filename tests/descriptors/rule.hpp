#pragma once

#include "descriptors/row.hpp"
#include "gatefold/policies.hpp"

namespace gatefold::rows {

GATEFOLD_ROW(plain, (update::Plain{}))
GATEFOLD_ROW(heavy_ball, (update::HeavyBall{.mu = 0.8, .gamma = 0.9}),
             .hooks = "begin validate advance advance_backward Carry.pass")
// With ε = 1e-8 the first step would be nearly a sign, whose gradient is 0.
GATEFOLD_ROW(adam, (update::Adam{.gamma = 0.9, .kappa = 0.2, .epsilon = 0.3}),
             .hooks = "begin validate infer Carry.pass")
GATEFOLD_ROW(rms_prop, (update::RmsProp{.gamma = 0.9, .epsilon = 0.3}), .hooks = "begin validate infer Carry.pass")
GATEFOLD_ROW(first, (update::First{update::Adam{.kappa = 0.2, .epsilon = 0.3}, update::HeavyBall{}}),
             .hooks = "begin validate infer evaluations with_model_dim Carry.pass")
GATEFOLD_ROW(robust, (update::Robust{}), .hooks = "begin validate infer Carry.pass")
GATEFOLD_ROW(nesterov, (update::Nesterov{.gamma = 0.9}), .hooks = "begin validate infer Carry.pass")
// μ_1 = 0, so the first layer forgets the momentum that is carried to it.
GATEFOLD_ROW(time_varying, (update::TimeVarying{.gamma = 0.9}), .zero = "carry.p", .hooks = "begin validate Carry.pass")
GATEFOLD_ROW(scheduled_restart, (update::ScheduledRestart{.gamma = 0.9}), .zero = "carry.p",
             .hooks = "begin validate Carry.pass")
// With seed 1 some ‖u‖ are so small that difference quotients are too coarse.
GATEFOLD_ROW(sharpness_aware, (update::SharpnessAware{.rho = 0.2, .gamma = 0.9}), .hooks = "validate infer evaluations",
             .seed = 3, .of_doubles = 2e7)
GATEFOLD_ROW(complex_momentum, (update::ComplexMomentum{.gamma = 0.9}), .hooks = "begin validate Carry.pass")
GATEFOLD_ROW(zero_order_hold, (update::ZeroOrderHold{}), .hooks = "begin validate infer with_model_dim Carry.pass")
GATEFOLD_ROW(learned_heavy_ball, (update::LearnedHeavyBall{.gamma = 0.9}),
             .hooks = "begin validate infer with_model_dim Carry.pass")

/// A schedule of a user.
struct HalvedMu {
  double mu(Index t) const { return 1 / static_cast<double>(t + 1); }
};
GATEFOLD_ROW(scheduled_momentum, (update::ScheduledMomentum<HalvedMu>{}), .hooks = "begin validate Carry.pass",
             .once = true)
GATEFOLD_ROW(plain_ahead, (update::PlainAhead{.robust = {.p = 0.5, .k = 2}}),
             .hooks = "begin validate infer Carry.pass", .once = true)
GATEFOLD_ROW(learned_step, (update::LearnedHeavyBall{.learn_mu = false, .step = update::StepSize::per_item}),
             .hooks = "begin validate infer with_model_dim Carry.pass", .once = true)
GATEFOLD_ROW(sharpness_of_batch, (update::SharpnessAware{.rho = 0.2, .norm = update::Norm::batch}),
             .hooks = "validate infer evaluations", .meets = Meets::batch, .once = true, .of_doubles = 2e7)

}  // namespace gatefold::rows
