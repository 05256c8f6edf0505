#pragma once

// Tools to repeat the experiments of the four papers: training in stages, synthetic data, attacks and corruptions of
// data, eigenvalues of layers, and measures of routing. Few programs need them, so they are not part of gatefold.hpp.
// Include gatefold.hpp before this header.

// Each header comes after the headers that it includes itself. The script tests/structure/order.sh checks this order.
// clang-format off
#include "gatefold/papers/corruption.hpp"
#include "gatefold/papers/eigenvalues.hpp"
#include "gatefold/papers/expert_outputs.hpp"
#include "gatefold/papers/in_stages.hpp"
#include "gatefold/papers/jacobian.hpp"
#include "gatefold/papers/merged_transformer.hpp"
#include "gatefold/papers/norm_rank.hpp"
#include "gatefold/papers/pareto_gap.hpp"
#include "gatefold/papers/pgd.hpp"
#include "gatefold/papers/routed_trainer.hpp"
#include "gatefold/papers/signal_mixture.hpp"
#include "gatefold/papers/specialisation.hpp"
#include "gatefold/papers/three_stage.hpp"
#include "gatefold/papers/word_swap.hpp"
// clang-format on
