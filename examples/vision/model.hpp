#pragma once

#include <filesystem>
#include <gatefold/layer/summary.hpp>
#include <gatefold/papers/pgd.hpp>
#include <gatefold/policy/noise.hpp>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../fashion_mnist/sizes.hpp"
#include "../training/routing.hpp"
#include "options.hpp"

namespace images {

using fashion::kClasses, fashion::kPixels, fashion::kSide;

using Pixels = std::vector<float>;  // [N · 784], between 0 and 1
using ReadPixels = std::span<const float>;
using Labels = std::span<const Index>;                // [N]
using Probabilities = std::span<const float>;         // [N · 10]
using Metadata = std::map<std::string, std::string>;  // as in gatefold::io

/// Interface of an image classifier in training. It hides layers and backend, so that the rest of the program is
/// compiled once.
class Model {
 public:
  virtual ~Model() = default;

  /// Runs one training step. Returns the loss before the step.
  virtual double step(ReadPixels x, Labels labels) = 0;
  /// Runs one training step on images with class probabilities [N · 10] instead of labels.
  virtual double step(ReadPixels x, Probabilities targets) = 0;
  virtual Index steps() const = 0;
  virtual Index parameters() const = 0;
  virtual gatefold::Summary summary() const = 0;
  /// Returns the logits [N · 10] of N images, computed without noise, and with the experts' capacity for evaluation.
  virtual std::vector<float> classify(ReadPixels x) = 0;
  /// Returns the routing of each mixture on some images. The items are the tokens of the images.
  virtual std::vector<training::Routing> routing(ReadPixels x) = 0;
  /// Returns the images x after an attack: each pixel changes a little, so that the loss of the model grows.
  virtual Pixels attack(const gatefold::Pgd& attack, gatefold::Noise start, ReadPixels x, Labels labels) = 0;

  virtual void save(const std::filesystem::path& path, const Metadata& metadata) const = 0;
  virtual void load(const std::filesystem::path& path) = 0;
};

/// Makes a model with the router, update rule and backend of the options. The router `linear` is softmax regression on
/// the pixels, the baseline of corruption errors.
std::unique_ptr<Model> make_model(const Options& options);
/// Makes a model like make_model(), on a GPU. nvcc compiles this function.
std::unique_ptr<Model> make_model_on_cuda(const Options& options);

}  // namespace images
