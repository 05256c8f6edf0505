#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/train/frozen_file.hpp"
#include "support/frozen_on_cpu.hpp"

namespace gatefold::test {

void write_on_cpu(const FilesOfCpu& files, bool tied, const FreezeOptions& options) {
  Cpu::Context ctx(1);
  const auto model = frozen_model();
  auto params = init_params<float, Cpu>(model, ctx, Seed{1});
  auto loss = init_params<float, Cpu>(frozen_loss(tied), ctx, Seed{2});
  Tensor<float, 3, Cpu>& up = std::get<1>(params.layers).branch.expert.up;
  for (Index k = 0; k < up.extent(1); ++k) {
    up(0, k, 0) = k % 2 == 0 ? 0.0F : -0.0F;                      // a group of zeros
    up(0, k, 1) = k % 3 == 0 ? -1.0F : k % 3 == 1 ? 1.0F : 0.5F;  // several weights with the largest magnitude
    up(1, k, 0) *= 0x1p-110F;
  }
  ModelAndLoss<decltype(params), decltype(loss)> both{std::move(params), std::move(loss)};
  io::save(files.plain(), ctx, {}, io::Part{"params", both});
  const auto frozen = freeze(ctx, std::move(both), options);
  io::save_frozen(files.with_loss(), ctx, frozen);
  io::save_frozen(files.mappable(), ctx, frozen, {}, {.mappable = true});
  io::save_frozen(files.frozen(), ctx, frozen.model);
}

}  // namespace gatefold::test
