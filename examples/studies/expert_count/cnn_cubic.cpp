#include "train.hpp"

namespace studies::expert_count {

Json train_cnn_cubic(const Setting& s, const Report& report) {
  return train_gated(s, shared_scores(s), cnn<Cubic>(s), report);
}

}  // namespace studies::expert_count
