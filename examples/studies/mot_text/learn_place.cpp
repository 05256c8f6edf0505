#include "learn.hpp"

namespace studies::mot_text {

Json learn_place(const Model& model, WholeTransformer net, const Sets& sets, const Recipe& r, Seed seed,
                 const Report& report) {
  return learn_text<Regress>(model, net, 1, sets, r, seed, report);
}

}  // namespace studies::mot_text
