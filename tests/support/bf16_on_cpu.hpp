#pragma once

#include <type_traits>
#include <vector>

#include "descriptors/rounded.hpp"

/// Layers that one program runs on CpuBf16 and on CudaBf16. The code for CpuBf16 is compiled separately, because nvcc
/// does not read the headers of CpuBf16.
namespace gatefold::test {

inline constexpr rows::Composition gated_on_both{rows::linear_scores, rows::independent, rows::top_k,    rows::no_loss,
                                                 rows::residual,      rows::heavy_ball,  rows::gated_mlp};
inline constexpr rows::Composition transformer_on_both{
    rows::absent, rows::absent, rows::soft_moe, rows::absent, rows::residual, rows::plain, rows::transformer_expert};
template <class C>
using LayerOf = decltype(std::declval<C>().make(rows::tiny));

/// Returns the results of a layer on CpuBf16. cuda/bfloat16_on_cpu.cpp instantiates this function for the layers above.
template <class L>
std::vector<NamedValues> outcome_on_cpu(const RoundedLayer<L>& layer);

}  // namespace gatefold::test
