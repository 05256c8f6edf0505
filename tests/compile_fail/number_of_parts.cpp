// expect: gatefold: a Mixture takes two parts, Mixture\{gate, expert\}: put the update rule around it, Residual\{rule, Mixture\{gate, expert\}\}, and pass experts of different types as one part, Experts\{std::tuple\{a, b\}\}; see docs/how-to/extending\.md#expert
// expect: gatefold: a Residual takes two parts, Residual\{rule, branch\}, for example update::HeavyBall\{\} and Mixture\{gate, expert\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a PreNorm takes two parts, PreNorm\{norm, branch\}, for example LayerNorm\{\} and Mixture\{gate, expert\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a PostNorm takes two parts, PostNorm\{layer, norm\}, for example Residual\{rule, branch\} and LayerNorm\{\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a Block takes two parts, Block\{attention, layer\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a WithShared takes a branch, an expert and, optionally, a weight: WithShared\{Mixture\{gate, expert\}, shared\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a Stack takes a layer and a depth, Stack\{layer, depth\}; join layers of different types with Chain\{a, b\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a PerToken takes a number of tokens and a layer: PerToken\{length, layer\}; see docs/how-to/extending\.md#branch
// expect: gatefold: Experts takes a tuple of kinds and the number of experts of each: Experts\{std::tuple\{a, b\}, \{2, 6\}\}, or Experts\{std::tuple\{a, b\}\} for one of each; see docs/how-to/extending\.md#expert
// expect: gatefold: a Dropout takes a rate and a branch: Dropout\{rate, branch\}; see docs/how-to/extending\.md#branch
// expect: gatefold: HiddenDropout takes a rate and an expert: HiddenDropout\{rate, expert\}; see docs/how-to/extending\.md#expert
// expect: gatefold: a OneExpert takes one part, OneExpert\{expert\}, for example Mlp<Gelu>\{\.\.\.\}; for a gate and several experts use Mixture\{gate, expert\}; see docs/how-to/extending\.md#expert
// expect: gatefold: SigmoidGated takes one expert: SigmoidGated\{expert\}; see docs/how-to/extending\.md#expert
// expect: gatefold: a NoResidual takes one part, NoResidual\{branch\}; for an update rule use Residual\{rule, branch\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a Skip takes one part, Skip\{layer\}; join layers with Chain\{a, b\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a Recompute takes a layer and, optionally, whether it is enabled: Recompute\{layer\} or Recompute\{layer, enabled\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a RelativeKeys takes two numbers and a layer: RelativeKeys\{window, head_dim, layer\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a NormedPoint takes two parts, NormedPoint\{norm, layer\}, for example LayerNorm\{\} and Residual\{rule, branch\}; see docs/how-to/extending\.md#branch
// expect: gatefold: First takes two update rules: First\{first, rest\}, for example First\{update::Adam\{\}, update::HeavyBall\{\}\}; see docs/how-to/extending\.md#rule
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  const SoftmaxTopK gate{.scores = {.experts = 3}};
  const Linear expert{.model_dim = 2};
  const update::HeavyBall rule;
#ifndef GATEFOLD_FAIL
  const Mixture mixture{gate, expert};
  const Residual residual{rule, mixture};
  const PreNorm pre_norm{LayerNorm{}, mixture};
  const PostNorm post_norm{residual, LayerNorm{}};
  const Block block{Residual{update::Plain{}, Attention{.model_dim = 2}}, residual};
  const WithShared shared{mixture, expert}, weighted{mixture, expert, 1};
  const Stack stack{residual, 2}, once{residual};
  const PerToken tokens{2, residual};
  const Experts kinds{std::tuple{expert, expert}};
  const Experts counted{std::tuple{expert}, {3}};
  const Dropout dropout{0.5, mixture};
  const HiddenDropout hidden{0.5, Mlp<Gelu>{2, 2}}, half{1 / 2, Mlp<Gelu>{2, 2}};
  const OneExpert one_expert{expert};
  const SigmoidGated gated{expert};
  const NoResidual no_residual{mixture};
  const Skip skip{residual};
  const Recompute again{residual}, perhaps{residual, false};
  const RelativeKeys keys{4, 2, RelativeAttention{.model_dim = 2, .window = 4}};
  const NormedPoint point{LayerNorm{}, residual};
  const update::First first{rule, rule}, cold{rule, rule, false};
#else
  const Mixture mixture{gate, expert, rule};
  const Residual residual{rule, gate, expert};
  const PreNorm pre_norm{expert};
  const PostNorm post_norm{rule, expert, LayerNorm{}};
  const Block block{expert};
  const WithShared shared{gate, expert, expert};
  const Stack stack{expert, expert}, one{2, expert};
  const PerToken tokens{expert, 2};
  const Experts kinds{expert, expert};
  const Dropout dropout{OneExpert{expert}, 0.5};
  const HiddenDropout hidden{Mlp<Gelu>{2, 2}, 0.5};
  const OneExpert one_expert{expert, expert};
  const SigmoidGated gated{gate, expert};
  const NoResidual no_residual{rule, expert};
  const Skip skip{expert, expert};
  const Recompute again{2, expert};
  const RelativeKeys keys{RelativeAttention{.model_dim = 2, .window = 4}, 4, 2};
  const NormedPoint point{expert};
  const update::First first{rule};
#endif
}
