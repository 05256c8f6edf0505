# Sourced by the tests of studies. Writes made-up data for $program into $dir, so that tests need no package of data.
# Sets `data`, the options that name the data.
data=()
case $(basename "$program") in
  mot_vision | vision)
    source "$(dirname "$0")/../fashion_mnist/make_half.sh"
    make_half "$dir/train" 120
    make_half "$dir/t10k" 60
    data=(--data "$dir")
    ;;
  mot_text)
    # Writes as many verses as the Bible has, in books with different words.
    awk 'BEGIN {
      srand(1)
      for (i = 0; i < 31102; ++i) {
        b = int(i / 1500)
        line = sprintf("B%c%d:%d", 97 + b, i / 30 + 1, i % 30 + 1)
        for (w = 0; w < 8; ++w) line = line sprintf(" w%c%c", 97 + (b + int(rand() * 6)) % 26, 97 + int(rand() * 4))
        print line
      }
    }' >"$dir/verses"
    mkdir "$dir/bin"
    printf '#!/bin/sh\ncat "%s"\n' "$dir/verses" >"$dir/bin/bible"
    chmod +x "$dir/bin/bible"
    PATH=$dir/bin:$PATH
    ;;
  momentum | graph_of_tokens | classification)
    # Writes lines in which some words follow each other more often than by chance.
    for part in train:300 valid:60 test:60; do
      awk -v lines="${part#*:}" -v seed="${#part}" 'BEGIN {
        srand(seed)
        for (i = 0; i < lines; ++i) {
          word = int(rand() * 12)
          line = "w" word
          for (w = 0; w < 7; ++w) line = line " w" (word = (word + 1 + int(rand() * 3)) % 12)
          print line
        }
      }' >"$dir/${part%:*}.txt"
    done
    data=(--data "$dir")
    if [[ $program == */classification ]]; then
      # Writes sentences of the same words. The label is 1 if the first word is w0 to w5.
      for part in train:240 dev:60; do
        awk -v lines="${part#*:}" -v seed="${#part}" 'BEGIN {
          srand(seed)
          print "sentence\tlabel"
          for (i = 0; i < lines; ++i) {
            line = "w" (first = int(rand() * 12))
            for (w = 1 + int(rand() * 4); w > 0; --w) line = line " w" int(rand() * 12)
            print line "\t" (first < 6)
          }
        }' >"$dir/${part%:*}.tsv"
      done
      data=(--text "$dir" --data "$dir/train.tsv")
    fi
    ;;
esac
