#include "train.hpp"

namespace fashion {

void train_plain(const Options& options) { train(options, gatefold::update::Plain{}); }

}  // namespace fashion
