// wgmma. Shared memory is read and D is computed when the first warp waits for the product, because a GPU may do this
// as late as then. The product is then finished for all four warps.
#include "cuda_emulator/warpgroup.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/matrix_descriptor.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/tensor_core.hpp"

namespace gatefold::cuda_emulator {
namespace {

constexpr std::uint32_t rows = 64, depth = 16;
constexpr std::uint32_t chunk = 8, chunk_bytes = 16;  // number and bytes of adjacent numbers

std::uint32_t columns(const Instruction& in) { return 8u * in.elements; }
std::size_t registers(const Instruction& in) { return 4u * in.elements; }

bool flag(const Instruction& in, ProductFlag which) { return in.mode & static_cast<std::uint8_t>(which); }

/// Calls f(outer, k, address) for every chunk of a matrix.
template <class F>
void for_chunks(const MatrixDescriptor& matrix, std::uint32_t outer, F f) {
  const std::uint32_t outer_step = matrix.k_major ? 1 : chunk, k_step = matrix.k_major ? chunk : 1;
  for (std::uint32_t i = 0; i < outer; i += outer_step) {
    for (std::uint32_t k = 0; k < depth; k += k_step) f(i, k, matrix.address(i, k));
  }
}

/// Calls f(matrix, number of rows or columns) for A and B.
template <class F>
void for_matrices(const Product& product, F f) {
  f(MatrixDescriptor(product.a, !flag(*product.in, ProductFlag::transpose_a)), rows);
  f(MatrixDescriptor(product.b, !flag(*product.in, ProductFlag::transpose_b)), columns(*product.in));
}

}  // namespace

Warpgroup& Warp::warpgroup() const { return block_.warpgroups_[index_ / Warpgroup::warps]; }

/// Issues a product. The operands are [registers of d, descriptor of a, of b, whether to add to d].
void Warp::issue_product(const Instruction& in) {
  const std::size_t count = registers(in);
  const std::uint32_t warp = index_ % Warpgroup::warps;
  if (index_ - warp + Warpgroup::warps > block_.warps_.size()) {
    fail("a warpgroup is four warps, and the block ends within it", in, 0);
  }
  for_lanes(all_lanes, [&](int lane) {
    for (std::size_t i = count; i < count + 3; ++i) {
      if (read(in[i], lane) != read(in[i], 0)) fail("the lanes of a warp name different matrices", in, lane);
    }
  });
  Warpgroup& group = warpgroup();
  if (issued_ - group.first + 1 >= Promise::numbers) fail("too many products that nobody waits for", in, 0);
  const std::uint64_t number = issued_++;
  const std::uint64_t a = read(in[count], 0), b = read(in[count + 1], 0);
  const bool accumulates = read(in[count + 2], 0) != 0, is_new = number == group.end();
  if (is_new) {
    group.products.emplace_back();
    Product& product = group.products.back();
    product.in = &in;
    product.a = a;
    product.b = b;
    product.accumulates = accumulates;
  }
  Product& product = group[number];
  if (product.in != &in || product.a != a || product.b != b || product.accumulates != accumulates) {
    fail("the warps of a warpgroup multiply different matrices", in, 0);
  }
  if (is_new) check_matrices(product);
  if (block_.grid_.look_for_races) check_order(product);
  product.issued |= 1u << warp;

  std::vector<std::uint32_t>& d = product.d[warp];
  d.resize(count * warp_size);
  for (std::size_t i = 0; i < count; ++i) {
    char* const row = registers_.get() + in[i].row;
    std::memcpy(&d[i * warp_size], row, warp_size * sizeof d[0]);
    for_lanes(all_lanes, [&](int lane) {
      const std::size_t element = i * warp_size + static_cast<std::size_t>(lane);
      if (!products_fenced_ && !Promise::is(d[element])) {
        fail("no wgmma.fence between other uses of the registers of D and the product", in, lane);
      }
      write_lane(row, lane, Promise::of(number, element));
    });
  }
}

/// Checks that the matrices are in the shared memory of the block.
void Warp::check_matrices(const Product& product) const {
  for_matrices(product, [&](const MatrixDescriptor& matrix, std::uint32_t outer) {
    if (matrix.base_offset != 0) fail("refused: base offsets of descriptors are not modelled", *product.in, 0);
    for_chunks(matrix, outer, [&](std::uint32_t, std::uint32_t, std::uint32_t address) {
      check_shared(*product.in, address, chunk_bytes, 0, false);
    });
  });
}

/// Checks that all writes of the numbers that the product reads are known to this warp and visible to the async proxy.
void Warp::check_order(const Product& product) {
  const Viewpoint& view = block_.view_;
  const Access access{view, stamp(*product.in, 0, view.segment), view.barrier, false};
  for_matrices(product, [&](const MatrixDescriptor& matrix, std::uint32_t outer) {
    for_chunks(matrix, outer, [&](std::uint32_t, std::uint32_t, std::uint32_t address) {
      const Touch touch{*product.in, true, false, address, chunk_bytes, 0};
      if (const Stamp earlier = block_.shared_cells_.conflict(access, address, chunk_bytes)) {
        report_race("data race", touch, earlier);
      }
      block_.shared_cells_.for_writes(address, chunk_bytes, [&](Stamp write) {
        const Opcode op = kernel_.code[write.site()].op;
        const bool generic = op != Opcode::copy_bulk && op != Opcode::copy_tensor;
        if (generic && write.segment() >= view.begun &&
            !view.visible(index_ * warp_size, write.thread(), write.segment())) {
          report_race("no fence.proxy.async", touch, write);
        }
      });
    });
  });
}

/// Reads the operand n of wgmma.wait_group, which waits for all groups except the latest n.
/// @returns the number after the last product of the awaited groups
std::uint64_t Warp::awaited_products(const Instruction& in) const {
  const std::uint64_t may_miss = read(in[0], 0);
  return committed_.size() > may_miss ? committed_[committed_.size() - 1 - may_miss] : 0;
}

/// @returns false if other warps have not issued the products yet; the warp then waits at `pc`
bool Warp::wait_for_products(const Instruction& in, std::uint32_t pc) {
  products_fenced_ = false;
  products_pc_ = pc;
  at_products_ = !products_issued();
  if (at_products_) return false;
  Warpgroup& group = warpgroup();
  const std::uint64_t end = awaited_products(in);
  for (std::uint64_t number = group.first; number < end; ++number) {
    if (!group[number].finished) block_.warps_[index_ - index_ % Warpgroup::warps]->finish_product(number);
  }
  collect_products(end);
  return true;
}

bool Warp::products_issued() const {
  Warpgroup& group = warpgroup();
  const std::uint64_t end = awaited_products(kernel_.code[products_pc_]);
  for (std::uint64_t number = group.first; number < end; ++number) {
    if (group[number].issued != Warpgroup::all) return false;
  }
  return true;
}

void Warp::fail_products() const {
  fail("deadlock: other warps of the warpgroup do not issue the products that this one waits for",
       kernel_.code[products_pc_], 0);
}

bool Block::release_warpgroups() {
  bool released = false;
  for (const auto& warp : warps_) {
    if (!warp->at_products() || !warp->products_issued()) continue;
    warp->go_on_with_products();
    released = true;
  }
  return released;
}

/// Finishes a product for all warps of the warpgroup. The first warp that waits calls this function on warp 0 of the
/// warpgroup.
void Warp::finish_product(std::uint64_t number) {
  Warpgroup& group = warpgroup();
  Product& product = group[number];
  const Instruction& in = *product.in;
  if (block_.grid_.look_for_races) {
    block_.begin_segment();
    for_matrices(product, [&](const MatrixDescriptor& matrix, std::uint32_t outer) {
      for_chunks(matrix, outer, [&](std::uint32_t, std::uint32_t, std::uint32_t address) {
        record(block_.shared_cells_, address, {in, true, false, address, chunk_bytes, 0});
      });
    });
    product.read = block_.begin_segment();
  }
  constexpr std::uint32_t most_columns = 256, side_by_side = TensorCore::columns;
  TensorCore::Row a[rows];
  TensorCore::Columns b[most_columns / side_by_side];
  bool is_a = true;
  for_matrices(product, [&](const MatrixDescriptor& matrix, std::uint32_t outer) {
    const bool negated = flag(in, is_a ? ProductFlag::negate_a : ProductFlag::negate_b);
    for_chunks(matrix, outer, [&](std::uint32_t i, std::uint32_t k, std::uint32_t address) {
      std::uint16_t numbers[chunk];
      std::memcpy(numbers, block_.shared_.data() + address, sizeof numbers);
      for (std::uint32_t j = 0; j < chunk; ++j) {
        const auto sign = static_cast<std::uint16_t>(negated ? 0x8000 : 0);
        const Factor factor({static_cast<std::uint16_t>(numbers[j] ^ sign)});
        const std::uint32_t at = matrix.k_major ? i : i + j;
        const int at_k = static_cast<int>(matrix.k_major ? k + j : k);
        if (is_a) {
          a[at].set(at_k, 0, factor);
        } else {
          b[at / side_by_side].set(at_k, static_cast<int>(at % side_by_side), factor);
        }
      }
    });
    is_a = false;
  });
  const TensorCore core = TensorCore::of(options().compute_capability);
  for (std::uint32_t warp = 0; warp < Warpgroup::warps; ++warp) {
    std::vector<std::uint32_t>& d = product.d[warp];
    for (std::size_t strip = 0; strip < in.elements; ++strip) {
      for (std::size_t row = 0; row < rows / Warpgroup::warps; ++row) {
        // A strip of 8 columns takes four registers. Two of them, in four lanes, hold this row.
        const auto element = [&](std::size_t column) -> std::uint32_t& {
          return d[(4 * strip + row / 8 * 2 + column % 2) * warp_size + row % 8 * 4 + column / 2];
        };
        TensorCore::Sums sums = {};
        for (std::size_t j = 0; j < side_by_side && product.accumulates; ++j) {
          sums[j] = std::bit_cast<float>(group.kept(element(j), number, warp));
        }
        core.multiply_add(a[rows / Warpgroup::warps * warp + row], b[strip], depth, sums);
        for (std::size_t j = 0; j < side_by_side; ++j) element(j) = std::bit_cast<std::uint32_t>(sums[j]);
      }
    }
  }
  product.finished = true;
}

/// Replaces the promises of the products before `end` in the registers of this warp by their values.
void Warp::collect_products(std::uint64_t end) {
  Warpgroup& group = warpgroup();
  const std::uint32_t warp = index_ % Warpgroup::warps;
  const auto keep = [&](std::uint32_t bits, std::uint64_t number) {
    // A promise of a later product remains, even if a different warp has already waited for it.
    return Promise::age(bits, number) > number - end ? group.kept(bits, number, warp) : bits;
  };
  for (std::uint32_t row = 0; row < kernel_.registers_bytes; row += warp_size * 4) {
    for (int lane = 0; lane < warp_size; ++lane) {
      const auto bits = read_lane<std::uint32_t>(registers_.get() + row, lane);
      if (Promise::is(bits)) write_lane(registers_.get() + row, lane, keep(bits, issued_));
    }
  }
  for (std::uint64_t number = end; number < issued_; ++number) {
    for (std::uint32_t& d : group[number].d[warp]) {
      if (Promise::is(d)) d = keep(d, number);
    }
  }
  for (std::uint64_t number = group.first; number < end; ++number) {
    Product& product = group[number];
    product.collected |= 1u << warp;
    if (!block_.grid_.look_for_races) continue;
    // The reads of a thread in the first warp count as the reads of all threads.
    const std::uint32_t reader = (index_ - warp) * warp_size;
    for_lanes(all_lanes, [&](int lane) {
      std::uint32_t& done =
          block_.view_.knowledge_of(index_ * warp_size + static_cast<std::uint32_t>(lane)).done[reader];
      done = std::max(done, product.read);
    });
  }
  while (!group.products.empty() && group.products.front().collected == Warpgroup::all) {
    group.products.pop_front();
    ++group.first;
  }
}

}  // namespace gatefold::cuda_emulator
