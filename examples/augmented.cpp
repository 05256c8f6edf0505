// The program of docs/how-to/your_data.md#change-images-at-random: trains on images that are cropped, mirrored and
// mixed at random.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <gatefold/data/augment.hpp>
#include <gatefold/gatefold.hpp>
#include <vector>
using namespace gatefold;

namespace {

constexpr Index kSide = 16, kClasses = 4, kBatch = 64;

/// Writes images of a bright square whose side tells the class: 2, 4, 6 or 8 pixels.
void draw(std::uint64_t step, Tensor<float, 2, Cpu>& x, std::vector<Index>& labels) {
  std::fill(x.data(), x.data() + x.size(), 0.0f);
  for (Index n = 0; n < kBatch; ++n) {
    const auto number = [&](Index i) { return uniform<double>(Seed{5}, step, static_cast<std::uint64_t>(3 * n + i)); };
    const auto label = static_cast<Index>(number(0) * kClasses);
    const Index side = 2 * (label + 1), places = kSide - side + 1;
    const auto top = static_cast<Index>(number(1) * static_cast<double>(places)),
               left = static_cast<Index>(number(2) * static_cast<double>(places));
    for (Index i = top; i < top + side; ++i)
      for (Index j = left; j < left + side; ++j) x(n, i * kSide + j) = 1;
    labels[static_cast<std::size_t>(n)] = label;
  }
}

}  // namespace

int main() {
  Cpu::Context ctx(2);
  Tensor<float, 2, Cpu> x(kBatch, kSide * kSide), cropped(kBatch, kSide * kSide), mixed(kBatch, kSide * kSide),
      target(kBatch, kClasses), mixed_target(kBatch, kClasses);
  std::vector<Index> labels(kBatch);
  const Chain model{Linear{kSide * kSide, 64}, Gelu{}, Linear{64, kClasses}};
  // [snippet augment]
  const data::CropAndFlip augment{.rows = kSide, .columns = kSide, .channels = 1, .pad = 2, .flip = 0.5};
  const data::Mixup mixup{.alpha = 0.2};
  Trainer trainer{ctx, model, SoftCrossEntropy{}, optim::AdamW{.lr = 3e-3}, Seed{1}};
  const auto step = [&] {
    const Random at{Seed{2}, static_cast<std::uint64_t>(trainer.state.step)};
    augment(ctx, x, at, cropped);                    // [N, 16 · 16]
    mixup(ctx, cropped, at, mixed);                  // [N, 16 · 16]
    data::one_hot<float>(ctx, labels, target, 0.1);  // [N, 4], with label smoothing 0.1
    mixup(ctx, target, at, mixed_target);            // the same pairs of items
    return trainer.step(mixed, mixed_target);
  };
  // [/snippet]
  for (std::uint64_t number = 0; number < 600; ++number) {
    draw(number, x, labels);
    const double loss = step();
    if (number % 100 == 0) std::printf("step %3d  loss %.4f\n", static_cast<int>(number), loss);
  }
  draw(1000, x, labels);
  Tensor<float, 2, Cpu> y(kBatch, kClasses);
  trainer.infer(x, y);
  Index right = 0;
  for (Index n = 0; n < kBatch; ++n)
    right += std::max_element(&y(n, 0), &y(n, 0) + kClasses) - &y(n, 0) == labels[static_cast<std::size_t>(n)];
  std::printf("%lld of %lld new images are classified correctly\n", static_cast<long long>(right),
              static_cast<long long>(kBatch));
  return right >= 58 ? 0 : 1;
}
