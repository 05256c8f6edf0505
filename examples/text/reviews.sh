#!/usr/bin/env bash
# reviews.sh [FOLDER]: writes sentences of film reviews and their labels into FOLDER (build/text/reviews): train.tsv and
# dev.tsv, in the format of SST-2. Label 1 means that people found the sentence positive, 0 that they found it negative.
# Prints the number of sentences, their words and the share of the larger class.
#
# The sentences come from the package vaderSentiment 0.5 of PyPI (MIT licence): 10,605 sentences from
# rotten.tomatoes.com (Pang and Lee), each with the mean of the ratings of at least 20 people, from -4 to 4. Sentences
# with a mean of 0 and repeated sentences are left out. Every fifth of the other sentences goes to dev.tsv. As in SST-2,
# the text is in lower case, and punctuation marks are separate words.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/cmake/install_packages.sh"
folder=${1:-$root/build/text/reviews} version=0.5
export LC_ALL=C.UTF-8

install_packages python3 python3-venv
mkdir -p "$folder"
package=$folder/vaderSentiment-$version
if [[ ! -e $package ]]; then
  echo "downloading vaderSentiment $version with pip"
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary :all: -d "$folder" \
    "vaderSentiment==$version"
  python3 -m zipfile -e "$package.zip" "$folder"
  rm -rf "$folder/venv" "$package.zip"
fi
tar -xzf "$package/additional_resources/hutto_ICWSM_2014.tar.gz" -C "$folder" -O \
  hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt | tr -d '\r' >"$folder/rated.tsv"  # id, rating, sentence
lines=$(grep -c . "$folder/rated.tsv")
[[ $lines == 10605 ]] || { echo "reviews.sh: expected 10605 sentences in vaderSentiment, got $lines" >&2; exit 1; }

# Writes the label before the sentence, because awk must not change the sentence.
awk -F '\t' '$2 != 0 && !seen[$3]++ { print ($2 > 0) "\t" $3 }' "$folder/rated.tsv" |
  sed -E -e 's/.*/\L&/' -e "s/''|\`\`/\"/g" -e 's/([][().,:;!?"])/ \1 /g; s/ +/ /g; s/\t /\t/; s/ $//' |
  awk -F '\t' -v train="$folder/train.tsv" -v dev="$folder/dev.tsv" '
    BEGIN { print "sentence\tlabel" >train; print "sentence\tlabel" >dev }
    { print $2 "\t" $1 >(NR % 5 == 0 ? dev : train) }'
for part in train dev; do
  awk -F '\t' -v part=$part '
    NR > 1 { words += split($1, of, " "); ++count[$2]; ++n }
    END {
      larger = count[1] > count[0] ? count[1] : count[0]
      printf "%-9s %6d sentences %8d words  larger class %.1f %%\n", part ".tsv", n, words, 100 * larger / n
    }' "$folder/$part.tsv"
done
