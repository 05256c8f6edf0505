#include "train.hpp"

namespace studies::expert_count {

Json train_mlp_other(const Setting& s, const Report& report) {
  const auto with = [&]<class ActT>(ActT) { return train_gated(s, scores_of_patches(s), mlp<ActT>(s), report); };
  return s.activation == "relu" ? with(Relu{}) : with(Identity{});
}

}  // namespace studies::expert_count
