#include <cstdio>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include <gatefold/gatefold.cuh>

#include "cuda_emulator/launch.hpp"

// Counts the work of one layer with the CUDA emulator (docs/explanation/cuda_emulator.md): kernel launches, PTX
// instructions and accessed bytes. The counts are the same on every machine. Caches are not modelled.
//
// The floor of a part of the layer is the number of bytes of its inputs and outputs. Data that one kernel of the part
// writes for another does not count. The program fails if a part moves more than kGoal times its floor, or if a second
// run gives other counts.
namespace {

using namespace gatefold;
namespace emulator = gatefold::cuda_emulator;

struct Sizes {
  Index items = 256, dim = 256, hidden = 256, experts = 8, picks = 2;
};

/// A part of the layer may read and write at most kGoal times its floor, in bytes.
constexpr double kGoal = 1.3;

using Layer = Residual<update::Plain, Mixture<SoftmaxTopK, Mlp<GeluTanh>>>;

/// Returns the part of a layer that a CUDA kernel belongs to, for example "gating".
std::string part_of(const std::string& kernel) {
  const std::pair<const char*, const char*> parts[] = {
      {"RouteRow", "gating"},       {"SortKey", "dispatch"}, {"RadixSort", "dispatch"},  {"GroupsFrom", "dispatch"},
      {"FirstOfGroup", "dispatch"}, {"table_", "dispatch"},  {"TableSlots", "dispatch"}, {"SlotsOfRow", "dispatch"},
      {"SlotItems", "dispatch"},    {"Combine", "combine"},  {"slots_are", "experts"},   {"skinny", "experts"},
      {"grouped_sum", "experts"},   {"bf16_", "experts"},    {"RoundRow", "experts"},    {"OnSlot", "experts"}};
  for (const auto& [word, part] : parts)
    if (kernel.find(word) != std::string::npos) return part;
  return "rest";
}

/// Returns the least number of bytes that each part of inference (gating, dispatch, combine) must move.
/// @param with_rule  true if combine also applies the update rule of a layer, which reads the items
std::map<std::string, double> floors_of(const Sizes& s, bool with_rule) {
  const double N = double(s.items), S = N * double(s.picks), E = double(s.experts), D = double(s.dim),
               index = sizeof(Index);
  return {
      // Gating reads items, weights and bias. It writes the item, expert and weight of each pick.
      {"gating", 4 * (N * D + D * E + E) + S * (2 * index + 4)},
      // Dispatch reads the expert of each pick. It writes the pick and item of each slot, the slots of each item, and
      // the offsets of experts and items.
      {"dispatch", S * 4 * index + (E + 1 + N + 1) * index},
      // Combine reads the output, the weight and two indices of each slot, and the items if it applies the rule. It
      // writes the sums.
      {"combine", 4 * (S * D + (with_rule ? 2 : 1) * N * D) + S * (2 * index + 4)},
  };
}

using Counts = std::map<std::string, emulator::Counters>;

/// Runs `work`, whose memory is already allocated, and returns its counts for each part of the layer.
template <class Work>
Counts counts_of(const Work& work) {
  emulator::counters_by_kernel().clear();
  work();
  Counts parts;
  for (const auto& [kernel, c] : emulator::counters_by_kernel()) {
    for (auto* sum : {&parts[part_of(kernel)], &parts["whole"]}) {
      sum->launches += c.launches;
      sum->instructions += c.instructions;
      sum->global_bytes_loaded += c.global_bytes_loaded;
      sum->global_bytes_stored += c.global_bytes_stored;
    }
  }
  return parts;
}

bool same(const emulator::Counters& a, const emulator::Counters& b) {
  return a.launches == b.launches && a.instructions == b.instructions &&
         a.global_bytes_loaded == b.global_bytes_loaded && a.global_bytes_stored == b.global_bytes_stored;
}

constexpr const char* kColumns =
    "launches | instructions / item | bytes loaded / item | bytes stored / item | over the floor "
    "|\n|---|---|---|---|---|---|\n";

/// Prints the table cells of one part of the layer.
/// @param floor  floor of the part in bytes, or 0 if the part has no goal
/// @returns true if the part meets its goal, and a second run had the same counts
bool print(const std::string& title, const Sizes& s, const emulator::Counters& c, const emulator::Counters& again,
           double floor) {
  const double items = static_cast<double>(s.items);
  std::printf("%llu | %.0f | %.0f | %.0f | ", static_cast<unsigned long long>(c.launches),
              static_cast<double>(c.instructions) / items, static_cast<double>(c.global_bytes_loaded) / items,
              static_cast<double>(c.global_bytes_stored) / items);
  bool good = same(c, again);
  if (!good) std::fprintf(stderr, "%s: expected the same counts again, got others\n", title.c_str());
  if (floor == 0) {
    std::printf("|\n");
    return good;
  }
  const double ratio = static_cast<double>(c.global_bytes_loaded + c.global_bytes_stored) / floor;
  std::printf("%.2f |\n", ratio);
  if (c.launches > 0 && ratio <= kGoal) return good;
  std::fprintf(stderr, "%s: expected a launch and at most %.2f times the floor, got %llu and %.2f\n", title.c_str(),
               kGoal, static_cast<unsigned long long>(c.launches), ratio);
  return false;
}

/// Prints a table of the launches, instructions and bytes of `work`.
/// @returns true if every part with a floor meets its goal, and a second run has the same counts
template <class Work>
bool count(const char* title, const Work& work, const Sizes& s, const std::map<std::string, double>& floors) {
  work();
  Counts parts = counts_of(work), again = counts_of(work);
  std::printf("%s\n| part | %s", title, kColumns);
  bool good = true;
  for (const char* part : {"gating", "dispatch", "experts", "combine", "rest", "whole"}) {
    std::printf("| %s | ", part);
    const auto floor = floors.find(part);
    good &=
        print(std::string(title) + ": " + part, s, parts[part], again[part], floor == floors.end() ? 0 : floor->second);
  }
  return good;
}

/// Counts the work of a whole layer, and prints a table for inference and a table for training.
template <class B>
bool count_layer(const std::string& arithmetic) {
  const Sizes s;
  typename B::Context ctx;
  const Layer layer{
      .rule = {},
      .branch = {SoftmaxTopK{.scores = {.model_dim = s.dim, .experts = s.experts}, .selection = {.k = s.picks}},
                 Mlp<GeluTanh>{.model_dim = s.dim, .hidden_dim = s.hidden}}};
  auto params = init_params<float, B>(layer, ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, s.items, s.dim),
             dy = uniform_tensor<float>(ctx, Seed{3}, 1, s.items, s.dim);
  Tensor<float, 2, B> y(s.items, s.dim), dx(s.items, s.dim);
  Saved<Layer, float, B> saved;
  Carry<Layer, float, B> carry;
  bool good = count(("Inference, " + arithmetic).c_str(), [&] { infer<float, B>(layer, ctx, params, x, carry, y); }, s,
                    floors_of(s, true));
  std::printf("\n");
  good &= count(("Forward and backward, " + arithmetic).c_str(),
                [&] {
                  layer.forward(ctx, params, x, carry, y, saved, {});
                  gatefold::backward(layer, ctx, params, x, saved, dy, carry, dx, grads);
                },
                s, {});
  std::printf("\n");
  return good;
}

/// Prints a table of the counts of gating, with one row for each number of experts. Use at most 64 experts, so that the
/// kernel product_rows computes the scores, and enough items to give every multiprocessor a block.
/// @returns true if every row meets its goal, and a second count gives the same numbers
bool count_gating(Cuda::Context& ctx, Sizes s, std::initializer_list<Index> numbers_of_experts) {
  std::printf("Gating of E experts, a device of %d multiprocessors\n| E | %s", ctx.multiprocessors(), kColumns);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, s.items, s.dim);
  bool good = true;
  for (const Index experts : numbers_of_experts) {
    s.experts = experts;
    const SoftmaxTopK gate{.scores = {.model_dim = s.dim, .experts = experts}, .selection = {.k = s.picks}};
    const auto params = init_params<float, Cuda>(gate, ctx, Seed{1});
    SparsePlan<float, Cuda> plan;
    const auto work = [&] { infer_gate<float, Cuda>(gate, ctx, params, x, plan, {}); };
    work();
    const auto once = counts_of(work)["gating"], again = counts_of(work)["gating"];
    std::printf("| %lld | ", (long long)experts);
    good &= print("Gating of " + std::to_string(experts) + " experts", s, once, again, floors_of(s, false)["gating"]);
  }
  return good;
}

}  // namespace

int main() {
  emulator::options().races = false;
  std::printf("N = %lld, D = %lld, H = %lld, E = %lld, K = %lld, compute_%d, nvcc %d.%d\n\n", (long long)Sizes{}.items,
              (long long)Sizes{}.dim, (long long)Sizes{}.hidden, (long long)Sizes{}.experts, (long long)Sizes{}.picks,
              emulator::options().compute_capability, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__);
  bool good = count_layer<Cuda>("float");
  good &= count_layer<CudaBf16>("bfloat16 products of experts");

  Cuda::Context ctx;
  // Counts only the routing (gating, dispatch, combine), with more picks than one thread block can sort.
  const Sizes many{.items = 4096, .dim = 64};
  const SoftmaxTopK gate{.scores = {.model_dim = many.dim, .experts = many.experts}, .selection = {.k = many.picks}};
  const auto weights = init_params<float, Cuda>(gate, ctx, Seed{1});
  const auto items = uniform_tensor<float>(ctx, Seed{2}, 1, many.items, many.dim),
             slots = uniform_tensor<float>(ctx, Seed{3}, 1, many.items * many.picks, many.dim);
  Tensor<float, 2, Cuda> sums(many.items, many.dim);
  SparsePlan<float, Cuda> plan;
  std::printf("N = %lld, D = %lld\n\n", (long long)many.items, (long long)many.dim);
  good &= count(
      "Routing alone",
      [&] {
        infer_gate<float, Cuda>(gate, ctx, weights, items, plan, {});
        plan.combine(ctx, slots, sums);
      },
      many, floors_of(many, false));

  const Sizes wide{.items = 1024, .dim = 256};
  std::printf("\nN = %lld, D = %lld\n\n", (long long)wide.items, (long long)wide.dim);
  good &= count_gating(ctx, wide, {4, 8, 16, 32, 64});
  return good ? 0 : 1;
}
