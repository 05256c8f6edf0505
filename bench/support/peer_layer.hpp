#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <gatefold/gatefold.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef _OPENMP
#error "the loops of a peer's layer need OpenMP: without it they run on one thread, and exp one number at a time"
#endif

/// Computes the forward of a mixture-of-experts layer as a C++ user would write it without gatefold. Calls a library's
/// matrix product for one expert after the other, and computes the rest in loops.
namespace bench {

using gatefold::Index;

/// A function that computes c = a b for contiguous, row-major matrices: a [m, k] and b [k, n] of type S, c [m, n] of
/// float.
template <class S>
using Product = std::function<void(Index m, Index n, Index k, const S* a, const S* b, float* c)>;

/// Computes y = Σ_{top K} softmax weight · (gelu(x U_e) V_e) with the weight matrices U_e and V_e of each expert e:
/// gathers the rows of an expert, computes two products, and adds up the results of each item.
/// @tparam S  the type that experts multiply: float or Bfloat16. With Bfloat16, gathered items and hidden values are
///         rounded. Gates always multiply float
template <class S>
class PeerLayer {
 public:
  struct Weights {
    const float* gate;   // [D, E]
    const S *up, *down;  // [E, D, H], [E, H, D]
  };
  struct Shape {
    Index items, dim, hidden, experts, picks;
  };

  PeerLayer(Product<float> gate, Product<S> expert, const Shape& s)
      : gate_(std::move(gate)),
        product_(std::move(expert)),
        s_(s),
        logits_(size(s.items * s.experts)),
        weight_(size(s.items * s.picks)),
        sums_(std::is_same_v<S, float> ? 0 : size(s.items * s.picks * s.hidden)),
        gathered_(size(s.items * s.picks * s.dim)),
        hidden_(size(s.items * s.picks * s.hidden)),
        z_(size(s.items * s.picks * s.dim)),
        expert_(size(s.items * s.picks)),
        slot_(size(s.items * s.picks)),
        item_(size(s.items * s.picks)),
        offsets_(size(s.experts + 1)) {}

  void forward(const Weights& w, const float* x, float* y) {
    gate_(s_.items, s_.experts, s_.dim, x, w.gate, logits_.data());
#pragma omp parallel for
    for (Index n = 0; n < s_.items; ++n) pick(n);
    sort();
#pragma omp parallel for
    for (Index s = 0; s < s_.items * s_.picks; ++s)
      for (Index j = 0; j < s_.dim; ++j) gathered_[size(s * s_.dim + j)] = rounded(x[item_[size(s)] * s_.dim + j]);
    for (Index e = 0; e < s_.experts; ++e) {
      const Index first = offsets_[size(e)], rows = offsets_[size(e + 1)] - first;
      if (rows == 0) continue;
      S* h = &hidden_[size(first * s_.hidden)];
      float* sums = before_activation(first);
      product_(rows, s_.hidden, s_.dim, &gathered_[size(first * s_.dim)], w.up + e * s_.dim * s_.hidden, sums);
#pragma omp parallel for
      for (Index r = 0; r < rows; ++r) {
#pragma omp simd
        for (Index j = r * s_.hidden; j < (r + 1) * s_.hidden; ++j) h[j] = rounded(gelu(sums[j]));
      }
      product_(rows, s_.dim, s_.hidden, h, w.down + e * s_.hidden * s_.dim, &z_[size(first * s_.dim)]);
    }
#pragma omp parallel for
    for (Index n = 0; n < s_.items; ++n) combine(n, y + n * s_.dim);
  }

 private:
  static std::size_t size(Index n) { return static_cast<std::size_t>(n); }
  static S rounded(float v) {
    if constexpr (std::is_same_v<S, float>)
      return v;
    else
      return S::from(v);
  }
  /// Returns the memory for the first product of an expert, before the activation. If S is float, the activation works
  /// in place.
  float* before_activation(Index first) {
    if constexpr (std::is_same_v<S, float>)
      return &hidden_[size(first * s_.hidden)];
    else
      return &sums_[size(first * s_.hidden)];
  }
  static float gelu(float v) {
    const float e = std::exp(1.5957691216f * (v + 0.044715f * v * v * v));
    return v - v / (e + 1);
  }
  void pick(Index n) {
    const float* z = &logits_[size(n * s_.experts)];
    Index* best = &expert_[size(n * s_.picks)];
    float* w = &weight_[size(n * s_.picks)];
    float total = 0;
    for (Index k = 0; k < s_.picks; ++k) {
      Index top = -1;
      for (Index e = 0; e < s_.experts; ++e)
        if (std::find(best, best + k, e) == best + k && (top < 0 || z[e] > z[top])) top = e;
      best[k] = top;
      total += w[k] = std::exp(z[top] - z[best[0]]);
    }
    for (Index k = 0; k < s_.picks; ++k) w[k] /= total;
  }
  void sort() {
    std::fill(offsets_.begin(), offsets_.end(), 0);
    for (Index e : expert_) ++offsets_[size(e + 1)];
    for (Index e = 0; e < s_.experts; ++e) offsets_[size(e + 1)] += offsets_[size(e)];
    next_.assign(offsets_.begin(), offsets_.end() - 1);
    for (Index p = 0; p < s_.items * s_.picks; ++p) {
      const Index s = next_[size(expert_[size(p)])]++;
      item_[size(s)] = p / s_.picks;
      slot_[size(p)] = s;
    }
  }
  void combine(Index n, float* y) {
    std::fill_n(y, s_.dim, 0.0f);
    for (Index p = n * s_.picks; p < (n + 1) * s_.picks; ++p) {
      const float* z = &z_[size(slot_[size(p)] * s_.dim)];
      for (Index j = 0; j < s_.dim; ++j) y[j] += weight_[size(p)] * z[j];
    }
  }

  Product<float> gate_;
  Product<S> product_;
  Shape s_;
  std::vector<float> logits_, weight_, sums_;
  std::vector<S> gathered_, hidden_;
  std::vector<float> z_;
  std::vector<Index> expert_, slot_, item_, offsets_, next_;
};

}  // namespace bench
