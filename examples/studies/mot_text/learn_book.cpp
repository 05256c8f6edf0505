#include "learn.hpp"

namespace studies::mot_text {

Json learn_book(const Model& model, WholeTransformer net, const Sets& sets, const Recipe& r, Seed seed,
                const Report& report) {
  return learn_text<Classify>(model, net, 10, sets, r, seed, report);
}

}  // namespace studies::mot_text
