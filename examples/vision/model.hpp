#pragma once

#include <filesystem>
#include <gatefold/data/pgd.hpp>
#include <gatefold/layer/summary.hpp>
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
using Metadata = std::map<std::string, std::string>;  // gatefold::io's

/// A classifier of images in training, whatever it is made of and wherever it computes: so that all else is compiled
/// once.
class Model {
 public:
  virtual ~Model() = default;

  /// One step; returns the loss before it.
  virtual double step(ReadPixels x, Labels labels) = 0;
  virtual Index steps() const = 0;
  virtual Index parameters() const = 0;
  virtual gatefold::Summary summary() const = 0;
  /// Logits [N · 10], as in evaluation: without noise, with room for every pick.
  virtual std::vector<float> classify(ReadPixels x) = 0;
  /// What its mixtures do with images, whose tokens are the items.
  virtual std::vector<training::Routing> routing(ReadPixels x) = 0;
  /// Images a little beside x that it classifies badly.
  virtual Pixels attack(const gatefold::Pgd& attack, gatefold::Noise start, ReadPixels x, Labels labels) = 0;

  virtual void save(const std::filesystem::path& path, const Metadata& metadata) const = 0;
  virtual void load(const std::filesystem::path& path) = 0;
};

/// With the router and the rule of the options, on their backend; the router `linear` is softmax regression on the
/// pixels, which corruption errors are relative to.
std::unique_ptr<Model> make_model(const Options& options);
/// The backend being a GPU: compiled by nvcc.
std::unique_ptr<Model> make_model_on_cuda(const Options& options);

}  // namespace images
