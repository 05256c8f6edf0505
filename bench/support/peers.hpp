#pragma once

#include <dlfcn.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <gatefold/gatefold.hpp>
#include <initializer_list>
#include <string>
#include <vector>

/// What a C++ user would write today for the forward of one mixture-of-experts layer: the matrix product of a library,
/// expert by expert, and loops for the rest.
namespace bench {

using gatefold::Index;

/// c = a b, row-major and without gaps: a [m, k], b [k, n], c [m, n].
using Sgemm = std::function<void(Index m, Index n, Index k, const float* a, const float* b, float* c)>;

struct Peer {
  std::string name;  // as in peer_ratio_<name>
  Sgemm sgemm;
  double rest;  // seconds until threads of other pools are asleep
};

namespace peers {

/// A function of a shared library that is loaded when found: GATEFOLD_PEER_<NAME> in the environment names the file,
/// else the linker looks for it. Libraries of the same name and another version keep their symbols apart
/// (RTLD_DEEPBIND).
template <class F>
F* find(const char* variable, std::initializer_list<const char*> files, const char* symbol) {
  const char* chosen = std::getenv(variable);
  void* library = chosen ? dlopen(chosen, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : nullptr;
  for (const char* file : files)
    if (!library && !chosen) library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  return library ? reinterpret_cast<F*>(dlsym(library, symbol)) : nullptr;
}

inline Sgemm onednn(const char* variable, std::initializer_list<const char*> files) {
  using Function = int(char, char, std::int64_t, std::int64_t, std::int64_t, float, const float*, std::int64_t,
                       const float*, std::int64_t, float, float*, std::int64_t);
  auto* f = find<Function>(variable, files, "dnnl_sgemm");
  if (!f) return {};
  return [f](Index m, Index n, Index k, const float* a, const float* b, float* c) {
    f('N', 'N', m, n, k, 1, a, k, b, n, 0, c, n);
  };
}

inline Sgemm cblas(const char* variable, std::initializer_list<const char*> files) {
  using Function = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  auto* f = find<Function>(variable, files, "cblas_sgemm");
  if (!f) return {};
  return [f](Index m, Index n, Index k, const float* a, const float* b, float* c) {
    constexpr int kRowMajor = 101, kNoTranspose = 111;
    f(kRowMajor, kNoTranspose, kNoTranspose, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1, a,
      static_cast<int>(k), b, static_cast<int>(n), 0, c, static_cast<int>(n));
  };
}

inline void eigen(Index m, Index n, Index k, const float* a, const float* b, float* c) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<Matrix>(c, m, n).noalias() = Eigen::Map<const Matrix>(a, m, k) * Eigen::Map<const Matrix>(b, k, n);
}

}  // namespace peers

/// The libraries present, Eigen last.
inline const std::vector<Peer>& present_peers() {
  static const std::vector<Peer> all = [] {
    setenv("MKL_THREADING_LAYER", "GNU", 0);  // the pool of threads that everybody else here uses
    std::vector<Peer> found;
    const auto add = [&](const char* name, Sgemm f, double rest) {
      if (f) found.push_back({name, std::move(f), rest});
    };
    add("onednn26", peers::onednn("GATEFOLD_PEER_ONEDNN26", {"libdnnl.so.2"}), 0);
    add("onednn3", peers::onednn("GATEFOLD_PEER_ONEDNN3", {"libdnnl.so.3"}), 0.04);  // threads of TBB
    add("mkl", peers::cblas("GATEFOLD_PEER_MKL", {"libmkl_rt.so.3", "libmkl_rt.so.2"}), 0);
    add("eigen", peers::eigen, 0);
    return found;
  }();
  return all;
}

/// y = Σ_{top K} softmax weight · (gelu(x U_e) V_e): gather the rows of an expert, two products, sum the slots of each
/// item.
class PeerLayer {
 public:
  struct Weights {
    const float *gate, *up, *down;  // [D, E], [E, D, H], [E, H, D]
  };
  struct Shape {
    Index items, dim, hidden, experts, picks;
  };

  PeerLayer(Sgemm sgemm, const Shape& s)
      : sgemm_(std::move(sgemm)),
        s_(s),
        logits_(size(s.items * s.experts)),
        weight_(size(s.items * s.picks)),
        gathered_(size(s.items * s.picks * s.dim)),
        hidden_(size(s.items * s.picks * s.hidden)),
        z_(size(s.items * s.picks * s.dim)),
        expert_(size(s.items * s.picks)),
        slot_(size(s.items * s.picks)),
        item_(size(s.items * s.picks)),
        offsets_(size(s.experts + 1)) {}

  void forward(const Weights& w, const float* x, float* y) {
    sgemm_(s_.items, s_.experts, s_.dim, x, w.gate, logits_.data());
#pragma omp parallel for
    for (Index n = 0; n < s_.items; ++n) pick(n);
    sort();
#pragma omp parallel for
    for (Index s = 0; s < s_.items * s_.picks; ++s)
      std::copy_n(x + item_[size(s)] * s_.dim, s_.dim, &gathered_[size(s * s_.dim)]);
    for (Index e = 0; e < s_.experts; ++e) {
      const Index first = offsets_[size(e)], rows = offsets_[size(e + 1)] - first;
      if (rows == 0) continue;
      float* h = &hidden_[size(first * s_.hidden)];
      sgemm_(rows, s_.hidden, s_.dim, &gathered_[size(first * s_.dim)], w.up + e * s_.dim * s_.hidden, h);
#pragma omp parallel for
      for (Index r = 0; r < rows; ++r) {
#pragma omp simd
        for (Index j = r * s_.hidden; j < (r + 1) * s_.hidden; ++j) h[j] = gelu(h[j]);
      }
      sgemm_(rows, s_.dim, s_.hidden, h, w.down + e * s_.hidden * s_.dim, &z_[size(first * s_.dim)]);
    }
#pragma omp parallel for
    for (Index n = 0; n < s_.items; ++n) combine(n, y + n * s_.dim);
  }

 private:
  static std::size_t size(Index n) { return static_cast<std::size_t>(n); }
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

  Sgemm sgemm_;
  Shape s_;
  std::vector<float> logits_, weight_, gathered_, hidden_, z_;
  std::vector<Index> expert_, slot_, item_, offsets_, next_;
};

}  // namespace bench
