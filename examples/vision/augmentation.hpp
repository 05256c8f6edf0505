#pragma once

#include <cstddef>
#include <cstdint>
#include <gatefold/data/augment.hpp>
#include <gatefold/gatefold.hpp>
#include <iterator>
#include <vector>

#include "model.hpp"

namespace images {

/// Changes the images of training steps at random, as the options say. The changes depend only on the seed, the step
/// and the place of an image in its batch. They are computed on the CPU, so that all backends get the same images.
class Augmentation {
 public:
  explicit Augmentation(const Options& o)
      : crop_{kSide, kSide, 1, o.crop, o.flip ? 0.5 : 0},
        mixup_{o.mixup},
        label_smoothing_(o.label_smoothing),
        seed_(gatefold::Seed{o.seed}.fork(8)) {}

  /// Runs one training step of the model on changed images. Returns the loss before the step.
  double step(Model& model, ReadPixels x, Labels labels) {
    using gatefold::Cpu, gatefold::View;
    const gatefold::Random at{seed_, static_cast<std::uint64_t>(model.steps())};
    const Index count = std::ssize(labels);
    if (crop_.pad > 0 || crop_.flip > 0) {
      cropped_.resize(count, kPixels);
      crop_(ctx_, View<const float, 2, Cpu>(x.data(), count, kPixels), at, cropped_);
      x = {cropped_.data(), x.size()};
    }
    if (mixup_.alpha == 0) return model.step(x, labels);
    for (auto* t : {&target_, &mixed_target_}) t->resize(count, kClasses);
    mixed_.resize(count, kPixels);
    gatefold::data::one_hot<float>(ctx_, labels, target_, label_smoothing_);
    mixup_(ctx_, View<const float, 2, Cpu>(x.data(), count, kPixels), at, mixed_);
    mixup_(ctx_, target_, at, mixed_target_);
    return model.step(ReadPixels(mixed_.data(), x.size()),
                      Probabilities(mixed_target_.data(), static_cast<std::size_t>(mixed_target_.size())));
  }

 private:
  gatefold::Cpu::Context ctx_{1};
  gatefold::data::CropAndFlip crop_;
  gatefold::data::Mixup mixup_;
  double label_smoothing_;
  gatefold::Seed seed_;
  gatefold::Tensor<float, 2, gatefold::Cpu> cropped_, mixed_, target_, mixed_target_;  // [N, 784], [N, 10]
};

}  // namespace images
