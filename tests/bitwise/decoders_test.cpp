// Decoders of tests/golden/decoders give the same bits for a whole prompt and step by step, and on any number of
// threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/load_decoder.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/decoders.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index sequences = 2, length = 24;  // longer than the windows of the decoders

std::vector<Index> tokens(Index vocabulary, Index shift = 0) {
  std::vector<Index> ids;
  for (Index i = 0; i < sequences * length; ++i) ids.push_back((i * i + 3 * i + shift) % vocabulary);
  return ids;
}

/// Returns the outputs [sequences, length, D] of a decoder that reads segments of the given lengths with a KV cache.
template <class T, class B, class M, class P>
std::vector<T> in_segments(typename B::Context& ctx, const DecoderSizes& sizes, const M& model, const P& params,
                           const std::vector<Index>& lengths) {
  const std::vector<Index> ids = tokens(sizes.vocabulary);
  std::vector<T> all(static_cast<std::size_t>(sequences * length * sizes.model_dim));
  KvCache<T, B> cache(ctx, sizes.cache(sequences, length));
  Carry<M, T, B> carry;
  Index begin = 0;
  for (const Index count : lengths) {
    std::vector<Index> now;
    for (Index s = 0; s < sequences; ++s)
      now.insert(now.end(), ids.begin() + s * length + begin, ids.begin() + s * length + begin + count);
    const View<const Index, 1, B> x(now.data(), sequences * count);
    Tensor<T, 2, B> y(x.extent(0), sizes.model_dim);
    model.begin(ctx, params.model, x.extent(0), carry);
    infer(model, ctx, params.model, x, carry, y.view(),
          extra_of<Extra<M, T, B>>(Segment<T, B>{.length = count, .cache = cache.of(count)}));
    cache.advance();
    for (Index s = 0; s < sequences; ++s)
      std::copy_n(y.data() + s * count * sizes.model_dim, count * sizes.model_dim,
                  all.data() + (s * length + begin) * sizes.model_dim);
    begin += count;
  }
  REQUIRE(begin == length);
  return all;
}

template <class T, class B>
void check_segments() {
  for (const std::string& name : all_decoders()) {
    CAPTURE(name);
    const auto config = io::read_decoder_config(decoder_folders() / name);
    with_decoder(config.sizes, [&](const auto& model) {
      using M = std::remove_cvref_t<decltype(model)>;
      typename B::Context one(1), two(2, true);
      const auto params = io::load_decoder<T>(decoder_folders() / name, one, config, model);
      const auto x = tokens(config.sizes.vocabulary);
      Tensor<T, 2, B> y(sequences * length, config.sizes.model_dim);
      Carry<M, T, B> carry;
      model.begin(one, params.model, y.extent(0), carry);
      infer(model, one, params.model, View<const Index, 1, B>(x.data(), y.extent(0)), carry, y.view(),
            extra_of<Extra<M, T, B>>(Segment<T, B>{.length = length}));
      const std::vector<T> whole(y.data(), y.data() + y.size());
      CHECK(std::count(whole.begin(), whole.end(), T(0)) == 0);
      for (const auto& lengths :
           {std::vector<Index>{length}, std::vector<Index>{7, 1, 13, 3}, std::vector<Index>(length, 1)}) {
        CAPTURE(lengths.size());
        CHECK(in_segments<T, B>(one, config.sizes, model, params, lengths) == whole);
        CHECK(in_segments<T, B>(two, config.sizes, model, params, lengths) == whole);
      }
    });
  }
}

/// Returns the parameters after two steps of training, and the losses.
template <class B, class M>
std::vector<double> trained(typename B::Context& ctx, const std::string& name, const io::DecoderConfig& config,
                            const M& model) {
  Trainer trainer{ctx, model, config.sizes.loss(), optim::AdamW{.lr = 0.01}, Seed{1}};
  trainer.params = io::load_decoder(decoder_folders() / name, ctx, config, model);
  const auto extra = extra_of<typename decltype(trainer)::Extra>(Segment<float, B>{.length = length});
  const std::vector<Index> ids = tokens(config.sizes.vocabulary), next = tokens(config.sizes.vocabulary, 5);
  std::vector<double> losses;
  for (int step = 0; step < 2; ++step) losses.push_back(trainer.step(ids, next, extra));
  std::vector<double> all = values(trainer.params);
  all.insert(all.end(), losses.begin(), losses.end());
  return all;
}

template <class B>
void check_training() {
  for (const std::string& name : all_decoders()) {
    CAPTURE(name);
    const auto config = io::read_decoder_config(decoder_folders() / name);
    with_decoder(config.sizes, [&](const auto& model) {
      typename B::Context one(1), two(2, true);
      CHECK(same_bits(trained<B>(one, name, config, model), trained<B>(two, name, config, model)));
    });
  }
}

}  // namespace

// The models of all decoders take long to compile, so some types are left to `tests/run.sh --full`.
TEST_CASE("decoders: prefill and single steps give the same bits") {
  check_segments<float, Cpu>();
#ifdef GATEFOLD_SLOW_TESTS
  check_segments<double, Cpu>();
#endif
}

TEST_CASE("decoders: prefill and single steps agree bitwise on CpuBf16") { check_segments<float, CpuBf16>(); }

TEST_CASE("decoders: training gives the same bits on two threads") {
  check_training<Cpu>();
#ifdef GATEFOLD_SLOW_TESTS
  check_training<CpuBf16>();
#endif
}
