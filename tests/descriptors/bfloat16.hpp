#pragma once

#include "descriptors/pairwise.hpp"
#include "descriptors/rounded.hpp"

namespace gatefold::rows {

/// A composition on CpuBf16: values, beside those in double that are rounded where floats are, and bits. The
/// compositions are made from the rows: see cover.sh.
template <class C>
void check_bfloat16(const C& c) {
  with_rounded(c, [](const auto& rounded) {
    CpuBf16::Context ctx(2, true);
    rounded.expect(test::outcome(rounded.template run<float, CpuBf16>(ctx)));
  });
  check_bits<float, CpuBf16>(c);
  bitwise::on_any_threads<float, CpuBf16>(c.make(odd), 300, true);
}

}  // namespace gatefold::rows
