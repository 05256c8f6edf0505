#pragma once

#include <vector>

#include "compose.hpp"

/// One function per gate, each in a separate file gate_<name>.cpp, so that several compile in parallel.
namespace compose {

using AddRows = void(const Batch&, std::vector<Row>&);

AddRows softmax_top_k, softmax_dense, vmoe_top_k, noisy_top_1, noisy_top_k, vmoe, switch_transformer, gshard,
    similarity_aware, attention_aware, xmoe, xmoe_reference, smoe_dropout, sigmoid_top_k, expert_choice, hash, soft_moe;

/// All gates, in the order of the table that the program prints. The times in the table are relative to its first row.
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
