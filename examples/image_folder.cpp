// The section "Images" of docs/how-to/your_data.md: train a mixture on a folder with one subfolder for each class.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gatefold/data/images.hpp>
#include <gatefold/gatefold.hpp>
#include <string>
#include <vector>
using namespace gatefold;

/// Writes 40 images of 12 x 12 pixels in two classes, in place of your folder: lines that are horizontal or vertical.
void draw(const std::filesystem::path& folder) {
  for (int n = 0; n < 40; ++n) {
    const bool across = n % 2 == 0;
    const auto of_class = folder / (across ? "horizontal" : "vertical");
    std::filesystem::create_directories(of_class);
    std::ofstream file(of_class / (std::to_string(n) + ".ppm"), std::ios::binary);
    file << "P6 12 12 255\n";
    for (int i = 0; i < 12 * 12; ++i) {
      const int line = across ? i / 12 : i % 12, value = line == n % 12 ? 220 : (n * 37 + i * 53) % 90;
      for (int channel = 0; channel < 3; ++channel) file.put(static_cast<char>(value));
    }
  }
}

int main() {
  const auto folder = std::filesystem::temp_directory_path() / "gatefold_image_folder";
  draw(folder);

  // [snippet read]
  const data::LabelledImages images = data::read_image_folder(folder);     // <class>/<image>.ppm or .pgm
  const std::vector<float> x(images.pixels.begin(), images.pixels.end());  // [N, rows * columns * channels]
  const auto classes = static_cast<Index>(images.classes.size());
  // [/snippet]
  // [snippet model]
  Cpu::Context ctx;
  // Patches of 4 x 4 pixels. A pixel value v becomes (v − 128) / 64.
  const ImagePatches patches{images.rows, images.columns, images.channels, 4, 128, 64};
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, Mlp<Gelu>{32, 64}};
  const Chain model{patches, PerToken{patches.patches(), Linear{patches.patch_dim(), 32}},
                    PerToken{patches.patches(), Residual{update::Plain{}, PreNorm{LayerNorm{}, mixture}}},
                    TokenMean{patches.patches(), 32}, Linear{32, classes}};
  Trainer trainer{ctx, model, CrossEntropy{}, optim::AdamW{.lr = 3e-3}, Seed{1}};
  const View<const float, 2, Cpu> items(x.data(), images.count(), patches.in_dim());
  for (int step = 0; step <= 60; ++step) {
    const double loss = trainer.step(items, images.labels);
    if (step % 20 == 0) std::printf("step %d  loss %.3f\n", step, loss);
  }
  // [/snippet]
  std::filesystem::remove_all(folder);
}
