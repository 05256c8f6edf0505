#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "gatefold/core/types.hpp"

namespace gatefold::naive {

/// Returns the softmax of a row of scores. Only the first `seen` scores count; the others get 0.
inline std::vector<double> attention_row(std::vector<double> score, Index seen) {
  double top = score[0], total = 0;
  for (Index j = 0; j < seen; ++j) top = std::max(top, score[std::size_t(j)]);
  for (Index j = 0; j < static_cast<Index>(score.size()); ++j)
    total += score[std::size_t(j)] = j < seen ? std::exp(score[std::size_t(j)] - top) : 0;
  for (double& v : score) v /= total;
  return score;
}

/// Computes multi-head attention of one sequence x [length · dim] with the weights of expert e, by loops.
template <class P>
std::vector<double> multi_head(const P& p, Index e, const std::vector<double>& x, Index length, Index heads,
                               bool causal) {
  const Index dim = p.query.extent(1), width = dim / heads;
  const auto project = [&](const auto& w, const std::vector<double>& rows) {
    std::vector<double> y(rows.size(), 0.0);
    for (Index l = 0; l < length; ++l)
      for (Index j = 0; j < dim; ++j)
        for (Index d = 0; d < dim; ++d) y[std::size_t(l * dim + j)] += rows[std::size_t(l * dim + d)] * w(e, d, j);
    return y;
  };
  const auto q = project(p.query, x), k = project(p.key, x), v = project(p.value, x);
  std::vector<double> context(x.size(), 0.0);
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < length; ++i) {
      std::vector<double> score(static_cast<std::size_t>(length), 0.0);
      for (Index j = 0; j < length; ++j)
        for (Index d = h * width; d < (h + 1) * width; ++d)
          score[std::size_t(j)] += q[std::size_t(i * dim + d)] * k[std::size_t(j * dim + d)] / std::sqrt(double(width));
      const auto a = attention_row(score, causal ? i + 1 : length);
      for (Index j = 0; j < length; ++j)
        for (Index d = h * width; d < (h + 1) * width; ++d)
          context[std::size_t(i * dim + d)] += a[std::size_t(j)] * v[std::size_t(j * dim + d)];
    }
  return project(p.output, context);
}

}  // namespace gatefold::naive
