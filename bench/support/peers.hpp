#pragma once

#include <dlfcn.h>

#include <Eigen/Core>
#include <cstdint>
#include <cstdlib>
#include <gatefold/gatefold.hpp>
#include <initializer_list>
#include <string>
#include <vector>

#include "onednn_matmul.hpp"
#include "peer_layer.hpp"

/// Loads the matrix products of oneDNN, MKL and Eigen, if they are found.
namespace bench {

using gatefold::Bfloat16;

/// A library that gatefold is compared with, and its functions for matrix products.
/// @tparam S  type of the factors in the products of experts
template <class S>
struct Peer {
  std::string name;  // benchmarks report the counter peer_ratio_<name>
  Product<float> sgemm;
  Product<S> product;
  double rest = 0.04;  // seconds until the threads of the library (OpenMP or TBB) stop spinning and sleep
};

namespace peers {

/// Opens a shared library: the file that the environment variable `variable` names, otherwise the first of `files` that
/// the linker finds. Returns null if there is none. RTLD_DEEPBIND keeps the symbols of two versions of a library apart.
inline void* open(const char* variable, std::initializer_list<const char*> files) {
  const char* chosen = std::getenv(variable);
  void* library = chosen ? dlopen(chosen, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : nullptr;
  for (const char* file : files)
    if (!library && !chosen) library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  return library;
}
template <class F>
F* find(void* library, const char* symbol) {
  return library ? reinterpret_cast<F*>(dlsym(library, symbol)) : nullptr;
}

inline Product<float> onednn(void* library) {
  using Function = int(char, char, std::int64_t, std::int64_t, std::int64_t, float, const float*, std::int64_t,
                       const float*, std::int64_t, float, float*, std::int64_t);
  auto* f = find<Function>(library, "dnnl_sgemm");
  if (!f) return {};
  return [f](Index m, Index n, Index k, const float* a, const float* b, float* c) {
    f('N', 'N', m, n, k, 1, a, k, b, n, 0, c, n);
  };
}

/// Returns a Product that calls `f`, a function with the arguments of BLAS's C interface.
template <class S>
Product<S> row_major(void (*f)(int, int, int, int, int, int, float, const S*, int, const S*, int, float, float*, int)) {
  if (!f) return {};
  return [f](Index m, Index n, Index k, const S* a, const S* b, float* c) {
    constexpr int kRowMajor = 101, kNoTranspose = 111;
    f(kRowMajor, kNoTranspose, kNoTranspose, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1, a,
      static_cast<int>(k), b, static_cast<int>(n), 0, c, static_cast<int>(n));
  };
}
/// Returns MKL's product of bfloat16 matrices with sums in float.
inline Product<Bfloat16> cblas_bf16(void* library) {
  using Function =
      void(int, int, int, int, int, int, float, const Bfloat16*, int, const Bfloat16*, int, float, float*, int);
  return row_major(find<Function>(library, "cblas_gemm_bf16bf16f32"));
}
inline Product<float> cblas(void* library) {
  using Function = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  return row_major(find<Function>(library, "cblas_sgemm"));
}

inline void eigen(Index m, Index n, Index k, const float* a, const float* b, float* c) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<Matrix>(c, m, n).noalias() = Eigen::Map<const Matrix>(a, m, k) * Eigen::Map<const Matrix>(b, k, n);
}

template <class S>
void add(std::vector<Peer<S>>& found, const char* name, const Product<float>& sgemm, const Product<S>& product) {
  if (product) found.push_back({name, sgemm, product});
}
inline void* mkl() {
  setenv("MKL_THREADING_LAYER", "GNU", 0);  // uses GNU OpenMP, as other libraries do
  return open("GATEFOLD_PEER_MKL", {"libmkl_rt.so.3", "libmkl_rt.so.2"});
}

}  // namespace peers

/// Returns the libraries on this machine that multiply elements of type S. For float, the last one is Eigen.
template <class S>
const std::vector<Peer<S>>& present_peers();

template <>
inline const std::vector<Peer<float>>& present_peers<float>() {
  static const std::vector<Peer<float>> all = [] {
    std::vector<Peer<float>> found;
    const auto add = [&](const char* name, const Product<float>& f) { peers::add(found, name, f, f); };
    add("onednn26", peers::onednn(peers::open("GATEFOLD_PEER_ONEDNN26", {"libdnnl.so.2"})));
    add("onednn3", peers::onednn(peers::open("GATEFOLD_PEER_ONEDNN3", {"libdnnl.so.3"})));
    add("mkl", peers::cblas(peers::mkl()));
    add("eigen", peers::eigen);
    return found;
  }();
  return all;
}
template <>
inline const std::vector<Peer<Bfloat16>>& present_peers<Bfloat16>() {
  static const std::vector<Peer<Bfloat16>> all = [] {
    std::vector<Peer<Bfloat16>> found;
    void* const onednn = peers::open("GATEFOLD_PEER_ONEDNN3_OPENMP", {});
    peers::add(found, "onednn3", peers::onednn(onednn), peers::onednn_bf16(onednn));
    peers::add(found, "mkl", peers::cblas(peers::mkl()), peers::cblas_bf16(peers::mkl()));
    return found;
  }();
  return all;
}

}  // namespace bench
