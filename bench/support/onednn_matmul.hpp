#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "peer_layer.hpp"

/// Multiplies bfloat16 matrices with oneDNN 3. The needed C functions are declared here, because the library is loaded
/// at run time, if it is found.
namespace bench::peers {

/// Multiplies bfloat16 matrices and sums in float. Makes one oneDNN primitive for each size and reuses it. Weights are
/// row-major, as in gatefold, and oneDNN must not reorder them.
class OnednnMatmul {
 public:
  /// Returns null unless `library` is oneDNN 3 and can multiply bfloat16 on this machine.
  static std::shared_ptr<OnednnMatmul> of(void* library) {
    if (!library) return {};
    auto made = std::shared_ptr<OnednnMatmul>(new OnednnMatmul(library));
    return made->ready_ && made->primitive({1, 1, 1}) ? made : nullptr;
  }

  void operator()(Index m, Index n, Index k, const gatefold::Bfloat16* a, const gatefold::Bfloat16* b, float* c) {
    Primitive* const p = primitive({m, n, k});
    set_handle_(p->a, const_cast<gatefold::Bfloat16*>(a));
    set_handle_(p->b, const_cast<gatefold::Bfloat16*>(b));
    set_handle_(p->c, c);
    const std::array<Argument, 3> arguments{{{1, p->a}, {33, p->b}, {17, p->c}}};  // DNNL_ARG_SRC, _WEIGHTS, _DST
    execute_(p->matmul, stream_, 3, arguments.data());
    wait_(stream_);
  }

 private:
  using Handle = void*;  // oneDNN represents all its objects by pointers
  using Dims = std::int64_t[12];
  struct Argument {
    int name;
    Handle memory;
  };
  struct Primitive {
    Handle matmul, a, b, c;
  };
  enum Type { kBf16 = 2, kF32 = 3 };

  explicit OnednnMatmul(void* library) {
    int (*create_engine)(Handle*, int, std::size_t) = nullptr;
    int (*create_stream)(Handle*, Handle, unsigned) = nullptr;
    const auto find = [&](const char* symbol, auto& f) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, symbol));
      return f != nullptr;
    };
    constexpr int kCpu = 1;
    constexpr unsigned kInOrder = 1;
    ready_ = find("dnnl_engine_create", create_engine) && find("dnnl_stream_create", create_stream) &&
             find("dnnl_memory_desc_create_with_strides", create_desc_) &&
             find("dnnl_matmul_primitive_desc_create", create_matmul_desc_) &&
             find("dnnl_primitive_create", create_primitive_) && find("dnnl_memory_create", create_memory_) &&
             find("dnnl_memory_set_data_handle", set_handle_) && find("dnnl_primitive_execute", execute_) &&
             find("dnnl_stream_wait", wait_) && create_engine(&engine_, kCpu, 0) == 0 &&
             create_stream(&stream_, engine_, kInOrder) == 0;
  }

  /// Returns the oneDNN primitive for a size, or null if oneDNN refuses the size. Each primitive is kept for later
  /// calls.
  Primitive* primitive(const std::array<Index, 3>& size) {
    const auto found = made_.find(size);
    if (found != made_.end()) return &found->second;
    const auto [m, n, k] = size;
    Handle a, b, c, matmul;
    Primitive p{};
    if (!desc(m, k, kBf16, a) || !desc(k, n, kBf16, b) || !desc(m, n, kF32, c) ||
        create_matmul_desc_(&matmul, engine_, a, b, nullptr, c, nullptr) != 0 ||
        create_primitive_(&p.matmul, matmul) != 0)
      return nullptr;
    create_memory_(&p.a, a, engine_, nullptr);
    create_memory_(&p.b, b, engine_, nullptr);
    create_memory_(&p.c, c, engine_, nullptr);
    return &made_.emplace(size, p).first->second;
  }
  bool desc(Index rows, Index columns, Type type, Handle& made) const {
    const Dims extents{rows, columns}, strides{columns, 1};
    return create_desc_(&made, 2, extents, type, strides) == 0;
  }

  int (*create_desc_)(Handle*, int, const Dims, int, const Dims) = nullptr;
  int (*create_matmul_desc_)(Handle*, Handle, Handle, Handle, Handle, Handle, Handle) = nullptr;
  int (*create_primitive_)(Handle*, Handle) = nullptr;
  int (*create_memory_)(Handle*, Handle, Handle, void*) = nullptr;
  int (*set_handle_)(Handle, void*) = nullptr;
  int (*execute_)(Handle, Handle, int, const Argument*) = nullptr;
  int (*wait_)(Handle) = nullptr;
  bool ready_ = false;
  Handle engine_ = nullptr, stream_ = nullptr;
  std::map<std::array<Index, 3>, Primitive> made_;
};

inline Product<gatefold::Bfloat16> onednn_bf16(void* library) {
  auto matmul = OnednnMatmul::of(library);
  if (!matmul) return {};
  return [matmul](Index m, Index n, Index k, const gatefold::Bfloat16* a, const gatefold::Bfloat16* b, float* c) {
    (*matmul)(m, n, k, a, b, c);
  };
}

}  // namespace bench::peers
