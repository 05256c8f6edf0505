#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <gatefold/decoders.hpp>
#include <gatefold/gatefold.hpp>
#include <iostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../support/weights.hpp"
#include "folder.hpp"

namespace generating {

/// Throws ArgumentError unless all ids are in [0, vocabulary).
inline void expect_ids(const std::string& name, const std::vector<Index>& ids, Index vocabulary) {
  for (const Index id : ids)
    expect(0 <= id && id < vocabulary, "options", name, Joined{"ids from 0 to ", vocabulary - 1}, id);
}

/// Trains the parameters on a file of ids, and returns the trained parameters. The ids are divided into sequences of
/// `length` tokens. Step i reads sequence i modulo the number of sequences. Therefore a run that continues from a
/// checkpoint gives the same bits as an uninterrupted run.
template <class M, class P>
P train(const Options& o, Cpu::Context& ctx, const io::DecoderConfig& config, const M& model, P params) {
  std::ifstream file(o.train);
  std::vector<Index> ids;
  for (Index id = 0; file >> id;) ids.push_back(id);
  expect(file.eof() && ids.size() >= 2, "options", "train", "a file of at least 2 ids",
         Joined{ids.size(), file.eof() ? " ids" : " ids before other text"});
  expect_ids("train", ids, config.sizes.vocabulary);
  const Index pairs = static_cast<Index>(ids.size()) - 1, length = std::min(o.length, pairs);
  const optim::Clipped adam{optim::AdamW{.lr = o.lr}, 1.0};
  Trainer trainer{ctx, model, config.sizes.loss(), adam, Seed{o.sampling.seed}, not_trained(o, config)};
  trainer.params = std::move(params);
  if (!o.checkpoint.empty() && io::exists(o.checkpoint)) load_checkpoint(o.checkpoint, trainer);
  const auto extra = extra_of<typename decltype(trainer)::Extra>(Segment<float, Cpu>{.length = length});
  const auto tokens = [&](Index begin) { return View<const Index, 1, Cpu>(ids.data() + begin, length); };
  std::cerr.precision(8);
  while (trainer.state.step < o.steps) {
    const Index step = trainer.state.step, begin = step % (pairs / length) * length;
    const double loss = trainer.step(tokens(begin), tokens(begin + 1), extra);
    if (step % 10 == 0) std::cerr << "step " << step << ": loss " << loss << std::endl;
    if (!o.checkpoint.empty() && (step % 100 == 99 || step + 1 == o.steps)) save_checkpoint(o.checkpoint, trainer);
  }
  std::cerr << "loss of the first sequence after " << trainer.state.step
            << " steps: " << trainer.evaluate(tokens(0), tokens(1), extra) << std::endl;
  return std::move(trainer.params);
}

/// Prints a line of tokens that continue a prompt, each as soon as it is known. The first pass reads the whole prompt,
/// and each later pass reads one token, because the KV cache keeps the keys and values of earlier tokens. The function
/// returns after a token of the list `stop`, or after `o.tokens` tokens.
/// @param params, output  parameters of the model and its output layer, or `model` and `loss` of frozen parameters
template <class M, class P>
void generate(const Options& o, Cpu::Context& ctx, const DecoderSizes& s, const M& model, const P& params,
              const Params<StreamedCrossEntropy, float, Cpu>& output, const std::vector<Index>& prompt,
              const std::vector<Index>& stop) {
  KvCache<float, Cpu> cache(ctx, s.cache(1, static_cast<Index>(prompt.size()) + o.tokens));
  Carry<M, float, Cpu> carry;
  Tensor<float, 2, Cpu> logits(1, s.vocabulary);
  std::vector<Index> ids = prompt;
  double prefill = 0, decoding = 0;  // seconds
  Index i = 0;
  for (bool last = false; !last; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const Index count = static_cast<Index>(ids.size());
    const Segment<float, Cpu> segment{.length = count, .cache = cache.of(count)};
    Tensor<float, 2, Cpu> y(count, s.model_dim);
    model.begin(ctx, model_params(params), count, carry);
    infer(model, ctx, params, ids, carry, y, extra_of<Extra<M, float, Cpu>>(segment));
    cache.advance();
    s.loss().logits(ctx, output, params, std::as_const(y).view().rows(count - 1, 1), logits.view());
    ids = {sample({logits.data(), static_cast<std::size_t>(s.vocabulary)}, o.sampling, i)};
    (i == 0 ? prefill : decoding) += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::cout << (i == 0 ? "" : " ") << ids[0] << std::flush;
    last = i + 1 == o.tokens || std::find(stop.begin(), stop.end(), ids[0]) != stop.end();
  }
  std::cout << std::endl;
  std::cerr << "prefill: " << prompt.size() << " tokens, " << double(prompt.size()) / prefill
            << " tokens/s; decoding: " << i - 1 << " tokens, " << (i > 1 ? double(i - 1) / decoding : 0)
            << " tokens/s\n";
}

/// Runs the program with one type of decoder.
template <class M>
void run(const Options& o, const io::DecoderConfig& config, const M& model) {
  const std::vector<std::vector<Index>> prompts = prompts_of(o);
  const std::vector<Index> stop = stop_ids(o);
  print_plan(o, config, model, prompts);
  const DecoderSizes& s = config.sizes;
  for (const auto& prompt : prompts) expect_ids(o.prompts.empty() ? "prompt-ids" : "prompts", prompt, s.vocabulary);
  if (o.stop != std::vector<Index>{-1}) expect_ids("stop-ids", o.stop, s.vocabulary);
  std::error_code unknown;
  expect(!std::filesystem::equivalent(o.save, o.model, unknown), "options", "save", "another folder than model",
         o.save.string());
  Cpu::Context ctx(o.threads);
  const Seed seed{o.sampling.seed};
  const FreezeOptions packing{.weights = command_line::form_of_weights(o.weights)};
  const auto answer = [&](const auto& params, const auto& output) {
    if (o.tokens == 0) return;
    for (const auto& prompt : prompts) generate(o, ctx, s, model, params, output, prompt, stop);
  };
  const auto save_frozen = [&](const auto& frozen) {
    if (o.save_frozen.empty()) return;
    io::save_frozen(o.save_frozen, ctx, frozen, {}, {.mappable = o.mappable});
    std::cerr << "saved " << o.save_frozen.string() << '\n';
  };
  if (!o.frozen.empty()) {
    const auto frozen = io::load_frozen(o.frozen, ctx, model, s.loss());
    answer(frozen.model, frozen.loss);
    return;
  }
  if (serves(o)) {
    // [snippet frozen]
    const auto frozen = io::load_frozen_decoder(o.model, ctx, config, model, packing);  // {.weights = Weights::int8}
    answer(frozen.model, frozen.loss);
    // [/snippet]
    save_frozen(frozen);
    return;
  }
  using P = ModelAndLoss<Params<M, float, Cpu>, Params<StreamedCrossEntropy, float, Cpu>>;
  P params = !o.model.empty()
                 ? io::load_decoder(o.model, ctx, config, model)
                 : P{init_params<float, Cpu>(model, ctx, seed), init_params<float, Cpu>(s.loss(), ctx, seed.fork(1))};
  if (!o.train.empty()) params = train(o, ctx, config, model, std::move(params));
  if (!o.save.empty()) {
    io::save_decoder(o.save, ctx, config, params, o.model);
    std::cerr << "saved " << o.save.string() << '\n';
  }
  if (o.weights.empty()) return answer(params.model, params.loss);
  const auto frozen = freeze(ctx, std::move(params), packing);
  answer(frozen.model, frozen.loss);
  save_frozen(frozen);
}

}  // namespace generating
