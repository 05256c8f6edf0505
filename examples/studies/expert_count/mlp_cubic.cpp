#include "train.hpp"

namespace studies::expert_count {

Json train_mlp_cubic(const Setting& s, const Report& report) {
  return train_gated(s, scores_of_patches(s), mlp<Cubic>(s), report);
}

}  // namespace studies::expert_count
