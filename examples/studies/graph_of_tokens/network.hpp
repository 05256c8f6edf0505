#pragma once

#include <cmath>
#include <numeric>
#include <span>

#include "../language/network.hpp"
#include "models.hpp"

namespace studies::graph_of_tokens {

using namespace gatefold;

/// A language model that can also predict each word from only the words before it.
/// @tparam MixingT  the mixing of its gates
template <class B, class ModelT, class MixingT>
class Network final : public lm::Network<B, ModelT> {
 public:
  using Parent = lm::Network<B, ModelT>;
  Network(const ModelT& model, const MixingT& mixing, const Mixing& options, const Setting& s, Index vocabulary,
          Seed seed)
      : Parent(model, s, vocabulary, seed), mixing_(mixing), options_(options) {
    change_tau();
  }

  void step(const lm::Ids& x, const lm::Ids& next) override {
    Parent::step(x, next);
    ++steps_;
    change_tau();
  }

  /// Computes the routing. If every layer has a mixture that mixes by similarity without a learned metric, also
  /// computes the mean of S[i,i], the weight of the probabilities of word i in the weighted mean for word i.
  std::vector<lm::Routing> routing(const lm::Ids& x) override {
    std::vector<lm::Routing> all = Parent::routing(x);
    if constexpr (requires {
                    mixing_.tau;
                    std::get<1>(this->saved.layers).layers[0].layer;
                  })
      for (std::size_t l = 0; l < all.size() && !mixing_.learned_metric; ++l) {
        const auto& seen = std::get<1>(this->saved.layers).layers[l].layer.calls[0];
        const auto u = training::to_host(this->ctx, seen.normed.view());
        const auto log_sum_exp = training::to_host(this->ctx, seen.branch.gate.mixing.log_sum_exp.view());
        double sum = 0;
        for (std::size_t i = 0; i < log_sum_exp.size(); ++i) {
          const std::span row(u.data() + i * u.size() / log_sum_exp.size(), u.size() / log_sum_exp.size());
          sum += std::exp(std::inner_product(row.begin(), row.end(), row.begin(), 0.0) / mixing_.tau - log_sum_exp[i]);
        }
        all[l].on_itself = sum / static_cast<double>(log_sum_exp.size());
      }
    return all;
  }

  std::vector<double> surprises_of_prefixes(const lm::Ids& x, const lm::Ids& next) override {
    const Index length = this->setting.length, sequences = static_cast<Index>(x.size()) / length;
    std::vector<float> before(x.size());
    Tensor<float, 1, B> valid(std::ssize(x));
    Tensor<float, 2, B> last(sequences, this->setting.dim);
    auto extra = this->extra;
    detail_::lookup::for_each_extra(extra, [&](auto& part) {
      if constexpr (requires { part.valid = std::as_const(valid).view(); }) part.valid = std::as_const(valid).view();
    });
    std::vector<double> all;
    for (Index at = 0; at < length; ++at) {
      for (Index n = 0; n < valid.size(); ++n) before[static_cast<std::size_t>(n)] = n % length <= at ? 1 : 0;
      training::from_host(this->ctx, before.data(), valid, valid.size());
      this->infer(x, extra);
      lm::Ids next_of_last;
      for (Index n = at; n < valid.size(); n += length) {
        next_of_last.push_back(next[static_cast<std::size_t>(n)]);
        copy(this->ctx, std::as_const(this->y).view().rows(n, 1), last.view().rows(n / length, 1));
      }
      const auto now = this->surprises_after(last, next_of_last);
      all.insert(all.end(), now.begin(), now.end());
    }
    return all;
  }

 private:
  /// Sets τ for the next step and for measurements before it, if τ changes during training.
  void change_tau() {
    if constexpr (requires { mixing_.tau; })
      if (options_.last_tau) {
        mixing_.tau = Annealed{.from = options_.tau,
                               .to = *options_.last_tau,
                               .total = this->setting.steps,
                               .shape = Annealed::Shape::geometric}
                          .at(steps_);
        detail_::lookup::for_each_extra(this->extra, [&](auto& part) {
          if constexpr (requires { part.tau; }) part.tau = mixing_.tau;
        });
      }
  }

  MixingT mixing_;
  Mixing options_;
  Index steps_ = 0;
};

/// Returns a mixture with the gate GateT, whose mixing has the given options.
template <class GateT>
auto mixture(const Setting& s, const typename GateT::Mixing& mixing) {
  GateT gate{.mixing = mixing, .selection = {.k = s.k}};
  gate.scores = with_experts(gate.scores, s.experts);
  return Mixture{gate, Mlp<Relu>{.model_dim = s.dim, .hidden_dim = s.hidden}};
}

inline Independent independent(const Mixing&) { return {}; }
inline TokenSimilarity similarity(const Mixing& m) {
  return {.tau = m.tau, .causal = m.causal, .learned_metric = m.learned_metric, .only_confident = m.only_confident};
}
inline AttentionPosterior attention(const Mixing& m) {
  return {.sigma = m.sigma, .head = m.head, .mean_of_heads = m.mean_of_heads, .only_confident = m.only_confident};
}

/// Makes a language model. In all models, attention reads the whole sequence and gives a trace, because the
/// attention-aware gate needs one.
template <class B, class MixingT>
std::unique_ptr<Model> make(const Parts& parts, const MixingT& mixing, const Setting& s, Index vocabulary, Seed seed) {
  const LanguageSizes sizes = lm::sizes(s, vocabulary);
  const auto network = [&](const auto& model) -> std::unique_ptr<Model> {
    return std::make_unique<Network<B, std::remove_cvref_t<decltype(model)>, MixingT>>(model, mixing, parts.mixing, s,
                                                                                       vocabulary, seed);
  };
  const auto every = [&](const auto& mixture) {
    return network(switch_model<language::Traced>(sizes, parts.rule, mixture));
  };
  using Smoe = WithMixing<SoftmaxTopK, MixingT>;
  switch (parts.base) {
    case Base::glam:
      return network(glam_model<language::Traced>(sizes, update::Plain{}, mixture<Smoe>(s, mixing),
                                                  Mlp<Relu>{.model_dim = s.dim, .hidden_dim = s.hidden}));
    case Base::x_moe:
      return every(mixture<WithMixing<XMoe, MixingT>>(s, mixing));
    case Base::smoe_dropout:
      return every(mixture<WithMixing<SmoeDropout, MixingT>>(s, mixing));
    default:
      return every(mixture<Smoe>(s, mixing));
  }
}

}  // namespace studies::graph_of_tokens
