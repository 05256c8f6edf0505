#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "bitwise/bitwise.hpp"
#include "descriptors/composition.hpp"
#include "descriptors/extras.hpp"
#include "descriptors/initial_values.hpp"
#include "descriptors/saved.hpp"
#include "descriptors/shards.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/check/hooks.hpp"

/// What is checked where two policies meet. The compositions are made from the rows: see cover.sh.
namespace gatefold::rows {

/// The optional members that a policy and its nested types name are those of its row: one that is misspelt shows. What
/// nested types there are, gradients tell; a layer's Carry and Extra are those of its parts.
template <class Policy>
void check_hooks(const Facts& facts, const std::string& of_parts = "") {
  std::string found;
  for (const std::string& name : check::steps::names_of<Cpu, Policy>()) {
    const std::string type = name.substr(0, name.find('.'));
    const bool own = type == name ? name[0] >= 'a' : of_parts.find(type) == std::string::npos;
    if (own) found += (found.empty() ? "" : " ") + name;
  }
  CHECK(found == facts.hooks);
}
template <class... Row>
void check_hooks_of(const Row&... row) {
  (check_hooks<std::remove_cvref_t<decltype(row.make(tiny))>>(row.facts), ...);
}
template <class C>
void check_hooks_of_all(const C& c) {
  check_hooks_of(c.scores, c.mixing, c.selection, c.auxiliary, c.rule, c.expert);
  check_hooks<std::remove_cvref_t<decltype(c.make(tiny))>>(c.layer.facts, "Params Carry Extra ExtraGrad");
}

/// Whether a report says of nothing that it is wrong, but that a point says nothing: the routing changes there, or
/// passes over what has a gradient.
inline bool says_nothing(const check::GradientReport& report) {
  return std::all_of(report.sentences.begin(), report.sentences.end(), [](const std::string& sentence) {
    return sentence.find("because the routing changes") != std::string::npos ||
           sentence.find("the gradient is zero everywhere") != std::string::npos ||
           sentence.find("the gradient is zero to rounding") != std::string::npos;
  });
}

/// Gradients of the layer's input, parameters and carry, in double. Where a point says nothing of one, at another: a
/// new row deals all compositions anew, and with them the seeds.
template <class C>
void check_gradients(const C& c) {
  constexpr Index items = 8;
  Cpu::Context ctx(1);
  const auto layer = c.make(tiny);
  using Layer = std::remove_const_t<decltype(layer)>;
  const Extras<double> extras(items, tiny.item());
  check::GradientReport report;
  for (int seeds = 0; seeds < 3; ++seeds) {
    const Seed seed{static_cast<std::uint64_t>(c.most(&Facts::seed) + seeds)};
    // The point is one where no choice is near its border; few values are skipped all the same.
    report = check::gradients(
        ctx, layer,
        {.items = items, .seed = seed, .most_skipped = 0.1, .moved = c.most(&Facts::moved), .zero = c.zeros()},
        extras.of<Extra<Layer, double, Cpu>>({.length = tiny.sequence, .noise = true}, 0, items));
    if (report || !says_nothing(report)) break;
  }
  CHECK_MESSAGE(report, report.str());
}

/// Bits: on any threads, in `infer` and in `forward`, and (unless items of a batch meet) in any batch.
template <class T, class B = Cpu, class C>
void check_bits(const C& c) {
  using namespace bitwise;
  const auto layer = c.make(odd);
  const Meets meets = c.most(&Facts::meets);
  on_any_threads<T, B>(layer, few, true, {.noise = true, .padding = true});
  if (meets == Meets::itself) in_any_batch<T, B>(layer, {}, 1, {0, 5, 29}, 40);
  if (meets == Meets::sequence)
    in_any_batch<T, B>(layer, {.length = odd.sequence}, odd.sequence, {0, 2}, 9 * odd.sequence);
}

/// The same bits by size: work of many items is shared out by itself, and rows of an expert fill more than one block.
template <class T, class C>
void check_bits_of_many(const C& c) {
  using namespace bitwise;
  const auto layer = c.make(odd);
  const Meets meets = c.most(&Facts::meets);
  const Index unit = meets == Meets::sequence ? odd.sequence : 1;
  check_hooks_of_all(c);
  check_bits<T>(c);
  without_gradients<T>(layer, few, {.noise = true, .padding = true});
  without_gradients<T>(layer, 6 * odd.sequence, {.length = odd.sequence});
  on_any_threads<T>(layer, 48, true, {.length = odd.sequence});
  on_any_threads<T>(layer, 300, true);
  on_any_threads<T>(layer, 1024, false, {.length = 128, .noise = true, .padding = true});
  if (meets == Meets::batch) return;
  in_any_batch<T>(layer, {.length = odd.sequence}, unit);
  in_any_batch<T>(layer, {.length = odd.sequence, .padding = true}, unit);
  in_any_batch<T>(layer, {.length = odd.sequence, .noise = true}, unit, {0});  // an item's noise goes by its place
}

}  // namespace gatefold::rows
