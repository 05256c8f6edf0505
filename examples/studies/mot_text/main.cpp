// Repeats the experiments of paper 000 on text, with verses of the King James Bible. There are two tasks: to predict
// which of ten books a verse is from, and to predict its position in the whole Bible. Compares mixtures of whole
// transformers in three stages, one transformer without a gate, and linear maps, which ignore the order of words.
//
//   mot_text [--quick] [--seeds 3] [--train 6000] [--epochs 18] [--t1 3] [--t2 12] [--experts 2,4,8] …

#include <cmath>
#include <cstdint>

#include "../whole_report.hpp"
#include "learn.hpp"
#include "task.hpp"

namespace studies::mot_text {

/// The times T₁, T₂ and T (in epochs) are in about the same proportion as the paper's T₁ = 50, T₂ = 200, T = 300 for
/// Yahoo Answers.
struct Options {
  Index train = 6000, test = 2000, vocabulary = 2000;
  std::vector<Index> experts{2, 4, 8};
  Recipe recipe{.epochs = 18, .first = 3, .second = 12};
  double linear_lr = 1e-2;  // large, because weights of a linear map start small
  WholeTransformer net{.token_dim = 96, .model_dim = 48, .hidden_dim = 192, .heads = 4, .length = 24, .blocks = 2};
};

/// A task with its verses in the input format of each kind of model.
struct Data {
  Seen seen;
  Sets words, means, counts;

  Data(const Seen& of_task, const Task& task, const Options& o) : seen(of_task) {
    seen.classes = task.classes;
    const auto known = words_of_training(task.train, o.net.length);
    const WordVectors vectors(known, o.net.length, o.net.token_dim);
    const WordCounts counter(known, o.vocabulary, o.net.length);
    const auto both = [&](Index columns, const auto& fill) {
      return Sets{items(task.train, columns, fill), items(task.test, columns, fill)};
    };
    words = both(o.net.in_dim(), [&](const Verse& v, float* row) { vectors.tokens(v, row); });
    means = both(o.net.token_dim, [&](const Verse& v, float* row) { vectors.mean(v, row); });
    counts = both(counter.size(), [&](const Verse& v, float* row) { counter.count(v, row); });
  }
  const Sets& of(const Model& model) const {
    return model.kind == Model::Kind::linear ? means : model.kind == Model::Kind::bag_of_words ? counts : words;
  }
};

/// Returns the root mean squared error of a constant prediction: the mean position of the training verses.
double error_of_mean(const Sets& sets) {
  double sum = 0, squares = 0;
  for (Index n = 0; n < sets.train.size(); ++n) sum += double(sets.train.value(n, 0));
  const double center = sum / static_cast<double>(sets.train.size());
  for (Index n = 0; n < sets.test.size(); ++n) squares += std::pow(double(sets.test.value(n, 0)) - center, 2);
  return std::sqrt(squares / static_cast<double>(sets.test.size()));
}

void study(const Common& common, const Options& o) {
  validate(o.recipe, o.net);
  const std::vector<Verse> verses = read_verses();
  const Data books({"book", "Which of ten books?", "accuracy", "test accuracy"}, which_book(verses, o.train, o.test),
                   o),
      places({"place", "Where in the whole Bible?", "rmse", "test RMSE"}, which_place(verses, o.train, o.test), o);

  std::vector<Model> models;
  for (const Index m : o.experts) models.push_back({Model::Kind::mot, m});
  for (const auto kind : {Model::Kind::multi_head, Model::Kind::linear, Model::Kind::bag_of_words})
    models.push_back({kind, 1});
  Recipe linear = o.recipe;
  linear.lr = o.linear_lr;
  const Json options{{"train", o.train}, {"test", o.test}, {"network", json(o.net)}, {"vocabulary", o.vocabulary}};
  std::vector<Run> runs;
  for (const Data* data : {&books, &places})
    for (const Model& model : models) {
      const bool is_linear = model.kind >= Model::Kind::linear;
      const Recipe& recipe = is_linear ? linear : o.recipe;
      Json depends = options;
      depends.update({{"recipe", recipe.json()}, {"model", model.name()}});
      add_seeds(runs, data->seen.name + '.' + model.name(), common.seed, common.seeds, [&](std::uint64_t seed) {
        const auto learn = data == &books ? learn_book : learn_place;
        return Run{{},
                   depends,
                   [=, &recipe, &o](const Report& report) {
                     return learn(model, o.net, data->of(model), recipe, Seed{seed}, report);
                   },
                   is_linear ? 0.05 : 1};
      });
    }
  Json shown = options;
  shown.update({{"recipe", o.recipe.json()},
                {"linear_lr", o.linear_lr},
                {"books", books.seen.classes},
                {"experts", o.experts},
                {"seed", common.seed},
                {"seeds", common.seeds}});
  write_report(common, "mot_text", shown, {books.seen, places.seen}, models, o.recipe, compute(common, runs),
               {{"place.mean_of_training.rmse", {error_of_mean(places.words)}}});
}

}  // namespace studies::mot_text

int main(int argc, char** argv) {
  using namespace studies;
  CLI::App app(
      "Train mixtures of whole transformers on verses of the King James Bible in three stages, and their baselines");
  Common common{.seeds = 3};
  mot_text::Options o;
  add_common(app, common);
  const auto positive = CLI::Range(Index(1), Index(1) << 20);
  app.add_option("--train", o.train, "training verses of each task, a multiple of 10")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--test", o.test, "test verses of each task, a multiple of 10")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--length", o.net.length, "largest number of words of a verse that models read")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--word-dim", o.net.token_dim, "width of the vector of a word")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--vocabulary", o.vocabulary, "number of words that the baseline bag_of_words counts")
      ->check(positive)
      ->capture_default_str();
  as_list(app.add_option("--experts", o.experts, "numbers of experts of the mixtures of transformers"))
      ->check(CLI::Range(Index(1), Index(1024)));
  add_recipe(app, o.recipe, o.net);
  app.add_option("--linear-lr", o.linear_lr, "learning rate of the baselines linear and bag_of_words (AdamW)")
      ->check(above_zero())
      ->capture_default_str();
  return study_main("mot_text", app, argc, argv, [&] {
    if (common.quick) {
      unless_given(app, "--train", o.train, 1000);
      unless_given(app, "--test", o.test, 500);
      make_quick(app, o.recipe, o.net);
      unless_given(app, "--seeds", common.seeds, 1);
    }
    mot_text::study(common, o);
  });
}
