#pragma once

#include "descriptors/row.hpp"
#include "gatefold/policies.hpp"

// Whole gates. They take the place of scores, mixing, selection and auxiliary losses.
namespace gatefold::rows {

GATEFOLD_ROW(hash_gate, (HashGate{.k = 2}), .hooks = "validate experts with_experts Plan.slot_weights")
GATEFOLD_ROW(hierarchical_gate,
             (HierarchicalGate<SoftmaxTopK, SoftmaxTopK>{
                 .primary = {.scores = {.experts = 3}, .selection = {.k = 2}},
                 .secondary = {.scores = {.experts = 3}, .selection = {.k = 2, .renormalise = false}}}),
             .cannot_meet = "experts: has another number of experts",
             .hooks = "validate infer experts with_experts Plan.slot_weights")
GATEFOLD_ROW(soft_moe, (SoftMoe{.slots = s.slots}),
             .hooks = "validate experts with_model_dim with_experts Extra.with_valid", .meets = Meets::sequence)

GATEFOLD_ROW(weight_on_input, (WeightOnInput{published::llama4({.experts = 0, .k = 2}).gate}),
             .cannot_meet = "layer_norm rms_norm: a norm takes the weight out of its input again",
             .hooks =
                 "validate infer experts with_model_dim with_experts Extra.without_auxiliary Extra.WithoutTrace "
                 "Extra.with_trace ExtraGrad.set_trace Plan.slot_weights Plan.weights_inputs")

GATEFOLD_ROW(soft_moe_of_reference,
             (SoftMoe{.slots = 3, .norm = UnitNorm::clamped, .epsilon = 1e-12, .unit_dispatch = true}),
             .hooks = "validate experts with_model_dim with_experts Extra.with_valid", .meets = Meets::sequence,
             .once = true)

}  // namespace gatefold::rows
