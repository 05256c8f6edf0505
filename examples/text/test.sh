#!/usr/bin/env bash
# test.sh SPLIT_TEXT NGRAM: tests the split of a text, the numbers of n-grams against counts by hand, and the texts that
# prepare.sh makes from the packages.
split=$1 ngram=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../checks.sh"
same() { diff <(printf '%s\n' "${@:2}") "$1" >&2 || fail "$1: expected other lines"; }

printf 'line %d, x\n' 1 2 3 4 1 6 7 8 >"$dir/eight"
"$split" "$dir/eight" "$dir/cut" --valid 0.25 --test 0.25 --stretches 2 >"$dir/out" || fail "split_text: exit code $?"
same "$dir/cut/train.txt" "line 1, x" "line 2, x" "line 1, x" "line 6, x"
same "$dir/cut/valid.txt" "line 3, x" "line 7, x"
same "$dir/cut/test.txt" "line 4, x" "line 8, x"
same <(awk '{ $1 = $1; print }' "$dir/out") "part lines words distinct characters lines of train too" \
  "train.txt 4 12 5 40 0" "valid.txt 2 6 4 20 0" "test.txt 2 6 4 20 0"
printf 'a\nb\na\nb\n' >"$dir/twice"
"$split" "$dir/twice" "$dir/cut" --valid 0.25 --test 0.25 | grep -qE "^valid.txt .* 1$" ||
  fail "split_text did not count a repeated line"

# The text "a b a b c" of support/kneser_ney_test.cpp as words of a line, followed by <eos>. "b" follows "a" twice.
printf 'a b a b c\n' >"$dir/train"
printf 'a b\n' >"$dir/test"
"$ngram" "$dir/train" --evaluate "$dir/test" --unit word --order 2 >"$dir/out" || fail "ngram: exit code $?"
# The counts of pairs are 2 for ab, 1 for ba, bc and c<eos>, so D_2 = 3/5. Each of a, b, c and <eos> follows one word,
# so D_1 = 1 and p_1 = 1/5 (with <unk>). p(b | a) = (2 - 0.6 + 0.6 / 5) / 2 = 0.76 and p(<eos> | b) = 0.6 * 2 / 5 / 2 =
# 0.12, which gives 1.7274 bits.
same "$dir/out" "$dir/train: 6 tokens, vocabulary 5, order 2, discounts 1.0000 0.6000" \
  "$dir/test: 3 tokens, bits 1.7274, perplexity 3.3113"
"$ngram" "$dir/train" --evaluate "$dir/test" --evaluate "$dir/train" --order 1 >"$dir/out"
[[ $(grep -c bits "$dir/out") == 2 ]] || fail "expected the bits of two files"

# Runs prepare.sh with a program and a file instead of the packages.
mkdir -p "$dir/bin" "$dir/text/dict-gcide/usr/share/dictd"
{
  echo 'Ge1:1 In the beginning: "God," (he) said.'
  for ((i = 2; i <= 31102; ++i)); do echo "Rev$((i / 100)):$i And so $i."; done
} >"$dir/verses"
printf '#!/bin/sh\n[ "$*" = "-f Ge1:1-Rev22:21" ] && cat "%s"\n' "$dir/verses" >"$dir/bin/bible"
printf '#!/bin/sh\necho installed\n' >"$dir/bin/dpkg-query"
printf '#!/bin/sh\nexit 1\n' >"$dir/bin/apt-get"
chmod +x "$dir"/bin/*
printf '%s\n' '00-database-info' '   Some words before.' '' \
  'Abacist \Ab"a*cist\ ([a^]b"[.a]*s[i^]st), n. [LL abacista.]' \
  $'   One who uses an   abacus;\xff see {Abacus}.' '   [1913 Webster]' '' '   Syn: none.' \
  '        [1913 Webster +PJC]' '' \
  '   [PJC]' | gzip >"$dir/text/dict-gcide/usr/share/dictd/gcide.dict.dz"
if [[ ! -e /usr/share/dictd/gcide.dict.dz ]]; then
  PATH=$dir/bin:$PATH bash "$here/prepare.sh" "$dir/text" "$split" >"$dir/out" || fail "prepare.sh: exit code $?"
  same "$dir/text/gcide.txt" "Abacist, n. [LL abacista.] One who uses an abacus; see Abacus." "Syn: none."
  same "$dir/text/gcide_words.txt" "Abacist , n . [ LL abacista . ] One who uses an abacus ; see Abacus ." \
    "Syn : none ."
  same <(head -n 1 "$dir/text/bible/train.txt") 'In the beginning: "God," (he) said.'
  same <(head -n 1 "$dir/text/bible_words/train.txt") 'In the beginning : " God , " ( he ) said .'
  cat "$dir"/text/bible/*.txt | sort | cmp - <(sort "$dir/text/bible.txt") || fail "the three parts are not the Bible"
  [[ $(grep -c '^== ' "$dir/out") == 4 ]] || fail "expected the sizes of four texts"
  PATH=$dir/bin:$PATH bash "$here/prepare.sh" "$dir/one" "$split" bible >"$dir/out" ||
    fail "prepare.sh bible: exit code $?"
  [[ -e $dir/one/bible/test.txt && ! -e $dir/one/gcide.txt ]] || fail "prepare.sh bible: expected only the Bible"
  sed -i '$d' "$dir/verses"
  PATH=$dir/bin:$PATH bash "$here/prepare.sh" "$dir/text" "$split" >"$dir/out" 2>&1 &&
    fail "prepare.sh accepted a Bible without its end"
  grep -q "expected 31102 verses of the program bible, got 31101" "$dir/out" ||
    fail "a Bible without its end: $(cat "$dir/out")"
fi

# refused PATTERN COMMAND...: expects exit code 2 and one line on stderr that matches.
refused() {
  local pattern=$1
  shift
  "$@" >/dev/null 2>"$dir/err"
  local code=$?
  [ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qE "$pattern" "$dir/err" ||
    fail "$*: exit code $code: $(cat "$dir/err")"
}
printf 'a\xff\n' >"$dir/bad"
refused "^split_text: .*bad: offset 1: not UTF-8" "$split" "$dir/bad" "$dir/cut"
refused "^split_text: .*not a regular file" "$split" /dev/zero "$dir/cut"
refused "^split_text: Split: valid \+ test: expected less than 1" \
  "$split" "$dir/eight" "$dir/cut" --valid 0.5 --test 0.5
refused "^split_text: .*eight/cut: " "$split" "$dir/eight" "$dir/eight/cut"
refused "^prepare.sh: expected the text bible or gcide, got bibel$" \
  bash "$here/prepare.sh" "$dir/unknown" "$split" bible bibel
[ ! -e "$dir/unknown" ] || fail "prepare.sh made texts although one name is unknown"
refused "^ngram: .*nowhere: cannot open" "$ngram" "$dir/nowhere"
refused "^ngram: KneserNey: order: expected at most" "$ngram" "$dir/train" --order 63
refused "^ngram: KneserNey: text: expected at least 9 tokens, got 6" "$ngram" "$dir/train" --unit word --order 9
refused "^ngram: .*unit" "$ngram" "$dir/train" --unit syllable
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
