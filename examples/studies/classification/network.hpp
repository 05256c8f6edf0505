#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../graph_of_tokens/network.hpp"
#include "../language/learn.hpp"
#include "../support/shuffle.hpp"
#include "learn.hpp"

namespace studies::classification {

using namespace gatefold;

/// A language model in pre-training. weights() gives access to its parameters, so that learn() can move them into the
/// classifier.
template <class ModelT>
struct PreTrained : lm::Network<Cpu, ModelT> {
  using lm::Network<Cpu, ModelT>::Network;
  auto& weights() { return this->trainer.params.model; }
};

/// A language model with a classification head (classifier) in training. Its class for a sentence is the one with the
/// largest logit at the last word.
template <class ModelT>
class Classifier {
 public:
  Classifier(const ModelT& model, Index classes, const Tuning& t, Seed seed)
      : classes_(classes),
        trainer_{ctx_, classifier(model, classes, t.dropout), CrossEntropy{.ignore = -1},
                 optim::AdamW{.lr = t.lr, .decay = 0}, seed} {
    trainer_.not_finite = NotFinite::skips;
  }
  /// The parameters of the language model.
  auto& weights() { return std::get<0>(trainer_.params.layers); }

  void step(const Batch& batch) {
    const Segment<float, Cpu> segment{.length = batch.length, .noise = {trainer_.noise()}};
    trainer_.step(view(batch.words), view(batch.targets), extra_of<Extra>(segment));
  }
  /// Returns the logits [G, C] of the classes at the last word of each sentence.
  std::vector<float> logits(const Batch& batch) {
    y_.resize(std::ssize(batch.words), classes_);
    trainer_.infer(view(batch.words), y_, extra_of<Extra>(Segment<float, Cpu>{.length = batch.length}));
    std::vector<float> found;
    for (const Index row : batch.last) found.insert(found.end(), &y_(row, 0), &y_(row, 0) + classes_);
    return found;
  }
  /// Returns the class of each sentence.
  Ids classify(const Batch& batch) {
    const std::vector<float> z = logits(batch);
    Ids found;
    for (auto first = z.begin(); first != z.end(); first += classes_)
      found.push_back(std::max_element(first, first + classes_) - first);
    return found;
  }

 private:
  using Model = decltype(classifier(std::declval<const ModelT&>(), 2));
  using Trained = Trainer<float, Cpu::Context, Model, CrossEntropy, optim::AdamW>;
  using Extra = typename Trained::Extra;

  static View<const Index, 1, Cpu> view(const Ids& ids) { return {ids.data(), std::ssize(ids)}; }

  Cpu::Context ctx_{1};
  Index classes_;
  Trained trainer_;
  Tensor<float, 2, Cpu> y_;  // [N, C] logits of all words
};

/// Returns the number of test sentences that are classified correctly.
template <class ModelT>
Index correct(Classifier<ModelT>& model, const Data& data, Index batch) {
  Ids places(static_cast<std::size_t>(data.tested.size()));
  std::iota(places.begin(), places.end(), Index(0));
  Index right = 0;
  for (Index first = 0; first < data.tested.size(); first += batch) {
    const auto which = std::span(places).subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(std::min(batch, data.tested.size() - first)));
    const Ids found = model.classify(Batch(data.tested, which, data.vocabulary.end_of_line()));
    for (std::size_t i = 0; i < found.size(); ++i)
      right += found[i] == data.tested.labels[static_cast<std::size_t>(which[i])];
  }
  return right;
}

/// Trains a language model whose gate has the given mixing, replaces its output layer by a classification head, and
/// trains all weights on the sentences.
template <class MixingT>
Json learn(const MixingT& mixing, const Job& job, bool pretrained, Seed seed, const Report& report) {
  const Setting& s = job.setting;
  const Data& data = job.data;
  const Index words = data.vocabulary.size(), sentences = data.learnt.size();
  const auto model = switch_model<language::Traced>(
      lm::sizes(s, words), update::Plain{}, graph_of_tokens::mixture<WithMixing<SoftmaxTopK, MixingT>>(s, mixing));
  using ModelT = std::remove_const_t<decltype(model)>;

  const Index batches = (sentences + job.tuning.batch - 1) / job.tuning.batch, before = pretrained ? s.steps : 0;
  const double all = static_cast<double>(before + job.tuning.epochs * batches);
  Index done = 0;
  const auto count_step = [&] {
    if (done++ % 16 == 0) report(static_cast<double>(done) / all);
  };
  PreTrained<ModelT> language(model, s, words, seed);
  lm::Blocks blocks(data.train, s, seed.fork(1));
  for (Index step = 0; step < before; ++step) {
    blocks.read(step);
    language.step(blocks.x, blocks.next);
    count_step();
  }
  Json result{
      {"perplexity", lm::perplexity(language, data.valid, s)}, {"epoch", Json::array()}, {"correct", Json::array()}};

  Classifier<ModelT> tuned(model, data.classes, job.tuning, seed.fork(2));
  tuned.weights() = std::move(language.weights());
  Ids order(static_cast<std::size_t>(sentences));
  for (Index epoch = 1; epoch <= job.tuning.epochs; ++epoch) {
    shuffle(order, seed.fork(3), epoch);
    for (Index first = 0; first < sentences; first += job.tuning.batch) {
      const auto which = std::span(order).subspan(
          static_cast<std::size_t>(first), static_cast<std::size_t>(std::min(job.tuning.batch, sentences - first)));
      tuned.step(Batch(data.learnt, which, data.vocabulary.end_of_line()));
      count_step();
    }
    result["epoch"].push_back(epoch);
    result["correct"].push_back(correct(tuned, data, 64));
  }
  return result;
}

}  // namespace studies::classification
