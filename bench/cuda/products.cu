#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "one_layer.cuh"

// The products of bfloat16 experts one by one, by the kernel that Hopper has for them and by that of all devices, beside
// cuBLAS's dense product of the same arithmetic, and the passes that round what they read:
//   products [WORD]   rows whose name contains WORD
namespace {

using namespace bench;
using Context = CudaBf16::Context;
using Bf16Tensor = Tensor<Bfloat16, 2, CudaBf16>;

/// c = a b of bfloat16 by cuBLAS, summed in float, row by row.
void dense(Context& ctx, Index m, Index n, Index k, const Bf16Tensor& a, const Bf16Tensor& b, Bf16Tensor& c) {
  const float one = 1, zero = 0;
  device::expect_success(cublasGemmEx(ctx.blas(), CUBLAS_OP_N, CUBLAS_OP_N, int(n), int(m), int(k), &one, b.data(),
                                      CUDA_R_16BF, int(n), a.data(), CUDA_R_16BF, int(k), &zero, c.data(), CUDA_R_16BF,
                                      int(n), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                         "cublasGemmEx");
}

/// Rows of a weight's stride, [rows, columns], of numbers in [-1, 1).
Bf16Tensor random_rows(Context& ctx, std::uint64_t seed, Index rows, Index columns) {
  Bf16Tensor to(rows, device::bf16_stride(columns));
  const Index part = 1 << 14;  // of floats no more than these at a time
  for (Index first = 0; first < rows; first += part) {
    const Index count = std::min(part, rows - first);
    const auto x = uniform_tensor<float>(ctx, Seed{seed + std::uint64_t(first)}, 1, count, columns);
    device::round_rows(ctx.stream(), count, columns, x.data(), to.data() + first * to.extent(1));
    ctx.synchronize();
  }
  return to;
}

class Products {
 public:
  explicit Products(const Shape& s) : s_(s), slots_(s.items * s.picks), x_(s.items, s.dim), rounds_(ctx_.stream()) {
    // Random experts, as a router without preference would pick.
    Tensor<Index, 2, CudaBf16> keys(s.items, s.picks);
    std::vector<Index> host(static_cast<std::size_t>(slots_));
    for (Index i = 0; i < s.items; ++i) {
      std::uint64_t h = std::uint64_t(i) * 0x9e3779b97f4a7c15u + 12345;
      h = (h ^ (h >> 31)) * 0xbf58476d1ce4e5b9u;
      const Index first = Index((h >> 20) % std::uint64_t(s.experts));
      for (Index k = 0; k < s.picks; ++k)
        host[std::size_t(i * s.picks + k)] = (first + k * (1 + Index((h >> 50) % 3))) % s.experts;
    }
    CudaBf16::from_host(ctx_, slots_, host.data(), keys.data());
    offsets_ = Tensor<Index, 1, CudaBf16>(s.experts + 1);
    rows_ = Tensor<Index, 1, CudaBf16>(slots_);
    Tensor<Index, 1, CudaBf16> order(slots_), row_offsets(s.items + 1), row_slots(slots_);
    CudaBf16::group_table(ctx_, keys, offsets_.view(), order.view(), rows_.view(), row_offsets.view(),
                          row_slots.view());
    ctx_.synchronize();
  }

  void run() {
    const Index D = s_.dim, H = s_.hidden, E = s_.experts;
    const Groups<CudaBf16> gathered{offsets_, rows_, slots_}, groups = gathered.in_slot_order();
    const auto x = uniform_tensor<float>(ctx_, Seed{7}, 1, s_.items, D);
    const Bf16Tensor in = random_rows(ctx_, 1, slots_, D), hidden = random_rows(ctx_, 2, slots_, H),
                     up = random_rows(ctx_, 3, E * D, H), down = random_rows(ctx_, 4, E * H, D);
    Bf16Tensor out(slots_, std::max(in.extent(1), hidden.extent(1)));
    Tensor<float, 2, CudaBf16> sums(slots_, std::max(D, H)), dw(E * D, H);
    const device::Bf16Matrix of_in{in.data(), in.extent(1)}, of_hidden{hidden.data(), hidden.extent(1)};
    const device::EachBf16<1> of_up{{{up.data(), up.extent(1)}}}, of_down{{{down.data(), down.extent(1)}}};
    const Index up_step = D * up.extent(1), down_step = H * down.extent(1);
    const fn::BiasActivate<GeluTanh, float, CudaBf16> activate{};
    const fn::Store store{};
    using device::Layout;

    add("copy of rows, rounded", 0, [&] {
      const auto mark = ctx_.mark();
      device::rounded_rows(ctx_, gathered, View<const float, 2, CudaBf16>(x), rows_.data(), true);
    });
    add("weights, rounded", 0,
        [&] { device::round_rows(ctx_.stream(), E * D, H, dw.data(), const_cast<Bfloat16*>(up.data())); });
    if (slots_ > 2048) add("dense up, cuBLAS", 1, [&] { dense(ctx_, slots_, H, D, in, up, out); });
    if (slots_ > 2048) add("dense down, cuBLAS", 1, [&] { dense(ctx_, slots_, D, H, hidden, down, out); });
    for (const bool hopper : {true, false}) {
      if (hopper && !(ctx_.has_hopper_code() && slots_ > 64 * E)) continue;
      const std::string of = hopper ? ", wgmma" : ", mma.sync";
      const auto product = [&]<Layout OfB, class C>(const char* name, std::integral_constant<Layout, OfB>,
                                                    const device::Bf16Matrix& a, const device::EachBf16<1>& b,
                                                    Index step, Index columns, Index depth, C* c, Index stride,
                                                    const auto& epilogue) {
        add(name + of, 1, [=, this] {
          if (hopper)
            device::hopper_slots_are_rows<OfB, 1>(ctx_, a, b, step, offsets_.data(), E, slots_, columns, depth, c,
                                                  stride, epilogue);
          else
            device::bf16_slots_are_rows<OfB, 1>(ctx_, a, b, step, offsets_.data(), E, slots_, columns, depth, c, stride,
                                                epilogue);
        });
      };
      constexpr std::integral_constant<Layout, Layout::along_lines> plain;
      constexpr std::integral_constant<Layout, Layout::along_depth> transposed;
      product("up, activated, bfloat16", plain, of_in, of_up, up_step, H, D, out.data(), hidden.extent(1), activate);
      product("up, bfloat16", plain, of_in, of_up, up_step, H, D, out.data(), hidden.extent(1), store);
      product("down, float", plain, of_hidden, of_down, down_step, D, H, sums.data(), D, store);
      product("adjoint of hidden, float", transposed, of_in, of_down, down_step, H, D, sums.data(), H, store);
      product("adjoint of items, float", transposed, of_hidden, of_up, up_step, D, H, sums.data(), D, store);
      for (const bool accumulate : {false, true}) {
        add((accumulate ? "gradient of up, added" : "gradient of up, stored") + of, 1, [=, this, &dw] {
          if (hopper)
            device::hopper_slots_are_depth(ctx_, of_in, of_hidden, offsets_.data(), E, slots_, D, H, accumulate,
                                           dw.data());
          else
            device::bf16_slots_are_depth(ctx_, of_in, of_hidden, offsets_.data(), E, D, H, accumulate, dw.data());
        });
      }
    }
    rounds_.run(5);
    std::printf("%s: T %lld D %lld H %lld E %lld K %lld\n", s_.name, (long long)s_.items, (long long)D, (long long)H,
                (long long)E, (long long)s_.picks);
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const double seconds = rounds_.median_of(i);
      std::printf("  %-36s %9.1f us", names_[i].c_str(), seconds * 1e6);
      if (counts_[i])
        std::printf("  %6.1f TFLOP/s  weights at %5.0f GB/s", 2e-12 * double(slots_) * double(D) * double(H) / seconds,
                    2e-9 * double(std::min(E, slots_)) * double(D) * double(H) / seconds);
      std::printf("\n");
    }
    std::fflush(stdout);
  }

 private:
  void add(const std::string& name, bool counts, std::function<void()> work) {
    names_.push_back(name);
    counts_.push_back(counts);
    rounds_.add(std::move(work));
  }

  Shape s_;
  Index slots_;
  Context ctx_;
  Tensor<float, 2, CudaBf16> x_;
  Tensor<Index, 1, CudaBf16> offsets_, rows_;
  Rounds rounds_;
  std::vector<std::string> names_;
  std::vector<bool> counts_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  try {
    for (const Shape& s : kShapes)
      if (std::string(s.name).find(word) != std::string::npos) Products(s).run();
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return EXIT_FAILURE;
  }
}
