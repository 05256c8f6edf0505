#include "gatefold/train/checkpoint.hpp"

#include <doctest/doctest.h>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/attention_expert.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/model/language_model.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/averaged.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/papers/in_stages.hpp"
#include "gatefold/papers/three_stage.hpp"
#include "gatefold/train/in_groups.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"

using namespace gatefold;

namespace {

constexpr Index kItems = 12, kDim = 4;

/// A folder that is deleted after the test.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gatefold-checkpoint-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()));
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path operator/(const char* name) const { return path / name; }
};
std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

/// A model with a carry, and with a load bias that adapts without an optimizer.
auto model(Index experts = 3) {
  return Stack{
      Residual{update::HeavyBall{.mu = 0.5},
               Mixture{SigmoidTopK{.scores = {.experts = experts}, .selection = {.k = 2}}, Linear{.model_dim = kDim}}},
      2};
}
/// A step whose batch depends only on the seed and the number of steps.
template <class R>
void step(R& run) {
  const auto t = static_cast<std::uint64_t>(run.state.step);
  const auto x = uniform_tensor<float>(run.context(), run.seed.fork(1).fork(t), 1.0, kItems + run.state.step % 3, kDim);
  run.step(x, x);
}

template <class O>
void expect_resumes(const O& optimizer) {
  const Folder folder;
  constexpr Index total = 6;
  Cpu::Context one(1);
  Trainer whole{one, model(), MeanSquaredError{}, optimizer, Seed{5}};
  for (Index done = 0; done <= total; ++done) {
    save_checkpoint(folder / std::to_string(done).c_str(), whole, {{"done", std::to_string(done)}});
    if (done < total) step(whole);
  }
  for (Index from = 0; from <= total; ++from) {
    Cpu::Context other(2 + static_cast<int>(from % 2));
    Trainer rest{other, model(), MeanSquaredError{}, optimizer, Seed{6}};
    const auto kept = load_checkpoint(folder / std::to_string(from).c_str(), rest);
    CHECK(kept == io::Metadata{{"done", std::to_string(from)}});
    CHECK(rest.state.step == from);
    CHECK(rest.seed == Seed{5});
    while (rest.state.step < total) step(rest);
    save_checkpoint(folder / "rest", rest, {{"done", std::to_string(total)}});
    CHECK(bytes_of(folder / "rest") == bytes_of(folder / std::to_string(total).c_str()));
  }
  CHECK(bytes_of(folder / "0") != bytes_of(folder / std::to_string(total).c_str()));
}

}  // namespace

TEST_CASE("checkpoint: a resumed run equals an uninterrupted run bitwise") {
  expect_resumes(
      optim::Scheduled{optim::Clipped{optim::AdamW{.lr = 0.01}, 0.5}, optim::WarmupCosine{.warmup = 2, .total = 9}});
  expect_resumes(optim::Sgd{.lr = 0.1, .momentum = 0.9});
  expect_resumes(optim::Clipped{
      InGroups{is_weight, optim::AdamW{.lr = 0.01, .decay = 0.1}, optim::Sgd{.lr = 0.1, .momentum = 0.9}}, 0.5});
  expect_resumes(optim::NormalizedGd{.per_expert = false});
  expect_resumes(optim::Clipped{optim::Averaged{optim::AdamW{.lr = 0.01}, 0.8}, 0.5});
}

TEST_CASE("checkpoint: stores the averages as parameters after swap_averages") {
  const Folder folder;
  Cpu::Context ctx(1);
  const optim::Averaged optimizer{optim::AdamW{.lr = 0.01}, 0.8};
  Trainer run{ctx, model(), MeanSquaredError{}, optimizer, Seed{5}};
  for (int t = 0; t < 3; ++t) step(run);
  swap_averages(run);
  save_checkpoint(folder / "averages", run);
  Trainer tuned{ctx, model(), MeanSquaredError{}, optim::Sgd{}, Seed{6}};
  load_model(folder / "averages", ctx, tuned.params);
  const auto x = uniform_tensor<float>(ctx, Seed{7}, 1.0, kItems, kDim);
  CHECK(tuned.evaluate(x, x) == run.evaluate(x, x));
  // A run that continues from the file has swapped averages, too.
  Trainer rest{ctx, model(), MeanSquaredError{}, optimizer, Seed{6}};
  load_checkpoint(folder / "averages", rest);
  CHECK(message_of([&] { step(rest); }).starts_with("Averaged.step: params: expected the learned parameters"));
  for (auto* trainer : {&run, &rest}) {
    swap_averages(*trainer);
    step(*trainer);
  }
  save_checkpoint(folder / "run", run);
  save_checkpoint(folder / "rest", rest);
  CHECK(bytes_of(folder / "run") == bytes_of(folder / "rest"));
}

TEST_CASE("checkpoint: saving excludes accumulated parts, loading discards them") {
  const Folder folder;
  Cpu::Context ctx(1);
  const auto make = [&] { return Trainer{ctx, model(), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{5}}; };
  auto run = make(), other = make();
  step(run);
  save_checkpoint(folder / "step", run);
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, kItems, kDim);
  run.accumulate(x, x);
  save_checkpoint(folder / "part", run);
  CHECK(bytes_of(folder / "part") == bytes_of(folder / "step"));
  load_checkpoint(folder / "part", run);
  load_checkpoint(folder / "step", other);
  step(run);
  step(other);
  save_checkpoint(folder / "run", run);
  save_checkpoint(folder / "other", other);
  CHECK(bytes_of(folder / "run") == bytes_of(folder / "other"));
}

TEST_CASE("checkpoint: a resumed ThreeStage has equal bits in every stage") {
  const Folder folder;
  const Mixture mixture{
      SoftmaxNoisyTop1{.scores = {.experts = 2, .length = 2, .bias = false, .initial = Initial::zero()}},
      AttentionExpert{.model_dim = kDim, .length = 2}};
  const optim::AdamW adam{.lr = 0.1};
  const Stages stages{2, 4, adam, adam, adam, optim::Sgd{.momentum = 0.9}};
  const auto epoch = [&](auto& run) {
    run.begin_epoch();
    const auto t = static_cast<std::uint64_t>(run.epoch());
    const auto x = uniform_tensor<float>(run.context(), run.trainer.seed.fork(t), 1.0, kItems, 2 * kDim);
    const auto target = constant_tensor<float>(run.context(), 1, kItems, 1);
    Extra<std::remove_cvref_t<decltype(mixture)>, float, Cpu> extra;
    extra.selection.random = Random{run.trainer.seed, t};
    for (int batch = 0; batch < 2; ++batch) run.step(x, target, extra);
  };
  Cpu::Context one(1), two(2);
  ThreeStage whole{one, mixture, Logistic{}, stages, Seed{5}};
  for (int done = 0; done <= 6; ++done) {
    save_checkpoint(folder / std::to_string(done).c_str(), whole);
    if (done < 6) epoch(whole);
  }
  for (int from = 0; from <= 6; ++from) {
    ThreeStage rest{two, mixture, Logistic{}, stages, Seed{6}};
    load_checkpoint(folder / std::to_string(from).c_str(), rest);
    CHECK(rest.epoch() == from);
    while (rest.epoch() < 6) epoch(rest);
    save_checkpoint(folder / "rest", rest);
    CHECK(bytes_of(folder / "rest") == bytes_of(folder / "6"));
  }
}

TEST_CASE("checkpoint: keeps the count of skipped steps") {
  const Folder folder;
  Cpu::Context ctx(1);
  const auto make = [&] { return Trainer{ctx, Linear{.model_dim = kDim}, MeanSquaredError{}, optim::Sgd{}, Seed{1}}; };
  auto first = make(), second = make();
  first.not_finite = NotFinite::skips;
  const auto x = constant_tensor<float>(ctx, std::nan(""), kItems, kDim);
  for (int t = 0; t < 3; ++t) first.step(x, x);
  save_checkpoint(folder / "a", first);
  load_checkpoint(folder / "a", second);
  CHECK(second.skipped == 3);
  CHECK(second.state.step == 0);
}

namespace {

/// Gradient descent whose rate decays by a product that the state holds.
struct Fading {
  using IsOptimizer = void;
  double lr = 0.1;
  template <class Pack>
  struct State {
    Index step = 0;
    double power = 1;
    float last = 0;
    static void each(auto&&, auto&...) {}
    static void counters(auto&& f, auto&... s) {
      f("step", s.step...);
      f("power", s.power...);
      f("last", s.last...);
    }
  };
  template <class C, class Pack>
  State<Pack> begin(C&, const Pack&) const {
    return {};
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    state.power *= 0.9;
    state.last = static_cast<float>(state.power);
    optim::Sgd sgd{.lr = lr * state.power};
    auto of_sgd = sgd.begin(ctx, params);
    sgd.step(ctx, params, grads, of_sgd);
    ++state.step;
  }
};

}  // namespace

TEST_CASE("checkpoint: keeps fractional numbers of a state bit for bit") {
  const Folder folder;
  Cpu::Context ctx(1);
  const auto run_of = [&](std::uint64_t seed) {
    return Trainer{ctx, Linear{.model_dim = kDim}, MeanSquaredError{}, Fading{}, Seed{seed}};
  };
  auto run = run_of(1), other = run_of(2);
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, kItems, kDim);
  for (int i = 0; i < 3; ++i) run.step(x, x);
  save_checkpoint(folder / "run", run);
  load_checkpoint(folder / "run", other);
  for (int i = 0; i < 3; ++i) CHECK(run.step(x, x) == other.step(x, x));

  const double tiny = std::numeric_limits<double>::denorm_min(), infinity = std::numeric_limits<double>::infinity();
  for (const double power : {0.1, -0.0, -1e300, tiny, -infinity, std::nan("7")}) {
    run.state.power = power;
    run.state.last = static_cast<float>(power);
    save_checkpoint(folder / "run", run);
    load_checkpoint(folder / "run", other);
    CHECK(std::memcmp(&other.state.power, &run.state.power, sizeof(double)) == 0);
    CHECK(std::memcmp(&other.state.last, &run.state.last, sizeof(float)) == 0);
  }
}

TEST_CASE("checkpoint: a wrong file is refused and changes nothing") {
  const Folder folder;
  Cpu::Context ctx(1);
  const auto make = [&](const auto& of, const auto& optimizer) {
    return Trainer{ctx, of, MeanSquaredError{}, optimizer, Seed{1}};
  };
  const Linear small{.model_dim = kDim};
  auto run = make(small, optim::Sgd{.momentum = 0.5});
  for (int t = 0; t < 2; ++t) step(run);
  const std::string path = (folder / "run").string();
  save_checkpoint(path, run, {{"mine", "kept"}});
  CHECK(io::read_metadata(path) == io::Metadata{{"gatefold.checkpoint", "1"},
                                                {"gatefold.optimizer.step", "2"},
                                                {"gatefold.seed", "1"},
                                                {"gatefold.skipped", "0"},
                                                {"mine", "kept"}});

  step(run);
  save_checkpoint(folder / "now", run);
  const std::string now = bytes_of(folder / "now");
  const auto refusal = [&](const std::string& from, auto& into) {
    const std::string message = message_of([&] { load_checkpoint(from, into); });
    save_checkpoint(folder / "after", run);
    CHECK(bytes_of(folder / "after") == now);
    return message;
  };
  // Writes the file again with other metadata.
  const auto with = [&](const char* key, const char* value) {
    io::Metadata metadata = io::read_metadata(path);
    value ? metadata[key] = value : std::to_string(metadata.erase(key));
    io::save(folder / "other", ctx, metadata, io::Part{"", run});
    return refusal((folder / "other").string(), run);
  };
  const std::string other = (folder / "other").string() + ": metadata: ";
  CHECK(with("gatefold.checkpoint", nullptr) ==
        other + "expected a checkpoint (\"gatefold.checkpoint\"), got other tensors: read them with io::load");
  for (const char* version : {"2", "0", "", "1.0", " 1"})
    CHECK(with("gatefold.checkpoint", version) ==
          other + "expected a checkpoint of format 1, got the format of another version of gatefold");
  for (const char* count : {"", "-1", "1e3", "2 ", " 2", "+2", "0x2", "two", "99999999999999999999"})
    CHECK(with("gatefold.optimizer.step", count) == other + "expected a count in \"gatefold.optimizer.step\"");
  CHECK(with("gatefold.optimizer.step", nullptr) == other + "expected a count in \"gatefold.optimizer.step\"");
  CHECK(with("gatefold.seed", "18446744073709551616") == other + "expected a count in \"gatefold.seed\"");
  CHECK(with("gatefold.optimizer.epoch", "3") ==
        other + "unexpected counter of another type of run: \"gatefold.optimizer.epoch\"");

  // Runs of another model or another optimizer.
  auto wider = make(Linear{.model_dim = kDim, .output_dim = 5}, optim::Sgd{});
  CHECK(refusal(path, wider).find(": expected [1, ") != std::string::npos);  // of weight or bias, whichever comes first
  auto adam = make(small, optim::AdamW{});
  CHECK(refusal(path, adam).find("\"optimizer.v.") != std::string::npos);
  CHECK(adam.state.step == 0);
  save_checkpoint(folder / "adam", adam);
  CHECK(refusal((folder / "adam").string(), run).find("\"optimizer.v.") != std::string::npos);
  CHECK(refusal((folder / "nowhere").string(), run).find("nowhere: cannot open") != std::string::npos);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  CHECK(refusal(path, run).find("truncated") != std::string::npos);

  CHECK(message_of([&] {
          save_checkpoint(path, run, {{"gatefold.mine", "1"}});
        }) == "save_checkpoint: metadata: expected names that do not begin with \"gatefold.\", got gatefold.mine");
}

TEST_CASE("checkpoint: a classifier can load a language model's weights") {
  const Folder folder;
  const std::string path = (folder / "language").string();
  Cpu::Context ctx(1);
  const LanguageSizes sizes{.vocabulary = 7, .model_dim = kDim, .heads = 2, .window = 3, .depth = 2};
  const auto language =
      switch_model(sizes, update::HeavyBall{},
                   Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Linear{.model_dim = kDim}});
  const std::vector<Index> ids{1, 2, 3, 4, 5, 6}, next{2, 3, 4, 5, 6, 0};
  Trainer trained{ctx, language, sizes.loss(), optim::AdamW{}, Seed{1}};
  for (int t = 0; t < 2; ++t) trained.step(ids, next);
  save_checkpoint(path, trained);

  Trainer tuned{ctx, classifier(language, 3, 0), CrossEntropy{.ignore = -1}, optim::AdamW{}, Seed{2}};
  const auto& [model, hidden, head] = tuned.params.layers;
  const auto values = [](const auto& pack) {
    std::vector<float> all;
    for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); }, pack);
    return all;
  };
  const auto of_hidden = values(hidden), of_head = values(head);
  CHECK(values(model) != values(trained.model()));
  load_model(path, ctx, std::get<0>(tuned.params.layers));
  CHECK(values(model) == values(trained.model()));
  CHECK(values(hidden) == of_hidden);
  CHECK(values(head) == of_head);
  const auto labels = labels_of_last({2, 0}, 3);
  tuned.step(ids, labels);

  // If the loss has no parameters, the names in a checkpoint do not have the part `model`.
  save_checkpoint(folder / "tuned", tuned);
  auto params = zeros_like(ctx, tuned.params);
  load_model(folder / "tuned", ctx, params);
  CHECK(values(params) == values(tuned.params));

  const auto before = values(tuned.params);
  std::filesystem::resize_file(folder / "tuned", std::filesystem::file_size(folder / "tuned") - 1);
  CHECK(message_of([&] { load_model(folder / "tuned", ctx, tuned.params); }).find("truncated") != std::string::npos);
  // Loading a language model into the whole classifier fails, because tensors of the same name have other shapes.
  CHECK(message_of([&] { load_model(path, ctx, tuned.params); }).find(": expected [") != std::string::npos);
  Trainer wider{ctx, classifier(Embedding{.vocabulary = 8, .model_dim = kDim}, 3), CrossEntropy{.ignore = -1},
                optim::AdamW{}, Seed{2}};
  const auto of_wider = values(wider.params);
  CHECK(message_of([&] {
          load_model(path, ctx, std::get<0>(wider.params.layers));
        }).find("tensor \"params.weight\": missing") != std::string::npos);
  CHECK(values(wider.params) == of_wider);
  CHECK(values(tuned.params) == before);
}

namespace {

/// Returns the pages of memory in use, as the kernel counts them.
long resident_pages() {
  std::ifstream file("/proc/self/statm");
  long all = 0, resident = -1;
  file >> all >> resident;
  return resident;
}
std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

}  // namespace

TEST_CASE("checkpoint: ten thousand steps leak no memory and no descriptors" * doctest::skip()) {
  const Folder folder;
  Cpu::Context ctx(2);
  constexpr Index total = 10000, most = 300;
  Trainer trainer{ctx, model(8), MeanSquaredError{},
                  optim::Scheduled{optim::Clipped{optim::AdamW{.lr = 1e-2}, 1.0},
                                   optim::WarmupCosine{.warmup = 100, .total = total}},
                  Seed{1}};
  std::mt19937_64 random(1);
  std::vector<float> values(static_cast<std::size_t>(most * kDim));
  double first = 0, last = 0;
  long pages = 0;
  std::ptrdiff_t descriptors = 0;
  for (Index t = 0; t < total; ++t) {
    // The number of items is random. The first batch is the largest one, because it determines the memory in use.
    const Index items = t == 0 ? most : std::uniform_int_distribution<Index>(0, most)(random);
    for (auto& v : values) v = std::uniform_real_distribution<float>(-1, 1)(random);
    const View<const float, 2, Cpu> x(values.data(), items, kDim);
    const double loss = trainer.step(x, x);
    REQUIRE(std::isfinite(loss));
    if (t < 100) first += loss / 100;
    if (t >= total - 100) last += loss / 100;
    if (t % 100 == 0) {
      save_checkpoint(folder / "run", trainer);
      load_checkpoint(folder / "run", trainer);
    }
    if (t == 1000) {
      pages = resident_pages();
      descriptors = open_descriptors();
    }
  }
  CAPTURE(first);
  CAPTURE(last);
  CHECK(last < first / 2);
  CHECK(pages > 0);
  CHECK(resident_pages() <= pages + 64);  // malloc may keep 256 KiB more, but memory must not grow
  CHECK(open_descriptors() == descriptors);
  CHECK(descriptors > 2);
}
