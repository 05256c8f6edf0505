#pragma once

#include "descriptors/row.hpp"
#include "gatefold/policies.hpp"

// An auxiliary loss depends on the whole batch, and so does dx; outputs do not.
namespace gatefold::rows {

GATEFOLD_ROW(no_loss, (Absent{}))
GATEFOLD_ROW(balance, (Balance{.weight = 0.3}), .hooks = "validate")
GATEFOLD_ROW(z_loss, (ZLoss{.weight = 0.3}), .hooks = "validate")
GATEFOLD_ROW(gshard, (GShard{.weight = 0.3}), .hooks = "validate needs_picks_by_item")
GATEFOLD_ROW(importance, (Importance{.weight = 0.3}), .hooks = "validate")
GATEFOLD_ROW(sequence_balance, (SequenceBalance{.weight = 0.3, .length = 3}), .hooks = "validate")
GATEFOLD_ROW(load, (Load{.weight = 0.3}), .hooks = "validate needs_picks_by_item needs_noise")

GATEFOLD_ROW(sequence_balance_of_sigmoids, (SequenceBalance{.weight = 0.3, .length = 4, .sigmoid = true}),
             .hooks = "validate", .once = true)

}  // namespace gatefold::rows
