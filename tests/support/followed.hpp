#pragma once

#include "gatefold/attention/blocks.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold::support {

/// Items that each follow one of several heads. Consecutive items follow the heads in no particular order.
struct Followed {
  Cpu::Context ctx{1};
  Tensor<Index, 1, Cpu> head;
  detail_::attending::Following<Cpu> following;

  Followed(Index heads, Index items, Index length) : head(items) {
    for (Index i = 0; i < items; ++i) head(i) = (i * i + i / 7) % (heads + 1) % heads;
    following = detail_::attending::following<Cpu::Context>(ctx, View<const Index, 1, Cpu>(head), heads, length);
  }
};

}  // namespace gatefold::support
