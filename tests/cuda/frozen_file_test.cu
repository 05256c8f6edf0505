// Files of frozen weights. The device writes the same bytes as the CPU, except for output layers, and reads the files
// of the CPU.
#include "gatefold/train/frozen_file.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "gatefold/io/safetensors.hpp"
#include "support/frozen_on_cpu.hpp"
#include "support/quantised.hpp"
#include "support/temp_directory.hpp"

#ifdef GATEFOLD_CPU_BESIDE
using namespace gatefold;
using namespace gatefold::test;
using support::read_bytes;
using support::TempDirectory;

namespace {

template <class C>
std::vector<float> on_host(C& ctx, const auto& t) {
  std::vector<float> values(static_cast<std::size_t>(t.size()));
  C::Backend::to_host(ctx, t.size(), t.data(), values.data());
  return values;
}
/// Reads the plain parameters that the CPU wrote.
template <class C>
auto plain(C& ctx, const FilesOfCpu& files, bool tied) {
  using B = typename C::Backend;
  auto model = init_params<float, B>(frozen_model(), ctx, Seed{3});
  auto loss = init_params<float, B>(frozen_loss(tied), ctx, Seed{4});
  ModelAndLoss<decltype(model), decltype(loss)> both{std::move(model), std::move(loss)};
  io::load(files.plain(), ctx, io::Part{"params", both});
  return both;
}
/// Returns the outputs of the model for 5 ids.
template <class C, class P>
auto outputs(C& ctx, const P& frozen) {
  using B = typename C::Backend;
  const std::vector<Index> ids{1, 44, 3, 0, 5};
  Tensor<Index, 1, B> on_device(5);
  B::from_host(ctx, 5, ids.data(), on_device.data());
  const auto model = frozen_model();
  Carry<decltype(model), float, B> carry;
  Tensor<float, 2, B> y(5, 37);
  model.begin(ctx, frozen.params, 5, carry);
  infer(model, ctx, frozen, on_device, carry, y);
  return y;
}
template <class C, class P>
std::vector<float> logits(C& ctx, bool tied, const P& frozen) {
  using B = typename C::Backend;
  Tensor<float, 2, B> z(5, 45);
  const auto y = outputs(ctx, frozen.model);
  frozen_loss(tied).logits(ctx, frozen.loss, frozen.model, y, z);
  return on_host(ctx, z);
}
/// Returns the values of an output layer W [V, D] after rounding to `form`, by plain loops.
std::vector<float> rounded_rows(Weights form, const std::vector<float>& w, Index dim) {
  std::vector<float> values;
  for (std::size_t row = 0; row < w.size(); row += static_cast<std::size_t>(dim))
    for (Index k = 0; k < dim; k += 32) {
      const naive::Group group = naive::quantised(
          form, naive::group_of(k, dim, [&](Index i) { return w[row + static_cast<std::size_t>(i)]; }));
      for (const double q : group.q) values.push_back(static_cast<float>(group.scale * q));
    }
  return values;
}

const FreezeOptions all_options[] = {{},
                                     {.weights = Weights::bfloat16},
                                     {.weights = Weights::int8},
                                     {.weights = Weights::int4},
                                     {.weights = Weights::mxfp4},
                                     {.weights = Weights::int4, .except = {{"**.down", Weights::int8}}},
                                     {.weights = Weights::mxfp4, .except = {{"**.down", Weights::bfloat16}}}};

}  // namespace

TEST_CASE_TEMPLATE("cuda: save_frozen: writes the bytes of the CPU", B, Cuda, CudaBf16) {
  const TempDirectory folder;
  const FilesOfCpu files{folder.path};
  const auto path = folder.path / "device.safetensors", again = folder.path / "again.safetensors";
  typename B::Context ctx;
  for (const FreezeOptions& options : all_options)
    for (const bool keep_plain : {true, false}) {
      CAPTURE(static_cast<int>(options.weights));
      CAPTURE(keep_plain);
      write_on_cpu(files, false, options);
      FreezeOptions on_device = options;
      on_device.keep_plain = keep_plain;
      const auto frozen = freeze(ctx, plain(ctx, files, false).model, on_device);
      io::save_frozen(path, ctx, frozen);
      CHECK(read_bytes(path).size() > 1000);
      CHECK((read_bytes(path) == read_bytes(files.frozen())));
      // The file of the CPU gives the device the same results as the weights that the device has frozen itself.
      const auto loaded = io::load_frozen(files.frozen(), ctx, frozen_model());
      CHECK(on_host(ctx, outputs(ctx, loaded)) == on_host(ctx, outputs(ctx, frozen)));
      CHECK(loaded.packed.quantised_bytes() == frozen.packed.quantised_bytes());
      io::save_frozen(again, ctx, loaded);
      // Loading turns bfloat16 copies into floats, so the files are compared only without such copies.
      if (frozen.packed.size() == 0) CHECK((read_bytes(again) == read_bytes(path)));
    }
}

TEST_CASE("cuda: load_frozen: reads language models saved on GPU or CPU") {
  const TempDirectory folder;
  const FilesOfCpu files{folder.path};
  const auto path = folder.path / "device.safetensors";
  Cuda::Context ctx;
  for (const FreezeOptions& options : all_options)
    for (const bool tied : {false, true}) {
      CAPTURE(static_cast<int>(options.weights));
      CAPTURE(tied);
      write_on_cpu(files, tied, options);
      const auto w = on_host(ctx, plain(ctx, files, tied).loss.weight);
      const auto frozen = freeze(ctx, plain(ctx, files, tied), options);
      io::save_frozen(path, ctx, frozen);
      const auto expected = logits(ctx, tied, frozen);
      CHECK(logits(ctx, tied, io::load_frozen(path, ctx, frozen_model(), frozen_loss(tied))) == expected);

      // The device does not pack the output layer. If it loads a file of the CPU, it unpacks this layer to floats, or
      // uses the table of the embedding instead if the weights are tied.
      const auto of_cpu = io::load_frozen(files.with_loss(), ctx, frozen_model(), frozen_loss(tied));
      const auto mappable = io::load_frozen(files.mappable(), ctx, frozen_model(), frozen_loss(tied));
      CHECK(logits(ctx, tied, mappable) == logits(ctx, tied, of_cpu));
      // On the device, .mappable does not change the file that is written.
      io::save_frozen(path, ctx, mappable, {}, {.mappable = true});
      const std::string text = read_bytes(path);
      io::save_frozen(path, ctx, mappable);
      CHECK((read_bytes(path) == text));
      if (tied) {
        CHECK(of_cpu.loss.weight.extent(0) == 0);
        CHECK(logits(ctx, tied, of_cpu) == expected);
      } else {
        const auto floats = on_host(ctx, of_cpu.loss.weight);
        if (is_quantised(options.weights)) CHECK(floats == rounded_rows(options.weights, w, 37));
        if (options.weights == Weights::unchanged) CHECK(floats == w);
        for (std::size_t i = 0; i < w.size() && options.weights == Weights::bfloat16; ++i)
          REQUIRE(floats[i] == float(Bfloat16::from(w[i])));
      }
    }
}

TEST_CASE("cuda: load_frozen: an error leaves no weights on the device") {
  const TempDirectory folder;
  const FilesOfCpu files{folder.path};
  write_on_cpu(files, false, {.weights = Weights::int8});
  std::string text = read_bytes(files.frozen());
  text.replace(text.find("expert.down.scale"), 17, "expert.dawn.scale");
  std::ofstream(files.frozen(), std::ios::binary) << text;
  Cuda::Context ctx;
  const auto free_memory = [] {
    std::size_t free = 0, total = 0;
    REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
    return free;
  };
  [[maybe_unused]] const std::size_t before = free_memory();
  CHECK_THROWS_AS(io::load_frozen(files.frozen(), ctx, frozen_model()), FileError);
#ifdef CUDA_EMULATOR  // a real device gives memory in pages
  CHECK(free_memory() == before);
#endif
}
#endif  // GATEFOLD_CPU_BESIDE
