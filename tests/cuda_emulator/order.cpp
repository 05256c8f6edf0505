#include "cuda_emulator/order.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "cuda_emulator/race.hpp"

namespace gatefold::cuda_emulator {
namespace {

void raise(std::vector<std::uint32_t>& to, const std::vector<std::uint32_t>& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

}  // namespace

void Knowledge::add(const Knowledge& other) {
  raise(done, other.done);
  raise(visible, other.visible);
}

Knowledge& Viewpoint::knowledge_of(std::uint32_t thread) {
  if (known.empty()) {
    known.resize(threads);
    for (Knowledge& each : known) each.reserve(threads);
  }
  return known[thread];
}

std::uint32_t Viewpoint::done_before(std::uint32_t thread, std::uint32_t by) const {
  if (by == thread) return segment + 1;
  std::uint32_t before = by / 32 == thread / 32 ? std::max(barrier, warp_barrier[thread / 32]) : barrier;
  if (!known.empty()) before = std::max(before, known[thread].done[by]);
  return before;
}

bool Viewpoint::visible(std::uint32_t thread, std::uint32_t by, std::uint32_t then) const {
  return (!visible_at_barrier_.empty() && then < visible_at_barrier_[by]) ||
         (!known.empty() && then < known[thread].visible[by]);
}

void Viewpoint::release(Knowledge& to, std::uint32_t thread) const {
  to.reserve(threads);
  for (std::uint32_t by = 0; by < threads; ++by) to.done[by] = std::max(to.done[by], done_before(thread, by));
  raise(to.visible, visible_at_barrier_);
  if (!known.empty()) raise(to.visible, known[thread].visible);
}

void Viewpoint::fence_proxy(std::uint32_t thread) {
  Knowledge& own = knowledge_of(thread);
  for (std::uint32_t by = 0; by < threads; ++by) own.visible[by] = std::max(own.visible[by], done_before(thread, by));
  fenced_since_barrier_ = true;
}

void Viewpoint::pass_barrier(std::uint32_t begun_segment) {
  if (std::exchange(fenced_since_barrier_, false)) {
    for (const Knowledge& each : known) raise(visible_at_barrier_, each.visible);
  }
  barrier = begun_segment;
}

void Viewpoint::pass_warp_barrier(std::uint32_t warp, std::uint32_t lanes, std::uint32_t begun_segment) {
  warp_barrier[warp] = begun_segment;
  if (known.empty()) return;
  Knowledge all;
  for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
    all.add(known[32 * warp + static_cast<std::uint32_t>(std::countr_zero(left))]);
  }
  for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
    known[32 * warp + static_cast<std::uint32_t>(std::countr_zero(left))] = all;
  }
}

}  // namespace gatefold::cuda_emulator
