// Ten steps of AdamW with the decoders of tests/golden/decoders, compared with PyTorch in double. The make.py of that
// folder writes the expected values.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/load_decoder.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/decoders.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// The sum of the elements of a tensor, element i times the weight cos(angle · (i + 1)), and the sum of the absolute
/// values of these terms.
struct WeightedSum {
  double value = 0, absolute = 0;
  WeightedSum(const std::vector<double>& elements, double angle) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const double term = elements[i] * std::cos(angle * static_cast<double>(i + 1));
      value += term;
      absolute += std::abs(term);
    }
  }
};

/// Sets the speed at which the bias of a SigmoidTopK gate changes to 0, because PyTorch does not change the bias.
struct StopBias {
  Cpu::Context& ctx;
  template <class Tensor>
  void operator()(const Name& name, Tensor& t) const {
    if constexpr (Tensor::rank == 1)
      if (name.str().ends_with(".selection.speed")) fill(ctx, t.view(), 0);
  }
};

}  // namespace

TEST_CASE("golden: ten steps of AdamW give PyTorch's losses and parameters") {
  Cpu::Context ctx(2);
  int decoders = 0;
  for (const std::string& name : all_decoders()) {
    const auto folder = decoder_folders() / name;
    if (name == "gpt_oss_mxfp4") continue;  // weights of four bits have no gradients
    ++decoders;
    CAPTURE(name);
    const auto config = io::read_decoder_config(folder);
    const io::TensorFiles of_ids(folder / "expected.safetensors"), expected(folder / "adamw.safetensors");
    const NextTokens tokens(of_ids.read<Index>("ids"), static_cast<Index>(of_ids.info("ids").shape[1]));
    with_decoder(config.sizes, [&](const auto& model) {
      const optim::AdamW adam{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1};
      Trainer trainer{ctx, model, config.sizes.loss(), adam, Seed{1}, Element<double>{}};
      trainer.params = io::load_decoder<double>(folder, ctx, config, model);
      for_each_tensor(StopBias{ctx}, trainer.params);
      const auto extra = extra_of<typename decltype(trainer)::Extra>(Segment<double, Cpu>{.length = tokens.length});
      for (const double loss : expected.read<double>("losses"))
        CHECK(trainer.step(tokens.in, tokens.label, extra) == doctest::Approx(loss).epsilon(1e-10));

      // In the file, the rows of sums are sorted by the names of PyTorch's parameters. PyTorch has fused experts.
      const TempDirectory to;
      io::save(to.file(), ctx, {}, io::decoder_map(config, io::published::ExpertStorage::fused), trainer.params);
      const io::TensorFiles saved(to.file()), loaded(folder / "model.safetensors");
      const std::vector<double> sums = expected.read<double>("sums");
      std::size_t row = 0;
      for (const io::TensorInfo& tensor : saved.tensors()) {
        CAPTURE(tensor.name);
        const std::vector<double> elements = saved.read<double>(tensor.name);
        if (tensor.name.ends_with("e_score_correction_bias")) {  // a buffer in PyTorch, which AdamW does not change
          CHECK(elements == loaded.read<double>(tensor.name));
          continue;
        }
        REQUIRE(row + 2 <= sums.size());
        for (const double angle : {1, 2}) {
          const WeightedSum got(elements, angle);
          CHECK(std::abs(got.value - sums[row++]) <= 1e-8 * got.absolute);
        }
      }
      CHECK(row == sums.size());
    });
  }
  CHECK(decoders >= 9);
}
