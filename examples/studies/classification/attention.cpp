#include <gatefold/gatefold.hpp>

#include "network.hpp"

namespace studies::classification {

Json learn_attention(const Job& job, bool pretrained, Seed seed, const Report& report) {
  return learn(graph_of_tokens::attention({}), job, pretrained, seed, report);
}

}  // namespace studies::classification
