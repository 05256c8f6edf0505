// Repeats the experiments of paper 000 on images, scaled to Fashion-MNIST. The images are clean, corrupted, or cropped
// and flipped at random. Compares mixtures of whole vision transformers in three stages, one transformer without a
// gate, a mixture with one attention for all experts, and a mixture without attention.
//
//   mot_vision [--quick] [--seeds 3] [--train 4000] [--epochs 16] [--t1 2] [--t2 12] [--blocks 2] [--experts 1,4,8] …

#include "../../fashion_mnist/dataset.hpp"
#include "../whole_report.hpp"
#include "augment.hpp"
#include "corrupt.hpp"

namespace studies::mot_vision {

/// The options differ from the paper, so that the 48 runs without augmentation take only 25 minutes on two cores.
/// Images are fewer and smaller. There are 2 blocks instead of 4, 16 epochs instead of 600, and batches of 64. Stage I
/// ends after epoch T₁ and stage II after epoch T₂, which are about the same shares of the epochs as in the paper.
struct Options {
  std::string data = "/usr/share/datasets/fashion-mnist";
  Index train = 4000, test = 1500;
  std::vector<Index> experts{1, 4, 8}, baseline_experts{4};
  Corruption corruption{};
  double flip = 0.5;
  Index crop = 2;
  Recipe recipe{.epochs = 16, .first = 2, .second = 12};
  WholeTransformer net{
      .token_dim = 16, .model_dim = 48, .hidden_dim = 192, .heads = 4, .length = 49, .blocks = 2, .outputs = 10};
};

constexpr Index patch = 4;

/// Returns the first `count` images of a set.
fashion::Dataset first_of(fashion::Dataset set, Index count, const char* option) {
  expect(count <= set.count, "options", option, Joined{"at most ", set.count}, count);
  set.count = count;
  set.images.resize(static_cast<std::size_t>(count * fashion::kPixels));
  set.labels.resize(static_cast<std::size_t>(count));
  return set;
}

Items items(const fashion::Dataset& set, bool corrupted, const Corruption& c, Seed seed) {
  const std::vector<float> images =
      corrupted ? corrupt(set.images, set.labels, fashion::kPixels / (patch * patch), c, seed) : set.images;
  Items all{Tensor<float, 2, Cpu>(set.count, fashion::kPixels), Tensor<Index, 1, Cpu>(set.count), {}};
  std::copy(images.begin(), images.end(), all.x.data());
  std::copy(set.labels.begin(), set.labels.end(), all.label.data());
  return all;
}

Json learn(const Model& model, const Options& o, const Items& train, const Items& test, Seed seed,
           const Report& report) {
  if (model.kind == Model::Kind::mot_per_patch) {
    const PatchNoisyTop1 gate{
        .scores = {.model_dim = o.net.token_dim, .experts = model.experts, .length = o.net.length}};
    return learn_routed<Classify>(model, gate, o.net, train, test, fashion::kClasses, o.recipe, seed, report);
  }
  return learn_transformer<Classify>(model, o.net, train, test, fashion::kClasses, o.recipe, seed, report);
}

void study(const Common& common, const Options& o) {
  validate(o.recipe, o.net);
  expect(o.corruption.replaced + o.corruption.noisy <= 1, "options", "--replaced and --noisy", "a sum of at most 1",
         o.corruption.replaced + o.corruption.noisy);
  const fashion::Dataset train = first_of(fashion::load(o.data, "train", patch), o.train, "--train"),
                         test = first_of(fashion::load(o.data, "t10k", patch), o.test, "--test");

  std::vector<Model> models;
  for (const Index m : o.experts) models.push_back({Model::Kind::mot, m});
  for (const Index m : o.experts)
    if (m > 1) models.push_back({Model::Kind::mot_per_patch, m});
  models.push_back({Model::Kind::multi_head, 1});
  for (const Index m : o.baseline_experts) {
    models.push_back({Model::Kind::ffn_moe, m});
    models.push_back({Model::Kind::attention_absent, m});
  }
  Json options{
      {"data", o.data},
      {"train", o.train},
      {"test", o.test},
      {"recipe", o.recipe.json()},
      {"network", json(o.net)},
      {"corruption",
       {{"replaced", o.corruption.replaced}, {"noisy", o.corruption.noisy}, {"deviation", o.corruption.deviation}}}};
  const Json augmentation{{"crop", o.crop}, {"flip", o.flip}};
  const std::vector<std::string> classes(fashion::kClassNames.begin(), fashion::kClassNames.end());
  std::vector<Seen> data;
  std::vector<Run> runs;
  // The training images of the set `augmented` are cropped and flipped. Its test images are clean.
  for (const std::string name : {"clean", "corrupted", "augmented"}) {
    const bool corrupted = name == "corrupted", augmented = name == "augmented";
    data.push_back({name, "Fashion-MNIST, " + name, "accuracy", "test accuracy", classes});
    for (const Model& model : models) {
      Json depends = options;
      if (!corrupted) depends.erase("corruption");
      if (augmented) depends["augmentation"] = augmentation;
      depends["model"] = model.name();
      add_seeds(runs, name + '.' + model.name(), common.seed, common.seeds, [&](std::uint64_t s) {
        return Run{{}, depends, [&train, &test, &o, model, corrupted, augmented, seed = Seed{s}](const Report& report) {
                     Items seen = items(train, corrupted, o.corruption, seed.fork(3));
                     if (augmented) seen.augment = CropAndFlipPatches(patch, o.crop, o.flip);
                     return learn(model, o, seen, items(test, corrupted, o.corruption, seed.fork(4)), seed, report);
                   }};
      });
    }
  }
  options["augmentation"] = augmentation;
  Json shown = options;
  shown.update({{"experts", o.experts},
                {"baseline_experts", o.baseline_experts},
                {"seed", common.seed},
                {"seeds", common.seeds}});
  write_report(common, "mot_vision", shown, data, models, o.recipe, compute(common, runs));
}

}  // namespace studies::mot_vision

int main(int argc, char** argv) {
  using namespace studies;
  CLI::App app("Train mixtures of whole vision transformers on Fashion-MNIST in three stages, and their baselines");
  Common common{.seeds = 3};
  mot_vision::Options o;
  add_common(app, common);
  const auto positive = CLI::Range(Index(1), Index(1) << 20);
  const auto list = [&](const char* name, std::vector<Index>& value, const char* what) {
    as_list(app.add_option(name, value, what))->check(CLI::Range(Index(1), Index(1024)));
  };
  app.add_option("--train", o.train, "number of training images")->check(positive)->capture_default_str();
  app.add_option("--test", o.test, "number of test images")->check(positive)->capture_default_str();
  list("--experts", o.experts, "numbers of experts of the mixtures of transformers");
  list("--baseline-experts", o.baseline_experts,
       "numbers of experts of the mixtures with one shared attention, and without attention");
  add_recipe(app, o.recipe, o.net);
  app.add_option("--replaced", o.corruption.replaced, "share of the patches that come from another class")
      ->check(command_line::within(0, 1))
      ->capture_default_str();
  app.add_option("--noisy", o.corruption.noisy, "share of the patches that are noise")
      ->check(command_line::within(0, 1))
      ->capture_default_str();
  app.add_option("--noise", o.corruption.deviation, "standard deviation of the noise of --noisy")
      ->check(above_zero(true))
      ->capture_default_str();
  app.add_option("--crop", o.crop, "largest shift of a training image in pixels, in the set with augmentation")
      ->check(CLI::Range(Index(0), fashion::kSide - 1))
      ->capture_default_str();
  app.add_option("--flip", o.flip, "probability that a training image is mirrored, in the set with augmentation")
      ->check(command_line::within(0, 1))
      ->capture_default_str();
  app.add_option("--data", o.data, "folder of the IDX files, .gz or plain")->capture_default_str();
  return study_main("mot_vision", app, argc, argv, [&] {
    if (common.quick) {
      unless_given(app, "--train", o.train, 512);
      unless_given(app, "--test", o.test, 400);
      make_quick(app, o.recipe, o.net);
      unless_given(app, "--seeds", common.seeds, 1);
    }
    mot_vision::study(common, o);
  });
}
