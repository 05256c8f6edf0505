// Repeats the experiments of papers 001 and 002 on images, scaled to Fashion-MNIST. Compares V-MoE with its variants
// with heavy ball, with robust momentum and with the routers of paper 002. Also compares Soft MoE without and with
// momentum. Images are clean, corrupted, or attacked by FGSM and PGD.
//
//   vision [--quick] [--seeds 3] [--steps 2500] [--dim 48] [--patch 7] …
//   vision --costs      time and memory of each relative to V-MoE; Soft MoE with momentum relative to Soft MoE

#include "../support/costs.hpp"
#include "report.hpp"

namespace studies::vision {

/// Returns default options with which 24 runs take less than two hours on two cores. An image has 17 tokens of 48
/// values. There are 8 layers as in V-MoE S/32, and every second layer has a mixture. A run trains on 160,000 images.
inline images::Options defaults() {
  images::Options o;
  o.patch = 7;
  o.depth = 8;
  o.dim = 48;
  o.hidden = 96;
  o.batch = 64;
  o.steps = 2500;
  o.warmup = 150;
  o.threads = 1;
  o.valid_images = 0;  // no step is chosen by validation
  o.test_images = 2000;
  return o;
}

inline images::Options of_case(images::Options o, const Case& c) {
  o.router = c.router;
  o.update = c.update;
  return o;
}

/// Prints time and memory of every case, measured on one batch of training images.
inline void costs(const images::Options& o) {
  const images::Images of = images::read_images(o);
  const auto x = of.train.rows(0, o.batch);
  const auto labels = of.train.labels_of(0, o.batch);
  std::vector<Costed<images::Model>> models;
  for (const Case& c : cases())
    models.push_back({c.name, c.label, c.baseline, [&] { return images::make_model(of_case(o, c)); },
                      [&](images::Model& model) { model.step(x, labels); },
                      [&](images::Model& model) { model.classify(x); }});
  print_costs(models);
}

inline void study(const Common& common, const images::Options& o) {
  const images::Images of = images::read_images(o);
  std::vector<Case> all = cases();
  all.push_back({baseline_of_errors(), "linear", baseline_of_errors(), "vmoe", "plain"});
  std::vector<Run> runs;
  for (const Case& c : all) {
    add_seeds(runs, c.name, common.seed, common.seeds, [&](std::uint64_t seed) {
      return Run{{},
                 depends_on(c, of_case(o, c)),
                 [&of, c, o, seed](const Report& tell) { return learn(c, of_case(o, c), of, seed, tell); },
                 c.name == baseline_of_errors() ? 0.05 : 1};
    });
  }
  const std::vector<Json> found = compute(common, runs);
  Done done;
  for (std::size_t i = 0; i < found.size(); ++i)
    done[all[i / static_cast<std::size_t>(common.seeds)].name].push_back(found[i]);
  Json options = depends_on(all[0], o);
  for (const char* of_one : {"case", "router", "update", "seed"}) options.erase(of_one);
  options.update({{"seed", common.seed}, {"seeds", common.seeds}});
  report(common, options, done);
}

}  // namespace studies::vision

int main(int argc, char** argv) {
  using namespace studies;
  CLI::App app("Compare vision transformers with mixtures of experts on clean, corrupted and attacked Fashion-MNIST");
  Common common{.seeds = 3};
  bool only_costs = false;
  images::Options o = vision::defaults();
  add_common(app, common);
  const auto positive = CLI::Range(Index(1), Index(1) << 40);
  const auto add = [&](const char* name, Index& value, const char* what) {
    app.add_option(name, value, what)->check(positive)->capture_default_str();
  };
  add("--steps", o.steps, "steps of each run");
  add("--batch", o.batch, "images per step");
  add("--dim", o.dim, "width of a token");
  add("--hidden", o.hidden, "hidden width of an expert");
  add("--heads", o.heads, "heads of attention, a divisor of dim");
  add("--depth", o.depth, "even number of layers");
  add("--experts", o.experts, "experts per mixture");
  add("--k", o.k, "experts per token (Soft MoE: slots per expert)");
  add("--train-images", o.train_images, "number of training images (default: all)");
  add("--test-images", o.test_images, "number of test images that are corrupted and attacked");
  add("--attack-steps", o.attack_steps, "steps of the attack PGD, each of size epsilon / 4");
  app.add_option("--patch", o.patch, "side of a patch, a divisor of 28")
      ->check(CLI::IsMember({1, 2, 4, 7, 14, 28}))
      ->capture_default_str();
  app.add_option("--lr", o.lr, "learning rate (AdamW)")->check(above_zero())->capture_default_str();
  app.add_option("--mu", o.mu, "momentum of heavy ball")->check(command_line::within(-1, 1))->capture_default_str();
  app.add_option("--epsilon", o.epsilon, "largest change of a pixel by an attack; pixels are between 0 and 1")
      ->check(above_zero())
      ->capture_default_str();
  add_backend(app, o.backend);
  app.add_option("--data", o.data, "folder of the IDX files, .gz or plain")->capture_default_str();
  app.add_flag("--costs", only_costs, "only measure and print time and memory of each case");
  return study_main("vision", app, argc, argv, [&] {
    if (common.quick) {
      for (const auto& [name, value, small] : {std::tuple{"--steps", &o.steps, 120},
                                               {"--dim", &o.dim, 16},
                                               {"--hidden", &o.hidden, 16},
                                               {"--train-images", &o.train_images, 2000},
                                               {"--test-images", &o.test_images, 100},
                                               {"--patch", &o.patch, 14},
                                               {"--depth", &o.depth, 4},
                                               {"--attack-steps", &o.attack_steps, 4}})
        unless_given(app, name, *value, small);
      unless_given(app, "--seeds", common.seeds, 1);
    }
    o.warmup = std::min(o.warmup, o.steps / 4);
    gatefold::expect(o.dim % o.heads == 0, "options", "heads", gatefold::Joined{"a divisor of dim = ", o.dim}, o.heads);
    gatefold::expect(o.depth % 2 == 0, "options", "depth", "an even number", o.depth);
    gatefold::expect(o.k <= o.experts, "options", "k", gatefold::Joined{"at most experts = ", o.experts}, o.k);
    expect_backend(o.backend, only_costs);
    if (only_costs) return vision::costs(o);
    vision::study(common, o);
  });
}
