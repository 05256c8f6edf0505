#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/specialisation.hpp>
#include <utility>
#include <vector>

#include "chance.hpp"
#include "data.hpp"

namespace studies::mot {

using gatefold::metric::Specialisation;

/// Returns the weights of the experts' neurons, [E, 1, d]: each expert has one neuron.
template <class Params>
gatefold::View<const float, 3, Cpu> neurons(const Params& p) {
  if constexpr (requires { p.value; }) {
    return p.value.view().as(p.value.extent(0), 1, p.value.extent(1));
  } else {
    return p.weight.view().as(p.weight.extent(0), 1, p.weight.extent(1));
  }
}

/// Returns the parameters of the experts. If AttentionExperts learn factors (key_dim > 0), K and W are the products of
/// the factors.
template <class Params>
const Params& merged(Cpu::Context&, const Params& p) {
  return p;
}
inline gatefold::AttentionExpert::Params<float, Cpu> merged(Cpu::Context& ctx,
                                                            const gatefold::AttentionExpert::Params<float, Cpu>& p) {
  if (p.output.size() == 0) return gatefold::clone(ctx, p);
  const Index experts = p.value.extent(0), dim = p.value.extent(1), width = p.attention_key.extent(2),
              outputs = p.output.extent(2);
  gatefold::AttentionExpert::Params<float, Cpu> products;
  products.key_query.resize(experts, dim, dim);
  products.value.resize(experts, dim, outputs);
  for (Index i = 0; i < experts; ++i) {
    const auto of = [i, dim](auto& t, Index columns) { return t.view().rows(i, 1).as(dim, columns); };
    Cpu::gemm(ctx, of(p.attention_key, width), false, of(p.attention_query, width), true, false,
              of(products.key_query, dim), gatefold::functor::Store{});
    Cpu::gemm(ctx, of(p.value, dim), false, of(p.output, outputs), false, false, of(products.value, outputs),
              gatefold::functor::Store{});
  }
  return products;
}

inline Json matrix(Index rows, Index columns, const auto& at) {
  Json m = Json::array();
  for (Index r = 0; r < rows; ++r) {
    m.push_back(Json::array());
    for (Index c = 0; c < columns; ++c) m.back().push_back(at(r, c));
  }
  return m;
}

/// Measures Proposition 1 and eq. (11) of paper 000: the class that each expert has learned, and the items that it
/// gets.
///
/// The results `share` and `one_label` each have a second value <name>_by_chance, the expected value for random
/// routing. For `share`, each expert gets as many items as in `plan`, but of random classes. For `one_label`, each
/// expert gets as many items of each class as in `plan`, but with random labels.
///
/// @param plan  the routing of the test items
inline Json specialists(Cpu::Context& ctx, const Data& data, gatefold::View<const float, 3, Cpu> w,
                        const gatefold::SparsePlan<float, Cpu>& plan) {
  const Specialisation of = gatefold::metric::specialisation(ctx, w, data.signals.feature);
  const Specialisation center = gatefold::metric::specialisation(ctx, w, data.signals.center);
  const Index classes = of.count, experts = plan.experts(), items = plan.items();
  // The table has one row per class and label, to show if experts specialise in a label.
  std::vector<Index> labels;
  for (Index n = 0; n < items; ++n) labels.push_back(2 * data.test.cluster(n) + (data.test.target(n, 0) > 0));
  const auto cells = gatefold::metric::routing_table(ctx, plan, labels, 2 * classes);
  const auto count = [&](Index n, Index i) { return static_cast<double>(cells(2 * n, i) + cells(2 * n + 1, i)); };

  double margin = 0, least = INFINITY, own = 0, other = 0, to_center = 0, used_own = 0, used_other = 0, in = 0,
         split = 0, uneven = 0, in_by_chance = 0, split_by_chance = 0;
  Index used = 0, covered = 0;
  const auto items_of_class = [&](Index n) {
    double all = 0;
    for (Index i = 0; i < experts; ++i) all += count(n, i);
    return all;
  };
  for (Index i = 0; i < experts; ++i) {
    const Index star = of.signal[static_cast<std::size_t>(i)];
    double next = -INFINITY, others = 0, here = 0;
    for (Index n = 0; n < classes; ++n) {
      here += count(n, i);
      split += std::abs(static_cast<double>(cells(2 * n + 1, i) - cells(2 * n, i)));
      split_by_chance += mean_of_signs(cells(2 * n + 1, i) + cells(2 * n, i));
      to_center += std::abs(center.product(i, n)) / static_cast<double>(classes);
      if (n == star) continue;
      next = std::max(next, of.product(i, n));
      others += std::abs(of.product(i, n)) / static_cast<double>(classes - 1);
    }
    margin += of.product(i, star) - next;
    least = std::min(least, of.product(i, star) - next);
    own += of.product(i, star);
    other += others;
    in += count(star, i);
    in_by_chance += here * items_of_class(star) / static_cast<double>(items);
    if (here < 0.01 * static_cast<double>(items)) continue;
    ++used;
    used_own += of.product(i, star);
    used_other += others;
  }
  for (Index n = 0; n < classes; ++n) {
    const auto& group = of.experts[static_cast<std::size_t>(n)];
    covered += !group.empty();
    double all = 0;
    for (const Index i : group) all += count(n, i);
    for (const Index i : group)
      if (all > 0) uneven = std::max(uneven, std::abs(count(n, i) / all - 1 / static_cast<double>(group.size())));
  }
  const auto per = [](double sum, Index n) { return n > 0 ? sum / static_cast<double>(n) : 0; };
  return {{"margin", per(margin, experts)},
          {"least_margin", least},
          {"covered", covered},
          {"used", used},
          {"share", per(in, items)},
          {"share_by_chance", per(in_by_chance, items)},
          {"uneven", uneven},
          {"one_label", per(split, items)},
          {"one_label_by_chance", per(split_by_chance, items)},
          {"own", per(own, experts)},
          {"other", per(other, experts)},
          {"center", per(to_center, experts)},
          {"used_own", per(used_own, used)},
          {"used_other", per(used_other, used)},
          {"signal", of.signal},
          {"alignment", matrix(experts, classes, [&](Index i, Index n) { return of.product(i, n); })},
          {"center_alignment", matrix(experts, classes, [&](Index i, Index n) { return center.product(i, n); })},
          {"routing", matrix(classes, experts,
                             [&](Index n, Index i) {
                               const double all = items_of_class(n);
                               return all > 0 ? count(n, i) / all : 0;
                             })},
          {"routing_by_label",
           matrix(2 * classes, experts, [&](Index row, Index i) { return cells.share_of_class(row, i); })}};
}

/// Returns the mean over items of the largest score of an expert, max_i h_i with h = Σ_l Θᵀ X_l. It shows how much
/// noise matters: the scores of an item sum to 0, and noise in [0, 1) can only change the order of scores that differ
/// by less than 1.
/// @param theta  [d, E]
inline double largest_score(const gatefold::Tensor<float, 2, Cpu>& x, gatefold::View<const float, 2, Cpu> theta) {
  const Index items = x.extent(0), dim = theta.extent(0), length = x.extent(1) / dim;
  double sum = 0;
  for (Index n = 0; n < items; ++n) {
    double largest = -INFINITY;
    for (Index i = 0; i < theta.extent(1); ++i) {
      double h = 0;
      for (Index l = 0; l < length; ++l)
        for (Index j = 0; j < dim; ++j) h += static_cast<double>(theta(j, i)) * static_cast<double>(x(n, l * dim + j));
      largest = std::max(largest, h);
    }
    sum += largest;
  }
  return sum / static_cast<double>(items);
}

/// Kinds of content of a position: signal v_n and center c_n of the class, signal v_n' of a different class, noise.
inline constexpr std::size_t kKinds = 4;
using Attention = std::array<std::array<double, kKinds>, kKinds>;

/// Measures Proposition 2: the attention probabilities softmax(Xᵀ K X_l)_h, averaged by the kinds of content at the
/// query l and the key h. Uses only the first 256 test items. Returns two averages. The first is over all pairs of an
/// item and an expert that is specialised in the item's class. The second is over all pairs of an item and the expert
/// that it goes to.
///
/// @param of      the class that each expert is specialised in
/// @param routed  the expert that each test item goes to
inline std::pair<Attention, Attention> attention(Cpu::Context& ctx, const Data& data,
                                                 gatefold::View<const float, 3, Cpu> key_query,
                                                 const Specialisation& of,
                                                 const gatefold::Tensor<Index, 1, Cpu>& routed) {
  const Index items = std::min<Index>(data.test.x.extent(0), 256), length = data.law.length, dim = data.law.model_dim;
  const auto x = data.test.x.view().rows(0, items).as(items * length, dim);
  gatefold::Tensor<float, 2, Cpu> key(items * length, dim);
  Attention sum[2]{}, count[2]{};
  std::vector<double> p(static_cast<std::size_t>(length));
  for (Index i = 0; i < key_query.extent(0); ++i) {
    Cpu::gemm(ctx, x, false, key_query.rows(i, 1).as(dim, dim), false, false, key.view(), gatefold::functor::Store{});
    for (Index n = 0; n < items; ++n) {
      const bool counts[2]{of.signal[static_cast<std::size_t>(i)] == data.test.cluster(n), routed(n) == i};
      if (!counts[0] && !counts[1]) continue;
      const auto kind = [&](Index l) -> std::size_t {
        return l == data.test.place(n, 1) ? 0 : l == data.test.place(n, 0) ? 1 : l == data.test.place(n, 2) ? 2 : 3;
      };
      for (Index l = 0; l < length; ++l) {
        double total = 0;
        for (Index h = 0; h < length; ++h) {
          double score = 0;
          for (Index j = 0; j < dim; ++j)
            score += static_cast<double>(key(n * length + h, j)) * static_cast<double>(x(n * length + l, j));
          total += p[static_cast<std::size_t>(h)] = std::exp(score);
        }
        for (Index h = 0; h < length; ++h)
          for (const int who : {0, 1}) {
            if (!counts[who]) continue;
            sum[who][kind(l)][kind(h)] += p[static_cast<std::size_t>(h)] / total;
            count[who][kind(l)][kind(h)] += 1;
          }
      }
    }
  }
  for (const int who : {0, 1})
    for (std::size_t a = 0; a < kKinds; ++a)
      for (std::size_t b = 0; b < kKinds; ++b) sum[who][a][b] /= std::max(count[who][a][b], 1.0);
  return {sum[0], sum[1]};
}

}  // namespace studies::mot
