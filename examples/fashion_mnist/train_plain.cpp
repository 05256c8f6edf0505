#include <gatefold/gatefold.hpp>

#include "train.hpp"

namespace fashion {

void train_plain(const Options& options) {
  Cpu::Context ctx(options.threads);
  train(ctx, options, update::Plain{});
}

}  // namespace fashion
