#!/usr/bin/env bash
# Builds and runs an example: bash examples/run.sh [PROGRAM] [OPTION of the program]...
#   fashion_mnist  trains a classifier (also without PROGRAM)
#   vision         trains a vision transformer, and evaluates it on images that are clean, corrupted and attacked
#   language_model trains a model of the characters of the Bible, compares it with n-grams, and generates text
#   load_checkpoint FILE
#                  prints the content of a safetensors file, and runs the first Mixtral block in it
#   generate [--model FOLDER] [--prompt-ids 1,2,3] [--train FILE] [--save FOLDER]
#                  generates tokens with a decoder from a folder of Hugging Face's hub, and trains it
#   quantised_error
#                  prints the error of one layer for each form in which weights are stored
#   compose        prints a table of all gates and update rules
#   finetune [--data FOLDER/train.tsv]
#                  pre-trains language models on the Bible, fine-tunes them to classify sentences of film reviews (or of
#                  your file in the format of SST-2), and compares three gates; --quick takes under a minute
#   expert_count, mot, mot_vision, mot_text, momentum, graph_of_tokens, study_vision
#                  repeat a paper's experiments; begin with --quick
# Installs the Debian packages it needs, after naming them; finetune without --data also downloads a package of PyPI.
# Builds in build/release, or with `--backend cuda` (or cuda-bf16) in build/gpu, which needs nvcc and a GPU.
# fashion_mnist, vision, language_model, momentum, graph_of_tokens and study_vision have a CUDA backend.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/install_packages.sh"

program=fashion_mnist folder=examples target="" data=()
case ${1:-} in
  fashion_mnist | compose | language_model | vision | load_checkpoint | generate) program=$1; shift ;;
  expert_count | mot | mot_vision | mot_text | momentum | graph_of_tokens)
    program=$1 folder=examples/studies target=study_
    shift
    ;;
  study_vision) program=vision folder=examples/studies target=study_; shift ;;
  finetune) program=classification folder=examples/studies target=study_; shift ;;
  quantised_error) program=$1 target=example_; shift ;;
  "" | -*) ;;
  *)
    echo "run.sh: no program $1; there are fashion_mnist, language_model, vision, load_checkpoint, generate," \
      "quantised_error, compose, finetune, expert_count, mot, mot_vision, mot_text, momentum, graph_of_tokens and" \
      "study_vision" >&2
    exit 2
    ;;
esac
case $program in
  fashion_mnist | compose | vision | mot_vision) data=(dataset-fashion-mnist) ;;
  mot_text | language_model | momentum | graph_of_tokens | classification) data=(bible-kjv) ;;
esac

# The default run compiles only the default model.
variants=()
if [[ $program == fashion_mnist ]]; then
  variants=(-DFASHION_MNIST_VARIANTS=OFF)
  if [[ " $* " =~ " --"(backend|gate|update|shards)[=\ ] ]]; then variants=(-DFASHION_MNIST_VARIANTS=ON); fi
fi

preset=release
if [[ " $* " =~ " --backend"[=\ ]"cuda" ]]; then
  preset=gpu
  command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
fi
install_packages g++ cmake ninja-build libeigen3-dev zlib1g-dev nlohmann-json3-dev libcli11-dev gnuplot-nox "${data[@]}"
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
(
  cd "$root"
  mkdir -p build
  cmake --preset $preset "${variants[@]}" >build/$preset.log || { cat build/$preset.log; exit 1; }
  cmake --build --preset $preset --target "$target$program"
  if [[ $program =~ ^(language_model|momentum|graph_of_tokens|classification)$ &&
    ! -e build/text/bible_words/test.txt ]]; then
    cmake --build --preset $preset --target split_text
    bash examples/text/prepare.sh build/text build/$preset/examples/split_text bible
  fi
  if [[ $program == classification && ! " $* " =~ " --data"[=\ ] && ! -e build/text/reviews/dev.tsv ]]; then
    bash examples/text/reviews.sh build/text/reviews
  fi
)
exec "$root/build/$preset/$folder/$program" "$@"
