#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

constexpr Index length = 16, width = 38;

auto attention(bool causal) {
  return Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = width, .heads = 2, .causal = causal}}};
}
template <class AttentionT>
auto block_with(const AttentionT& attention, const AttentionPosterior& mixing) {
  const AttentionAware<SoftmaxTopK> gate{.scores = {.experts = experts}, .mixing = mixing, .selection = {.k = 2}};
  return Block{attention, Residual{update::HeavyBall{}, Mixture{gate, Linear{.model_dim = width}}}};
}
auto block_of(const AttentionPosterior& mixing, bool causal = true) { return block_with(attention(causal), mixing); }

/// Calls f with blocks of an attention and a gate that follows it.
template <class F>
void each_block(F&& f) {
  f("lowest entropy", block_of({}));
  f("lowest entropy of the sequence", block_of({.head = FollowedHead::lowest_entropy_of_sequence}));
  f("every head, only confident", block_of({.head = FollowedHead::every, .only_confident = true}));
  f("both ways", block_of({.mean_of_heads = false}, false));
}

}  // namespace

TEST_CASE_TEMPLATE("attention: the number of threads changes no bit", T, float, double) {
  each_block([](const std::string& name, const auto& block) {
    CAPTURE(name);
    on_any_threads<T>(block, 24, true, {.length = 8, .padding = true});
    on_any_threads<T>(block, 256, false, {.length = 64});
  });
}

TEST_CASE_TEMPLATE("attention: other sequences of the batch change no bit", T, float, double) {
  each_block([](const std::string& name, const auto& block) {
    CAPTURE(name);
    in_any_batch<T>(block, {.length = length}, length);
    in_any_batch<T>(block, {.length = length, .padding = true}, length);
  });
}

TEST_CASE_TEMPLATE("causal attention: later items change no bit of earlier ones", T, float, double) {
  without_later_items<T>(attention(true));
  for (const auto head : {FollowedHead::lowest_entropy, FollowedHead::every})
    for (const bool only_confident : {false, true})
      without_later_items<T>(block_of({.head = head, .only_confident = only_confident}));
}

TEST_CASE_TEMPLATE("RelativeAttention: threads, batch and later items change no bit", T, float, double) {
  const auto in_window = [](Index window) {
    const RelativeAttention of{.model_dim = width, .heads = 2, .window = window, .dropout = 0.3};
    return RelativeKeys{window, width / 2, Residual{update::Plain{}, PreNorm{RmsNorm{}, of}}};
  };
  for (const Index window : {5, 40}) {
    CAPTURE(window);
    on_any_threads<T>(in_window(window), 24, true, {.length = 8, .noise = true});
    on_any_threads<T>(in_window(window), 600, false, {.length = 300, .padding = true});
    in_any_batch<T>(in_window(window), {.length = length}, length);
    in_any_batch<T>(in_window(window), {.length = length, .padding = true}, length);
    without_later_items<T>(in_window(window));
  }
  const auto followed = [](Index window, FollowedHead head) {
    const RelativeAttention of{.model_dim = width, .heads = 2, .window = window, .itself = false};
    return RelativeKeys{window, width / 2,
                        block_with(Residual{update::Plain{}, PreNorm{RmsNorm{}, of}}, {.sigma = 4, .head = head})};
  };
  for (const auto head : {FollowedHead::lowest_entropy, FollowedHead::every}) {
    on_any_threads<T>(followed(5, head), 24, true, {.length = 8});
    on_any_threads<T>(followed(40, head), 600, false, {.length = 300});
    in_any_batch<T>(followed(5, head), {.length = length}, length);
    without_later_items<T>(followed(40, head));
  }
}
