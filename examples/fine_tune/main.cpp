// fine_tune FOLDER NEW_FOLDER: reads a decoder from a folder of the hub, trains it to count, and writes a new folder.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <gatefold/decoders.hpp>
#include <gatefold/gatefold.hpp>
#include <numeric>
#include <utility>
#include <vector>
using namespace gatefold;

// [snippet generate]
template <class M, class P>
void generate(Cpu::Context& ctx, const DecoderSizes& s, const M& model, const P& params, std::vector<Index> ids) {
  KvCache<float, Cpu> cache(ctx, s.cache(1, 100));  // one sequence of up to 100 tokens
  Carry<M, float, Cpu> carry;
  for (int i = 0; i < 8; ++i) {  // the first pass has the whole prompt, each later pass has one token
    const auto n = static_cast<Index>(ids.size());
    Tensor<float, 2, Cpu> y(n, s.model_dim), logits(1, s.vocabulary);
    const Segment<float, Cpu> segment{.length = n, .cache = cache.of(n)};
    model.begin(ctx, params.model, n, carry);
    infer(model, ctx, params.model, ids, carry, y, extra_of<Extra<M, float, Cpu>>(segment));
    cache.advance();
    s.loss().logits(ctx, params.loss, params.model, std::as_const(y).view().rows(n - 1, 1), logits.view());
    ids = {std::max_element(logits.data(), logits.data() + s.vocabulary) - logits.data()};
    std::printf(i < 7 ? "%lld " : "%lld\n", static_cast<long long>(ids[0]));
  }
}
// [/snippet]

void run(const std::filesystem::path& folder, const std::filesystem::path& to) {
  // [snippet read]
  const auto config = io::read_decoder_config(folder);
  Cpu::Context ctx;
  with_decoder(config.sizes, [&](const auto& model) {
    auto params = io::load_decoder(folder, ctx, config, model);
    generate(ctx, config.sizes, model, params, {0, 1, 2, 3});
    // [/snippet]
    // [snippet train]
    std::vector<Index> ids(33);
    std::iota(ids.begin(), ids.end(), 0);  // 0, 1, …, 32
    const View<const Index, 1, Cpu> x(ids.data(), 32), next(ids.data() + 1, 32);
    const NotTrained routers{"model.**.gate.scores"};
    Trainer trainer{ctx, model, config.sizes.loss(), optim::AdamW{.lr = 0.01}, Seed{1}, routers};
    trainer.params = std::move(params);
    for (int step = 0; step < 100; ++step) trainer.step(x, next);
    std::printf("loss %.3f\n", trainer.evaluate(x, next));
    generate(ctx, config.sizes, model, trainer.params, {0, 1, 2, 3});
    // [/snippet]
    // [snippet save]
    io::save_decoder(to, ctx, config, trainer.params, folder);
    // [/snippet]
  });
}

int main(int argc, char** argv) try {
  argc == 3 ? run(argv[1], argv[2]) : throw ArgumentError("usage: fine_tune FOLDER NEW_FOLDER");
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
