#include <gatefold/gatefold.hpp>

#include "network.hpp"

namespace studies::classification {

Json learn_similarity(const Job& job, bool pretrained, Seed seed, const Report& report) {
  return learn(graph_of_tokens::similarity({}), job, pretrained, seed, report);
}

}  // namespace studies::classification
