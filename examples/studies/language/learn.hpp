#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <gatefold/data/corpus.hpp>
#include <gatefold/gatefold.hpp>
#include <gatefold/metric/load.hpp>
#include <gatefold/papers.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/numbers.hpp"
#include "model.hpp"
#include "text.hpp"

namespace studies::lm {

/// Reads a part of a text in blocks. A block has `batch` sequences of `length` words each (`x`), and the word after
/// each of these words (`next`).
class Blocks {
 public:
  Blocks(std::span<const TokenId> ids, const Setting& s, Seed seed = {})
      : corpus_{ids, s.batch, s.length, seed}, x(static_cast<std::size_t>(s.batch * s.length)), next(x.size()) {}
  Index count() const { return corpus_.blocks(); }
  void read(Index step) { corpus_.batch(step, x, next); }

 private:
  gatefold::data::Corpus corpus_;

 public:
  Ids x, next;
};

/// Returns a perplexity: exp of the mean over words of −log p. The second function computes p with a model, which
/// predicts each sequence without the words before it.
inline double perplexity(const std::vector<double>& surprises) { return std::exp(mean(surprises)); }
inline double perplexity(Model& model, std::span<const TokenId> ids, const Setting& s, Index most = Index(1) << 40) {
  Blocks blocks(ids, s);
  std::vector<double> all;
  for (Index b = 0; b < std::min(blocks.count(), most); ++b) {
    blocks.read(b);
    const auto of_block = model.surprises(blocks.x, blocks.next);
    all.insert(all.end(), of_block.begin(), of_block.end());
  }
  return perplexity(all);
}

/// Perplexities of a text and of the same text under attack. As in the papers, the model must predict the swapped
/// words, too. `harm` is the factor by which the attack raises the perplexity of the unchanged words, so it measures
/// the effect of swapped words in the context.
struct Perplexities {
  double clean = 0, attacked = 0, harm = 0;
};
inline Perplexities perplexities(Model& model, std::span<const TokenId> clean, std::span<const TokenId> attacked,
                                 const Setting& s) {
  gatefold::expect(attacked.size() == clean.size(), "perplexities", "attacked", clean.size(), attacked.size());
  Blocks before(clean, s), after(attacked, s);
  std::vector<double> of_clean, of_attacked, alone_before, alone_after;
  for (Index b = 0; b < before.count(); ++b) {
    before.read(b);
    after.read(b);
    const auto was = model.surprises(before.x, before.next), is = model.surprises(after.x, after.next);
    for (std::size_t n = 0; n < was.size(); ++n) {
      of_clean.push_back(was[n]);
      of_attacked.push_back(is[n]);
      if (before.next[n] != after.next[n]) continue;
      alone_before.push_back(was[n]);
      alone_after.push_back(is[n]);
    }
  }
  return {perplexity(of_clean), perplexity(of_attacked), perplexity(alone_after) / perplexity(alone_before)};
}

/// Returns the routing of each mixture on the first blocks of the validation text. Reads at most `most` blocks.
inline std::vector<Routing> routing(Model& model, const Text& text, const Setting& s, Index most = 8) {
  Blocks blocks(text.valid, s);
  const Index count = std::min<Index>(blocks.count(), most);
  const double share = 1 / static_cast<double>(count);
  std::vector<Routing> all;
  for (Index b = 0; b < count; ++b) {
    blocks.read(b);
    std::vector<Routing> now = model.routing(blocks.x);
    all.resize(now.size());
    for (std::size_t l = 0; l < now.size(); ++l) {
      Routing& to = all[l];
      const auto add = [](auto& sums, const auto& terms, auto factor) {
        sums.resize(terms.size());
        for (std::size_t e = 0; e < terms.size(); ++e) sums[e] += factor * terms[e];
      };
      to.entropy += share * now[l].entropy;
      to.norm += share * now[l].norm;
      if (now[l].on_itself) to.on_itself = to.on_itself.value_or(0) + share * *now[l].on_itself;
      add(to.load, now[l].load, Index(1));
      add(to.rank, now[l].rank, share);
      to.picks.insert(to.picks.end(), now[l].picks.begin(), now[l].picks.end());
    }
  }
  return all;
}

/// Returns the share of words whose set of k experts has changed from `before` to `after`, which are [N, k].
inline double fluctuation(std::vector<Index> before, std::vector<Index> after, Index k) {
  Index changed = 0;
  for (std::size_t n = 0; n < after.size(); n += static_cast<std::size_t>(k)) {
    const auto sorted = [&](std::vector<Index>& picks) {
      const auto begin = picks.begin() + static_cast<std::ptrdiff_t>(n);
      std::sort(begin, begin + k);
      return begin;
    };
    const auto a = sorted(before), b = sorted(after);
    changed += !std::equal(a, a + k, b);
  }
  return static_cast<double>(changed) / (static_cast<double>(after.size()) / static_cast<double>(k));
}

/// Returns √(Σ_e (c_e − c̄)² / E) / c̄, the coefficient of variation of the picks c_e of the experts.
inline double variation(const std::vector<Index>& load) {
  return gatefold::metric::Load{load}.coefficient_of_variation();
}

/// Appends measurements of each layer to the curves of a run, with four significant digits: curve[name][point][layer].
/// `rank_entropy` is the entropy in nats of the picks' ranks by norm; ln E means that all ranks are equally frequent.
inline void add_layers(const std::vector<Routing>& layers, Json& curve) {
  const auto add = [&](const char* name, const auto& of) {
    Json point = Json::array();
    for (const Routing& layer : layers) point.push_back(rounded(of(layer)));
    curve[name].push_back(std::move(point));
  };
  add("entropy", [](const Routing& layer) { return layer.entropy; });
  add("load_variation", [](const Routing& layer) { return variation(layer.load); });
  if (!layers.front().rank.empty()) {
    add("norm", [](const Routing& layer) { return layer.norm; });
    add("rank_entropy", [](const Routing& layer) {
      double sum = 0;
      for (const double share : layer.rank) sum -= share > 0 ? share * std::log(share) : 0;
      return sum;
    });
  }
  if (layers.front().on_itself) add("on_itself", [](const Routing& layer) { return layer.on_itself.value_or(0); });
}

/// Returns the eigenvalues of −∂u/∂x at all words, from the Jacobian ∂u/∂x at each word.
inline std::vector<std::complex<double>> spectrum(const std::vector<Matrix>& jacobians, Index dim) {
  std::vector<std::complex<double>> all;
  for (const Matrix& j : jacobians)
    for (const auto& value :
         gatefold::cpu::eigenvalues(gatefold::View<const float, 2, gatefold::Cpu>(j.data(), dim, dim)))
      all.push_back(-value);
  return all;
}

/// Returns the share of eigenvalues σ for which heavy ball with this μ and γ = 1 is stable (paper 001, Lemma 1). Also
/// returns the mean over σ of the spectral radius.
inline Json settles(const std::vector<std::complex<double>>& sigma, double mu) {
  Index stable = 0;
  double radius = 0;
  for (const auto& one : sigma) {
    const auto found = gatefold::metric::stability({&one, 1}, mu, 1);
    stable += found.stable;
    radius += found.radius;
  }
  const auto n = static_cast<double>(sigma.size());
  return {{"stable", static_cast<double>(stable) / n}, {"radius", radius / n}};
}

/// Trains one case and returns all its measurements.
///
/// Compares the routing of the same words after step 59/60 · steps and after the last step, because the papers compare
/// epochs 59 and 60.
inline Json learn(const Case& c, const Text& text, Seed seed, const Report& report) {
  const Setting& s = c.setting;
  const auto model = c.make(s, seed);
  Blocks blocks(text.train, s, seed.fork(1));
  const Index every = std::max<Index>(s.steps / 16, 1), snapshot = std::max<Index>(s.steps * 59 / 60, 1);
  Json curve{{"step", Json::array()}, {"valid", Json::array()}};
  std::vector<Routing> before;
  for (Index step = 0; step < s.steps; ++step) {
    blocks.read(step);
    model->step(blocks.x, blocks.next);
    if (step % 16 == 0) report(static_cast<double>(step) / static_cast<double>(s.steps));
    if (step + 1 == snapshot) before = routing(*model, text, s);
    if ((step + 1) % every != 0) continue;
    curve["step"].push_back(step + 1);
    curve["valid"].push_back(perplexity(*model, text.valid, s, 8));
    add_layers(routing(*model, text, s, 2), curve);
  }
  const Perplexities valid = perplexities(*model, text.valid, text.valid_attacked, s);
  const Perplexities test = perplexities(*model, text.test, text.test_attacked, s);
  Json result{{"valid", valid.clean},
              {"valid_attacked", valid.attacked},
              {"valid_harm", valid.harm},
              {"test", test.clean},
              {"test_attacked", test.attacked},
              {"test_harm", test.harm},
              {"parameters", model->parameters()},
              {"skipped", model->skipped()},
              {"curve", curve},
              {"layers", Json::array()}};
  const std::vector<Routing> after = routing(*model, text, s);
  for (std::size_t l = 0; l < after.size(); ++l) {
    result["layers"].push_back({{"entropy", after[l].entropy},
                                {"load_variation", variation(after[l].load)},
                                {"fluctuation", fluctuation(before[l].picks, after[l].picks, s.k)},
                                {"norm", after[l].norm},
                                {"rank", after[l].rank}});
    if (after[l].on_itself) result["layers"][l]["on_itself"] = *after[l].on_itself;
  }
  Blocks seen(text.valid, s);
  seen.read(0);
  const auto jacobians = model->jacobians(seen.x);
  for (std::size_t l = 0; l < jacobians.size(); ++l) {
    const auto sigma = spectrum(jacobians[l], s.dim);
    result["layers"][l]["plain"] = settles(sigma, 0);
    result["layers"][l]["momentum"] = settles(sigma, 0.7);
  }
  const auto directions = model->directions(seen.x);
  for (std::size_t l = 0; l < directions.size(); ++l)
    result["layers"][l]["direction"] = {
        {"least", directions[l].least}, {"normalised", directions[l].normalised}, {"cosine", directions[l].cosine}};
  if (const auto prefixes = model->surprises_of_prefixes(seen.x, seen.next); !prefixes.empty()) {
    result["whole"] = perplexity(model->surprises(seen.x, seen.next));
    result["prefixes"] = perplexity(prefixes);
  }
  return result;
}

}  // namespace studies::lm
