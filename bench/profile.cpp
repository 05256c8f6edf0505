#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "support/beside.hpp"
#include "support/mixing.hpp"

// Repeats one chosen benchmark, so that bench/profile.sh can profile it.
namespace {

using namespace bench;

void repeat(double seconds, const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) f();
}

template <class ModelT>
void infer_layer(const ModelT& model, const Shape& s, double seconds) {
  Run run(model, s.items);
  repeat(seconds, [&] { run.infer(); });
}
void forward(const Shape& s, double seconds) { infer_layer(plain_mixture(s), s, seconds); }
void train(const Shape& s, double seconds) {
  Run run(plain_mixture(s), s.items);
  repeat(seconds, [&] {
    run.forward();
    run.backward();
  });
}
void decode(const Shape& s, double seconds) {
  const auto copies = cold_copies<Run<decltype(plain_mixture(s))>>(s);
  repeat(seconds, [&] { copies.infer(); });
}
void decode_frozen(const Shape& s, double seconds) {
  const auto copies = cold_copies<Run<decltype(plain_mixture(s))>>(s);
  std::vector<decltype(frozen_copy(*copies.runs[0], false))> frozen;
  for (const auto& run : copies.runs) frozen.push_back(frozen_copy(*run, false));
  repeat(seconds, [&] {
    for (std::size_t i = 0; i < frozen.size(); ++i) {
      auto& run = *copies.runs[i];
      infer<float>(run.layer, run.ctx, frozen[i], run.x, run.carry, run.y, run.extra);
    }
  });
}
template <class RuleT>
void rule(const Shape& s, double seconds) {
  infer_layer(Residual{RuleT{}, plain_mixture(s)}, s, seconds);
}
template <class MixingT>
void mix(const MixingT& mixing, const Shape& s, double seconds) {
  Cpu::Context ctx = context();
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.7, s.items, s.dim);
  const Attended attended(ctx, x);
  using Model = Mixture<MixingGate<MixingT>, Mlp<GeluTanh>>;
  Run<Model> run(Model{mixing_gate(s, mixing), plain_expert(s)}, s.items, mixing_extra(mixing, attended.trace()));
  repeat(seconds, [&] { run.infer(); });
}

const std::map<std::string_view, void (*)(const Shape&, double)> kRows{
    {"layer_forward", forward},
    {"layer_train", train},
    {"layer_decode", decode},
    {"decode_frozen", decode_frozen},
    {"layer_rule/Plain", rule<update::Plain>},
    {"layer_rule/HeavyBall", rule<update::HeavyBall>},
    {"layer_rule/Adam", rule<update::Adam>},
    {"layer_mixing/AttentionAware", [](const Shape& s, double seconds) { mix(AttentionPosterior{}, s, seconds); }},
    {"layer_mixing/AttentionAwareSequence",
     [](const Shape& s, double seconds) {
       mix(AttentionPosterior{.head = FollowedHead::lowest_entropy_of_sequence}, s, seconds);
     }},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc == 3 ? argv[1] : "";
  const auto at = name.find("/T:");
  Shape s{};
  const auto row = at == std::string::npos ? kRows.end() : kRows.find(std::string_view(name).substr(0, at));
  constexpr auto format = "/T:%" SCNd64 "/D:%" SCNd64 "/H:%" SCNd64 "/E:%" SCNd64 "/K:%" SCNd64;
  if (row == kRows.end() ||
      std::sscanf(name.c_str() + at, format, &s.items, &s.dim, &s.hidden, &s.experts, &s.picks) != 5) {
    std::fprintf(stderr, "usage: profile ROW/T:…/D:…/H:…/E:…/K:… SECONDS, where ROW is one of\n");
    for (const auto& [known, run] : kRows)
      std::fprintf(stderr, "  %.*s\n", static_cast<int>(known.size()), known.data());
    return 2;
  }
  row->second(s, std::atof(argv[2]));
}
