#include "support/bf16_on_cpu.hpp"

#include "gatefold/gatefold.hpp"

namespace gatefold::test {

template <class L>
std::vector<NamedValues> outcome_on_cpu(const RoundedLayer<L>& layer) {
  CpuBf16::Context ctx(1);
  return outcome(layer.template run<float, CpuBf16>(ctx));
}
template std::vector<NamedValues> outcome_on_cpu(const RoundedLayer<LayerOf<decltype(gated_on_both)>>&);
template std::vector<NamedValues> outcome_on_cpu(const RoundedLayer<LayerOf<decltype(transformer_on_both)>>&);

}  // namespace gatefold::test
