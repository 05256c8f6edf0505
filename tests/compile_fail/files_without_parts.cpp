// expect: gatefold: io::save takes metadata \(may be \{\}\) and Parts, which are a prefix of names and a pack, and io::load takes Parts: io::save\(path, ctx, metadata, Part\{prefix, params\}\), io::load\(path, ctx, Part\{prefix, params\}\); see docs/how-to/checkpoints\.md
// expect: gatefold: a checkpoint is made from a run, for example a Trainer: save_checkpoint\(path, trainer\); to save only parameters use io::save\(path, ctx, metadata, Part\{prefix, params\}\); see docs/how-to/checkpoints\.md
// expect: gatefold: io cannot store this element type: use float, double or gatefold::Index
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const OneExpert branch{Linear{.model_dim = 2}};
  auto params = branch.init<float, Cpu>(ctx, Seed{1});
  const io::Metadata none;
  const io::TensorFiles files("path");
#ifndef GATEFOLD_FAIL
  io::save("path", ctx, {}, io::Part{"params", params});
  io::save("path", ctx, none, {}, io::Part{"params", params});
  io::load("path", ctx, io::Part{"params", params});
  save_checkpoint("path", Trainer{ctx, branch, MeanSquaredError{}, optim::Sgd{}, Seed{1}});
  files.read<Index>("steps");
#else
  io::save("path", params);
  io::save("path", ctx, params);
  io::save("path", ctx, io::Part{"params", params});
  io::save("path", ctx, {}, params);
  io::load("path", ctx, params);
  save_checkpoint("path", branch);
  files.read<int>("steps");
#endif
}
