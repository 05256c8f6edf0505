// Paper 002, Graph of Tokens, table 3: trains language models on a text, replaces their output layer by a
// classification head, and trains all weights on sentences with labels. Compares a router that does not share
// probabilities with routers that share them among similar words, or among words that attend to each other. Each router
// is also compared without pre-training.
//
//   classification [--quick] [--seeds 5] [--gate plain,similarity,attention] [--data FOLDER/train.tsv] …
//
// Exit code 0: done; 2: an option or file does not fit (one line on stderr says which); 1: any other error.

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "../support/study.hpp"
#include "learn.hpp"

namespace studies::classification {

struct Options {
  Common common{.seeds = 5};
  Setting setting{.steps = 800};
  Tuning tuning{};
  std::filesystem::path text{}, data{}, test{};
  Index threshold = 2;  // words that only the sentences have are kept if they occur at least this often
  std::vector<std::string> gates{"plain", "similarity", "attention"}, starts{"pretrained", "random"};
};

/// A gate with one of the two starts of the fine-tuning.
struct Case {
  std::string gate, start;

  std::string name() const { return gate + '.' + start; }
  Json learn(const Job& job, Seed seed, const Report& report) const {
    const auto of_gate = gate == "plain" ? learn_plain : gate == "similarity" ? learn_similarity : learn_attention;
    return of_gate(job, start == "pretrained", seed, report);
  }
};

/// Returns the folder of the texts that run.sh makes, relative to the program in build/<preset>/examples/studies/.
std::filesystem::path texts() {
  std::error_code error;
  return std::filesystem::canonical("/proc/self/exe", error).parent_path() / "../../../text";
}

void add_options(CLI::App& app, Options& o) {
  add_common(app, o.common);
  add_sizes(app, o.setting);
  const auto path = [&app](const char* option, std::filesystem::path& to, const char* what) {
    app.add_option_function<std::string>(
        option, [&to](const std::string& given) { to = given; }, what);
  };
  path("--text", o.text,
       "folder with train.txt and valid.txt for pre-training, words separated by spaces\n(default: "
       "build/text/bible_words, which examples/text/prepare.sh makes)");
  path("--data", o.data,
       "training sentences, in the format of SST-2: a line \"sentence<tab>label\", then the sentences\n(default: "
       "build/text/reviews/train.tsv, which examples/text/reviews.sh makes)");
  path("--test", o.test, "test sentences in the same format (default: dev.tsv in the folder of --data)");
  as_list(app.add_option("--gate", o.gates, "gates to compare; the first one is the baseline"))
      ->check(CLI::IsMember({"plain", "similarity", "attention"}));
  as_list(app.add_option("--start", o.starts, "weights before the fine-tuning: pretrained, random"))
      ->check(CLI::IsMember({"pretrained", "random"}));
  const auto positive = CLI::Range(Index(1), Index(1) << 20);
  app.add_option("--epochs", o.tuning.epochs, "passes over the training sentences")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--tuning-batch", o.tuning.batch, "sentences per step of the fine-tuning")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--tuning-lr", o.tuning.lr, "learning rate of the fine-tuning (Adam, constant)")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--dropout", o.tuning.dropout, "dropout rate before the last linear map")
      ->check(command_line::within(0, 0.9))
      ->capture_default_str();
  app.add_option("--sentence-threshold", o.threshold,
                 "words that occur less often in the training sentences are replaced by the unknown word, unless the "
                 "text has them")
      ->check(positive)
      ->capture_default_str();
}

/// Returns the accuracy in % of each seed after an epoch.
std::vector<double> accuracy(const std::vector<Json>& of_seeds, Index epoch, Index tested) {
  return numbers(of_seeds, [&](const Json& run) {
    return 100 * run["correct"][static_cast<std::size_t>(epoch - 1)].get<double>() / static_cast<double>(tested);
  });
}

void study(Options& o) {
  o.setting.validate();
  if (o.text.empty()) o.text = texts() / "bible_words";
  if (o.data.empty()) o.data = texts() / "reviews" / "train.tsv";
  if (o.test.empty()) o.test = o.data.parent_path() / "dev.tsv";
  const Job job{o.setting, o.tuning,
                read_data(o.text, o.data, o.test, o.setting.length, o.setting.threshold, o.threshold)};
  const Index tested = job.data.tested.size();
  const double share = 100.0 / static_cast<double>(tested);
  const Ids counts = job.data.count();
  const double largest = share * static_cast<double>(*std::max_element(counts.begin(), counts.end()));
  std::printf("%lld training sentences, %lld test sentences, %lld classes, the largest has %.1f %% of the tests\n",
              static_cast<long long>(job.data.learnt.size()), static_cast<long long>(tested),
              static_cast<long long>(job.data.classes), largest);

  std::vector<Case> cases;
  for (const std::string& from : o.starts)
    for (const std::string& gate : o.gates) cases.push_back({gate, from});
  const Json options{{"setting", o.setting.json()}, {"tuning", o.tuning.json()}, {"data", job.data.json()}};
  std::vector<Run> runs;
  for (const Case& c : cases) {
    Json depends{{"case", c.name()}};
    depends.update(options);
    add_seeds(runs, c.name(), o.common.seed, o.common.seeds, [&](std::uint64_t seed) {
      return Run{{},
                 depends,
                 [&job, c, seed](const Report& report) { return c.learn(job, Seed{seed}, report); },
                 c.start == "pretrained" ? 2.0 : 1.0};
    });
  }
  const std::vector<Json> found = compute(o.common, runs);

  std::vector<Result> results;
  Json curves = Json::object();
  Lines lines{"Classification of sentences", "epoch of the fine-tuning", "test accuracy in %"};
  auto next = found.begin();
  for (const Case& c : cases) {
    const std::vector<Json> of(next, next + o.common.seeds);
    next += o.common.seeds;
    results.push_back({c.name() + ".accuracy", accuracy(of, o.tuning.epochs, tested)});
    if (c.start == "pretrained")
      results.push_back(
          {c.name() + ".perplexity", numbers(of, [](const Json& run) { return number(run["perplexity"]); })});
    Curve curve{c.gate + ", " + c.start, {}, {}};
    for (Index epoch = 1; epoch <= o.tuning.epochs; ++epoch)
      curve.add(static_cast<double>(epoch), accuracy(of, epoch, tested));
    lines.curves.push_back(curve);
    curves[c.name()] = of;
  }
  results.push_back({"largest_class.accuracy", {largest}});
  Json shown = options;
  shown.update({{"seed", o.common.seed}, {"seeds", o.common.seeds}});
  write_results(o.common, "classification", shown, results, curves);
  draw(o.common.out / "accuracy.svg", {lines}, 1);
  print_results(results);
  finish(o.common, shown, results);
}

}  // namespace studies::classification

int main(int argc, char** argv) {
  using namespace studies;
  CLI::App app("Pre-train language models and fine-tune them to classify sentences (paper 002, table 3)");
  classification::Options o;
  classification::add_options(app, o);
  return study_main("classification", app, argc, argv, [&] {
    if (o.common.quick) {
      lm::make_quick(app, o.setting);
      unless_given(app, "--epochs", o.tuning.epochs, 1);
      unless_given(app, "--seeds", o.common.seeds, 1);
    }
    classification::study(o);
  });
}
