#!/usr/bin/env bash
# prepare.sh [FOLDER [SPLIT_TEXT [TEXT...]]]: writes texts for language models, from Debian packages, into FOLDER
# (build/text):
#   bible, bible_words    the King James Bible, one verse per line: 0.8 million words, 4.1 million characters
#   gcide, gcide_words    the Collaborative International Dictionary of English, one paragraph per line: 4.8 million
#                         words, 28.8 million characters
# Each has train.txt, valid.txt and test.txt. In *_words, punctuation marks are separate words, as in WikiText.
# SPLIT_TEXT is the program split_text. If it is not given, it is built in build/release. TEXT is bible or gcide. If no
# TEXT is given, both texts are made. Prints sizes and counts.
#
# Why this dictionary: it has several million words of English, it is not a manual of a program, and it is free to copy
# (Webster's of 1913 with its quotations). The largest running text found, `anarchism`, has 1.9 million. The
# disadvantage: entries are short and in alphabetical order, so that long contexts help less than in the Bible.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/cmake/install_packages.sh"
folder=${1:-$root/build/text} split=${2:-} texts=" ${*:3} "
if [[ $texts == "  " ]]; then texts=" bible gcide "; fi
for text in "${@:3}"; do
  [[ $text == bible || $text == gcide ]] ||
    { echo "prepare.sh: expected the text bible or gcide, got $text" >&2; exit 2; }
done
# The training, validation and test parts alternate in stretches of about 1,500 verses or 2,500 paragraphs. The end of
# the text is not a fair test, because gcide is sorted by word and the Bible consists of different books.
bible_stretches=20 gcide_stretches=100

if [[ $texts == *" bible "* ]]; then install_packages bible-kjv; fi
if [[ -z $split ]]; then
  install_packages g++ cmake ninja-build libeigen3-dev zlib1g-dev nlohmann-json3-dev libcli11-dev
  mkdir -p "$root/build"
  (cd "$root" && cmake --preset release >build/release.log && cmake --build --preset release --target split_text)
  split=$root/build/release/examples/split_text
fi
mkdir -p "$folder"

# verses: prints the verses without chapter and verse number at the beginning of each line.
verses() { bible -f Ge1:1-Rev22:21 2>/dev/null | sed -E 's/^[^ ]+ //'; }

# Extracts only the file of the dictionary if the package is not installed, because it depends on a dictionary server.
dictionary() {
  local file=/usr/share/dictd/gcide.dict.dz
  if [[ ! -e $file ]]; then
    local unpacked=$folder/dict-gcide
    [[ -e $unpacked$file ]] || (
      mkdir -p "$unpacked"
      cd "$unpacked"
      apt-get download -qq dict-gcide >&2
      dpkg-deb -x dict-gcide_*.deb .
    )
    file=$unpacked$file
  fi
  gunzip -c <"$file"
}
# paragraphs: prints one paragraph per line, from the first entry on. Removes pronunciations, \Pro*nun`ci*a"tion\ (...),
# and names of sources, [1913 Webster]. Drops the three bytes that are not UTF-8.
paragraphs() {
  iconv -c -f UTF-8 -t UTF-8 |
    awk 'BEGIN { RS = "" } /^[^ ][^\n]*\\/ { begun = 1 } begun { gsub(/[ \n]+/, " "); print }' |
    sed -E -e 's/ *\\[^\\]*\\( \([^()]*\))?//g; s/ ?\[[^][]*(Webster|WordNet|PJC)[^][]*\]//g' \
      -e 's/[{}]//g; s/  +/ /g; s/^ //; /^$/d'
}
# apart: puts spaces around punctuation marks.
apart() { sed -E 's/([][().,:;!?"])/ \1 /g; s/  +/ /g; s/^ | $//g'; }

# cut_text NAME STRETCHES: splits FOLDER/NAME.txt unchanged, and with separate punctuation.
cut_text() {
  apart <"$folder/$1.txt" >"$folder/$1_words.txt"
  local name
  for name in "$1" "$1_words"; do
    echo "== $name"
    "$split" "$folder/$name.txt" "$folder/$name" --valid 0.05 --test 0.05 --stretches "$2"
  done
}
export LC_ALL=C.UTF-8
if [[ $texts == *" bible "* ]]; then
  verses >"$folder/bible.txt"
  lines=$(wc -l <"$folder/bible.txt")
  [[ $lines == 31102 ]] || { echo "prepare.sh: expected 31102 verses of the program bible, got $lines" >&2; exit 1; }
  cut_text bible $bible_stretches
fi
if [[ $texts == *" gcide "* ]]; then
  dictionary | paragraphs >"$folder/gcide.txt"
  cut_text gcide $gcide_stretches
fi
