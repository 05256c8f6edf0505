#pragma once

// Instruments of the four papers: staged training, signal mixtures, attacks and corruptions, spectra of layers, and
// measures of routing. Not part of gatefold.hpp, because few programs need them; include gatefold.hpp first.

// Each header comes after the headers that it includes (tests/structure/order.sh).
// clang-format off
#include "gatefold/papers/corruption.hpp"
#include "gatefold/papers/corruption_error.hpp"
#include "gatefold/papers/dispatch_entropy.hpp"
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
#include "gatefold/papers/stability.hpp"
#include "gatefold/papers/stop_words.hpp"
#include "gatefold/papers/three_stage.hpp"
#include "gatefold/papers/word_swap.hpp"
// clang-format on
