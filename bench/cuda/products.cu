#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bf16_dense.cuh"
#include "one_layer.cuh"

// Times each matrix product of bfloat16 experts, with the kernel for Hopper GPUs and with the kernel for all GPUs, and
// compares it with cuBLAS's dense products. Also times rounding items and weights to bfloat16.
//
//   products [WORD]   times only the shapes whose name contains WORD
namespace {

using namespace bench;
using detail_::device::Layout;

class Products {
 public:
  explicit Products(const Shape& s)
      : s_(s),
        slots_(s.items * s.picks),
        x_(uniform_tensor<float>(ctx_, Seed{1}, 1, s.items, s.dim)),
        bank_(uniform_tensor<float>(ctx_, Seed{2}, 1, s.experts * s.dim, s.hidden)),
        in_(rounded(ctx_, 3, slots_, s.dim)),
        hidden_(rounded(ctx_, 4, slots_, s.hidden)),
        up_(rounded(ctx_, 5, s.experts * s.dim, s.hidden)),
        down_(rounded(ctx_, 6, s.experts * s.hidden, s.dim)),
        of_bank_(s.experts * s.dim, detail_::device::bf16_stride(s.hidden)),
        out_(slots_, detail_::device::bf16_stride(std::max(s.dim, s.hidden))),
        sums_(slots_, std::max(s.dim, s.hidden)),
        offsets_(s.experts + 1),
        rows_(slots_),
        rounds_(ctx_.stream()) {
    route();
    add_passes();
    if (slots_ > 2048) add_dense();
    if (ctx_.has_hopper_code() &&
        detail_::device::bf16_tile_rows(slots_, s.experts) == detail_::device::Bf16ManyRows::rows)
      add_products<true>(", wgmma");
    add_products<false>(", mma.sync");
  }

  void run() {
    rounds_.run(5);
    std::printf("%s: T %lld D %lld H %lld E %lld K %lld\n", s_.name, (long long)s_.items, (long long)s_.dim,
                (long long)s_.hidden, (long long)s_.experts, (long long)s_.picks);
    const double pairs = double(s_.dim) * double(s_.hidden);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const double seconds = rounds_.median_of(i);
      std::printf("  %-36s %9.1f us", pieces_[i].name.c_str(), seconds * 1e6);
      if (pieces_[i].is_product)
        std::printf("  %6.1f TFLOP/s  weights at %5.0f GB/s", 2e-12 * double(slots_) * pairs / seconds,
                    2e-9 * double(std::min(s_.experts, slots_)) * pairs / seconds);
      std::printf("\n");
    }
    std::fflush(stdout);
  }

 private:
  /// Sends each item to K consecutive experts, of which the first is random.
  void route() {
    std::mt19937_64 random(7);
    std::vector<Index> expert;
    for (Index i = 0; i < s_.items; ++i) {
      const auto first = static_cast<Index>(random() % static_cast<std::uint64_t>(s_.experts));
      for (Index k = 0; k < s_.picks; ++k) expert.push_back((first + k) % s_.experts);
    }
    Tensor<Index, 2, CudaBf16> keys(s_.items, s_.picks);
    CudaBf16::from_host(ctx_, slots_, expert.data(), keys.data());
    Tensor<Index, 1, CudaBf16> order(slots_), row_offsets(s_.items + 1), row_slots(slots_);
    CudaBf16::group_table(ctx_, keys, offsets_.view(), order.view(), rows_.view(), row_offsets.view(),
                          row_slots.view());
    ctx_.synchronize();
  }
  void add(const std::string& name, bool is_product, std::function<void()> work) {
    pieces_.push_back({name, is_product});
    rounds_.add(std::move(work));
  }
  void add_passes() {
    add("items, rounded in slot order", false, [this] {
      const auto mark = ctx_.mark();
      const Groups<CudaBf16> groups{offsets_, rows_, slots_};
      detail_::device::rounded_rows(ctx_, groups, View<const float, 2, CudaBf16>(x_), rows_.data(), true);
    });
    add("weights, rounded", false, [this] {
      detail_::device::round_rows(ctx_.stream(), bank_.extent(0), bank_.extent(1), bank_.data(), of_bank_.data());
    });
  }
  void add_dense() {
    add("dense up, cuBLAS", true, [this] { dense(ctx_, slots_, s_.hidden, s_.dim, in_, up_, out_); });
    add("dense down, cuBLAS", true, [this] { dense(ctx_, slots_, s_.dim, s_.hidden, hidden_, down_, out_); });
  }

  using Matrix = Tensor<Bfloat16, 2, CudaBf16>;
  static detail_::device::Bf16Matrix matrix(const Matrix& m) { return {m.data(), m.extent(1)}; }

  /// Adds an entry that computes c = epilogue(a op(b)). Here op can transpose b, and the epilogue can be an activation.
  /// The rows of c are `stride` values apart.
  template <bool Hopper, Layout OfB, class C, class E>
  void add_product(const std::string& name, const Matrix& a, Index depth, const Matrix& b, Index columns, C* c,
                   Index stride, const E& epilogue) {
    add(name, true, [=, this, &a, &b] {
      const detail_::device::EachBf16<1> of_a{{matrix(a)}}, each{{matrix(b)}};
      const Index step = b.extent(0) / s_.experts * b.extent(1);
      if constexpr (Hopper) {
        detail_::device::hopper_slots_are_rows<OfB>(ctx_, of_a, each, step, offsets_.data(), s_.experts, slots_,
                                                    columns, depth, c, stride, epilogue);
      } else {
        detail_::device::bf16_slots_are_rows<OfB>(ctx_, of_a, each, step, offsets_.data(), s_.experts, slots_, columns,
                                                  depth, c, stride, epilogue);
      }
    });
  }
  template <bool Hopper>
  void add_products(const std::string& by) {
    constexpr Layout plain = Layout::along_lines, transposed = Layout::along_depth;
    const Index D = s_.dim, H = s_.hidden, stride = hidden_.extent(1);
    const functor::BiasActivate<GeluTanh, float, CudaBf16> activate{};
    const functor::Store store{};
    add_product<Hopper, plain>("up, activated, to bfloat16" + by, in_, D, up_, H, out_.data(), stride, activate);
    add_product<Hopper, plain>("up, to bfloat16" + by, in_, D, up_, H, out_.data(), stride, store);
    add_product<Hopper, plain>("down" + by, hidden_, H, down_, D, sums_.data(), D, store);
    add_product<Hopper, transposed>("adjoint of hidden" + by, in_, D, down_, H, sums_.data(), H, store);
    add_product<Hopper, transposed>("adjoint of items" + by, hidden_, H, up_, D, sums_.data(), D, store);
    for (const bool accumulate : {false, true})
      add((accumulate ? "gradient of up, added" : "gradient of up, stored") + by, true, [=, this] {
        if constexpr (Hopper) {
          detail_::device::hopper_slots_are_depth(ctx_, matrix(in_), matrix(hidden_), offsets_.data(), s_.experts,
                                                  slots_, D, H, accumulate, bank_.data());
        } else {
          detail_::device::bf16_slots_are_depth(ctx_, matrix(in_), matrix(hidden_), offsets_.data(), s_.experts, D, H,
                                                accumulate, bank_.data());
        }
      });
  }

  struct Piece {
    std::string name;
    bool is_product;
  };
  Shape s_;
  Index slots_;
  CudaBf16::Context ctx_;
  Tensor<float, 2, CudaBf16> x_, bank_;
  Matrix in_, hidden_, up_, down_, of_bank_, out_;
  Tensor<float, 2, CudaBf16> sums_;
  Tensor<Index, 1, CudaBf16> offsets_, rows_;
  Rounds rounds_;
  std::vector<Piece> pieces_;
};

}  // namespace

int main(int argc, char** argv) {
  return for_named_shapes(argc, argv, kShapes, [](const Shape& s) { Products(s).run(); });
}
