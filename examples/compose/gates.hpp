#pragma once

#include <vector>

#include "compose.hpp"

/// One function per gate, each in a file of its own, so that the compiler can work on several: gate_<name>.cpp.
namespace compose {

using AddRows = void(const Batch&, std::vector<Row>&);

AddRows softmax_top_k, softmax_dense, vmoe_top_k, noisy_top_1, noisy_top_k, vmoe, switch_transformer, gshard,
    similarity_aware, attention_aware, xmoe, xmoe_reference, smoe_dropout, sigmoid_top_k, expert_choice, hash, soft_moe;

/// In the order of the table; the first row is what times are relative to.
inline constexpr AddRows* all_gates[] = {softmax_top_k,
                                         softmax_dense,
                                         vmoe_top_k,
                                         noisy_top_1,
                                         noisy_top_k,
                                         vmoe,
                                         switch_transformer,
                                         gshard,
                                         similarity_aware,
                                         attention_aware,
                                         xmoe,
                                         xmoe_reference,
                                         smoe_dropout,
                                         sigmoid_top_k,
                                         expert_choice,
                                         hash,
                                         soft_moe};

}  // namespace compose
