#pragma once

#include <cstddef>
#include <cstring>
#include <new>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/scratch.hpp"
#include "gatefold/core/error.hpp"

namespace gatefold {

/// The CPU backend. (Naive reference for now: products are plain loops.)
struct Cpu {
  static constexpr bool is_host = true;
  class Context : public Scratch<Cpu> {
   public:
    using Backend = Cpu;
    explicit Context(int threads = 0) : threads_(threads > 0 ? threads : 1) {}
    int threads() const { return threads_; }

   private:
    int threads_;
  };

  static void* allocate(std::size_t bytes) { return ::operator new(bytes, std::align_val_t(64)); }
  static void release(void* p) { ::operator delete(p, std::align_val_t(64)); }
  static void poison(void* p, std::size_t bytes) { std::memset(p, 0xff, bytes); }
  template <class T>
  static void to_host(Context&, Index n, const T* from, T* to) {
    if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  }
  template <class T>
  static void from_host(Context&, Index n, const T* from, T* to) {
    if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  }

  template <class F>
  static void for_each(Context&, Index n, const F& f) {
    for (Index i = 0; i < n; ++i) f(i);
  }
  template <class F>
  static void for_rows(Context&, Index n, const F& f) {
    for (Index i = 0; i < n; ++i) f(OneLane{}, i);
  }
  template <class T, class F>
  static void reduce(Context&, Index n, const F& f, T* out) {
    T total = 0;
    for (Index i = 0; i < n; ++i) total += f(i);
    *out += total;
  }
  static void group_by(Context&, View<const Index, 1, Cpu> keys, View<Index, 1, Cpu> offsets, View<Index, 1, Cpu> order) {
    const Index groups = offsets.extent(0) - 1;
    for (Index g = 0; g <= groups; ++g) offsets(g) = 0;
    for (Index i = 0; i < keys.size(); ++i)
      if (keys(i) >= 0) ++offsets(keys(i));
    for (Index g = 0, at = 0; g <= groups; ++g) {
      const Index count = offsets(g);
      offsets(g) = at;
      at += count;
    }
    for (Index i = 0; i < keys.size(); ++i)
      if (keys(i) >= 0) order(offsets(keys(i))++) = i;
    for (Index g = groups; g > 0; --g) offsets(g) = offsets(g - 1);
    if (groups >= 0) offsets(0) = 0;
  }
  template <class T, class E>
  static void gemm(Context&, View<const T, 2, Cpu> a, bool ta, View<const T, 2, Cpu> b, bool tb, bool accumulate,
                   View<T, 2, Cpu> c, const E& epilogue) {
    const Index depth = ta ? a.extent(0) : a.extent(1);
    for (Index i = 0; i < c.extent(0); ++i)
      for (Index j = 0; j < c.extent(1); ++j) {
        T v = accumulate ? c(i, j) : T(0);
        for (Index k = 0; k < depth; ++k) v += (ta ? a(k, i) : a(i, k)) * (tb ? b(j, k) : b(k, j));
        c(i, j) = epilogue(OneElement<T>{}, 0, i, j, v);
      }
  }
  template <class T, class E>
  static void grouped_gemm(Context&, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 3, Cpu> w, bool transpose,
                           View<T, 2, Cpu> c, const E& epilogue) {
    for (Index e = 0; e < g.experts(); ++e)
      for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s)
        for (Index j = 0; j < c.extent(1); ++j) {
          T v = 0;
          for (Index k = 0; k < a.extent(1); ++k) v += a(g.row(s), k) * (transpose ? w(e, j, k) : w(e, k, j));
          c(s, j) = epilogue(OneElement<T>{}, e, s, j, v);
        }
  }
  template <class T>
  static void grouped_outer(Context&, Groups<Cpu> g, View<const T, 2, Cpu> a, View<const T, 2, Cpu> dc,
                            View<T, 3, Cpu> dw) {
    for (Index e = 0; e < g.experts(); ++e)
      for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s)
        for (Index k = 0; k < dw.extent(1); ++k)
          for (Index j = 0; j < dw.extent(2); ++j) dw(e, k, j) += a(g.row(s), k) * dc(s, j);
  }
  template <class T>
  static void grouped_sum(Context&, Groups<Cpu> g, View<const T, 2, Cpu> dc, View<T, 2, Cpu> db) {
    for (Index e = 0; e < g.experts(); ++e)
      for (Index s = g.offsets(e); s < g.offsets(e + 1); ++s)
        for (Index j = 0; j < db.extent(1); ++j) db(e, j) += dc(s, j);
  }
};

static_assert(Backend<Cpu>);

}  // namespace gatefold
