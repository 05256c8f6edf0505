#pragma once

#include <filesystem>
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
#include <memory>
#include <vector>

#include "../training/routing.hpp"
#include "options.hpp"

namespace images {

using gatefold::Cpu;
using Pixels = gatefold::Tensor<float, 2, Cpu>;  // [N, 784], between 0 and 1
using ReadPixels = gatefold::View<const float, 2, Cpu>;
using Labels = gatefold::View<const Index, 1, Cpu>;
using Metadata = gatefold::io::Metadata;

/// A classifier of images in training, whatever it is made of: so that all else is compiled once.
class Model {
 public:
  virtual ~Model() = default;

  /// One step; returns the loss before it.
  virtual double step(ReadPixels x, Labels labels) = 0;
  virtual Index steps() const = 0;
  virtual Index parameters() const = 0;
  /// Logits [N, 10], as in evaluation: without noise, with room for every pick.
  virtual void classify(ReadPixels x, Pixels& logits) = 0;
  /// What its mixtures do with images, whose tokens are the items.
  virtual std::vector<training::Routing> routing(ReadPixels x) = 0;
  /// Write images a little beside x that it classifies badly.
  virtual void attack(const gatefold::Pgd& attack, gatefold::Noise start, ReadPixels x, Labels labels, Pixels& y) = 0;

  virtual void save(const std::filesystem::path& path, const Metadata& metadata) const = 0;
  virtual void load(const std::filesystem::path& path) = 0;
};

/// With the router and the rule of the options.
std::unique_ptr<Model> make_model(const Options& options);
/// Softmax regression on the pixels: what corruption errors are relative to.
std::unique_ptr<Model> make_linear(const Options& options);

// One definition in each file of networks, so that both cores compile.
std::unique_ptr<Model> make_vmoe(const Options& options);
std::unique_ptr<Model> make_robust(const Options& options);
std::unique_ptr<Model> make_similar(const Options& options);
std::unique_ptr<Model> make_attending(const Options& options);
std::unique_ptr<Model> make_soft(const Options& options);

}  // namespace images
