#!/usr/bin/env bash
# test.sh PROGRAM OPTION...: tests the command line of a study. Each OPTION is passed to PROGRAM to make the case small.
# - The bytes are the same on any number of threads and after a kill.
# - Stored runs are used only if they match.
# - Wrong options and files give one clear line and exit code 2.
program=$1
shift
small=(--quick --seeds 2 "$@")
source "$(dirname "$0")/../checks.sh"
source "$(dirname "$0")/made_up_data.sh"

# run FOLDER OPTION...
run() {
  local out=$1
  shift
  "$program" "${small[@]}" "${data[@]}" --out "$out" "$@" >"$dir/out" 2>"$dir/err"
}
same() {
  local part
  for part in results.json results.csv log.jsonl runs; do
    diff -r "$dir/1/$part" "$1/$part" >/dev/null || return 1
  done
}

run "$dir/1" --threads 1 || { fail "exit code $?: $(tail -n 1 "$dir/err")"; exit 1; }
mapfile -t runs < <(cd "$dir/1/runs" && ls)
echo "${#runs[@]} runs"
((${#runs[@]} >= 3)) || fail "a case of ${#runs[@]} runs cannot be killed in the middle"
results() { awk '/^ "results": \[/ { on = 1 } /^ \]/ { on = 0 } on' "$1/results.json"; }
for key in program options results curves; do
  grep -q "^ \"$key\": " "$dir/1/results.json" || fail "results.json lacks $key"
done
count=$(results "$dir/1" | grep -c '^   "name": "[^"]')
((count > 0)) || fail "no results"
[ -z "$(results "$dir/1" | grep '^   "name": ' | sort | uniq -d)" ] || fail "two results have the same name"
for key in mean std seeds values; do
  [ "$(results "$dir/1" | grep -c "^   \"$key\": ")" -eq "$count" ] || fail "results lack $key"
done
[ "$(head -n 1 "$dir/1/results.csv")" = name,mean,std,seeds,published,published_std,agrees ] ||
  fail "results.csv has another header"
[ "$(wc -l <"$dir/1/results.csv")" -eq $((count + 1)) ] || fail "results.csv: expected $count rows"
[ -s "$dir/1/log.jsonl" ] || fail "log.jsonl has no measurements"
! command -v gnuplot >/dev/null || compgen -G "$dir/1/*.svg" >/dev/null || fail "no picture"

# check_page: checks that page.html has the printed tables and all pictures, and refers to no other file.
check_page() {
  local page=$dir/1/page.html lost tables
  rows() { sed -nE 's#^(<tr><td>[^<]*</td><td>[^<]*</td>).*#\1#p' "$page" | sort -u; }
  if [ "$1" = results ]; then
    lost=$(tail -n +2 "$dir/1/results.csv" | awk -F , '
      { printf "<tr><td>%s</td><td>%s</td>\n", $1, $2 == "" ? "nan" : sprintf("%.5g", $2) }' | sort -u |
      comm -23 - <(rows))
    [ -z "$lost" ] || fail "page.html lacks results: $(head -n 3 <<<"$lost")"
  fi
  for tables in "$dir"/1/table*.md; do
    [ -e "$tables" ] || continue
    lost=$(grep '^|' "$tables" | grep -v '^|---' | sed -E "s/&/\\&amp;/g; s/</\\&lt;/g; s/>/\\&gt;/g; s/'/\\&#39;/g" |
      awk -F ' *[|] *' '{ for (i = 2; i < NF; ++i) printf "<%s>", $i; print "" }' | sort -u |
      comm -23 - <(sed -nE 's#^<tr>(.*)</tr>$#\1#p' "$page" | sed -E 's#<t[dh]>([^<]*)</t[dh]>#<\1>#g' | sort -u))
    [ -z "$lost" ] || fail "page.html lacks rows of $(basename "$tables"): $(head -n 3 <<<"$lost")"
  done
  ! grep -qE "<script|@import|(src|href)=['\"]?[^#'\"]|url\([^#]" "$page" || fail "page.html refers to another file"
  [ "$(grep -c '<figure><svg' "$page")" -eq "$(find "$dir/1" -maxdepth 1 -name '*.svg' | wc -l)" ] ||
    fail "page.html lacks pictures"
  grep -q '<h2>Last measurements' "$page" || fail "page.html lacks the last measurements"
  grep -qE "^<pre>bash examples/run.sh .* --out $dir/1" "$page" || fail "page.html lacks the command"
}
check_page results
if "$program" --help | grep -q -- --tables; then
  rm "$dir/1/page.html"
  cp "$dir/1/log.jsonl" "$dir/log"
  run "$dir/1" --tables || fail "--tables: $(tail -n 1 "$dir/err")"
  check_page tables
  cmp -s "$dir/log" "$dir/1/log.jsonl" || fail "--tables: log.jsonl differs"
fi
# measured PATTERN: expects a line of log.jsonl that matches.
measured() { grep -qE "$1" "$dir/1/log.jsonl" || fail "log.jsonl has no line like $1"; }
case $(basename "$program") in
  mot | mot_text | mot_vision | expert_count)
    measured '"routing_entropy":[0-9.]+,"load_variation":[0-9.]+,"norm":[0-9.]+'
    ;;
  vision) measured '"step":[0-9]+,"layer":2,"entropy":[0-9.]+,"load_variation":[0-9.]+' ;;
esac

# A router that looks ahead gives another perplexity if the later words are cut off. The other routers do not.
if [[ $program == */graph_of_tokens ]]; then
  differs() {
    sed -E 's/.*"whole":([^,}]*),"prefixes":([^,}]*).*/\1 \2/' "$dir/1/runs/$1.seed1.json" |
      awk '{ d = $1 / $2 - 1; exit !(NF == 2 && (d > 1e-9 || d < -1e-9)) }'
  }
  for name in smoe smoe_similarity smoe_attention; do ! differs $name || fail "$name looks ahead"; done
  differs smoe_similarity_ahead || fail "smoe_similarity_ahead does not look ahead"
  # At the end of smoe_tau_falls, τ = 0.01, so the probabilities of a word are only its own.
  only_itself() {
    grep -oE '"on_itself":[0-9.]+' "$dir/1/runs/$1.seed1.json" |
      awk -F : '{ d = $2 - 1; mixed += d > 1e-3 || d < -1e-3 } END { exit !(NR > 0 && mixed == 0) }'
  }
  only_itself smoe_tau_falls || fail "smoe_tau_falls: τ does not fall to 0.01"
  ! only_itself smoe_similarity || fail "smoe_similarity does not mix probabilities"
fi

run "$dir/2" --threads 2 || fail "on 2 threads: $(tail -n 1 "$dir/err")"
same "$dir/2" || fail "the results on 2 threads differ"

# Kills the program after its first run. The finished runs are kept, each in a file, and only the others are computed.
for _ in 1 2 3 4 5; do  # retries, because on a busy machine the program can end before the kill
  rm -rf "$dir/3"
  "$program" "${small[@]}" "${data[@]}" --out "$dir/3" --threads 1 >/dev/null 2>&1 &
  killed=$!
  until compgen -G "$dir/3/runs/*.json" >/dev/null || ! kill -0 $killed 2>/dev/null; do sleep 0.01; done
  kill -KILL $killed 2>/dev/null
  wait $killed 2>/dev/null
  [ -e "$dir/3/results.json" ] || break
done
[ ! -e "$dir/3/results.json" ] || fail "all runs ended before the program was killed"
kept() { (cd "$dir/3/runs" && stat -c '%n %i %y' -- *.json); }
before=$(kept)
rm -f "$dir"/3/runs/*.tmp  # left by a kill between writing and renaming
run "$dir/3" || fail "after a kill: $(tail -n 1 "$dir/err")"
same "$dir/3" || fail "the results after a kill differ"
[ -z "$(comm -23 <(echo "$before") <(kept))" ] || fail "runs that had ended before the kill were computed again"

# If a picture cannot be drawn, the results are written nevertheless.
if command -v gnuplot >/dev/null; then
  mkdir "$dir/4"
  cp -r "$dir/1/runs" "$dir/4"
  for picture in "$dir"/1/*.svg; do mkdir "$dir/4/$(basename "$picture").tmp"; done
  run "$dir/4" && fail "expected an error, because a picture cannot be drawn"
  grep -q "svg: cannot draw" "$dir/err" && same "$dir/4" || fail "no picture, no results: $(tail -n 1 "$dir/err")"
fi

# Stored runs that are cut, empty or garbage, or that have other options, must be computed again.
first=$dir/3/runs/${runs[0]} last=$dir/3/runs/${runs[-1]}
truncate -s $(($(stat -c %s "$first") / 2)) "$first"
head -c 3000 /dev/urandom >"$last"
run "$dir/3" && same "$dir/3" || fail "damaged runs: $(tail -n 1 "$dir/err")"
: >"$first"
sed -E 's/"options":\{.*,"result":/"options":{},"result":/' "$dir/1/runs/${runs[0]}" >"$last"
run "$dir/3" && same "$dir/3" || fail "a run of other options: $(tail -n 1 "$dir/err")"
run "$dir/3" --fresh && same "$dir/3" || fail "--fresh: $(tail -n 1 "$dir/err")"
[ -z "$(comm -12 <(echo "$before") <(kept))" ] || fail "--fresh used a stored run"
run "$dir/3" --seed 7 || fail "--seed 7: $(tail -n 1 "$dir/err")"
cmp -s <(results "$dir/1") <(results "$dir/3") && fail "the seed changes nothing"

# refused WHAT PATTERN OPTION...: expects exit code 2, one line on stderr that matches, and no overwritten file.
refused() {
  local what=$1 pattern=$2
  shift 2
  run "$dir/1" "$@"
  local code=$?
  [ $code -eq 2 ] || fail "$what: exit code $code"
  [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "$what: $(wc -l <"$dir/err") lines on stderr: $(head -c 300 "$dir/err")"
  grep -qE "^$(basename "$program"): .*$pattern" "$dir/err" || fail "$what: $(tail -n 1 "$dir/err")"
  same "$dir/2" || fail "$what: overwrote an output"
}
refused "unknown option" nonsense --nonsense 3
refused "a word for a number" seeds --seeds many
refused "no seeds" seeds --seeds 0
refused "a seed beyond 64 bits" "seed: Value 18446744073709551616 is no whole number" --seed 18446744073709551616
refused "a negative seed" "seed: Value -1 is no whole number" --seed -1
refused "a seed whose last run is beyond 64 bits" "seed: Value 18446744073709551615 is no whole number" \
  --seed 18446744073709551615
refused "negative threads" threads --threads -1
rate=$("$program" --help | grep -oE -- '^ *--(lr|eta) ' | head -n 1 | tr -d ' ')
for bad in nan inf -1 1e999; do refused "$rate $bad" "${rate#--}: Value $bad is no number" $rate $bad; done
! "$program" --help | grep -q -- "--mu " || refused "no momentum" "mu: Value nan is no number from -1 to 1" --mu nan
[[ ${GATEFOLD_BUILT_FOR-cpu} == cuda ]] || ! "$program" --help | grep -q -- --backend ||
  refused "a GPU" "--backend: expected cpu, as this program was built without CUDA, got cuda" --backend cuda
# Checks the message if the threads that compute runs have too little memory. Only `mot` is tested, because it allocates
# its memory first.
[[ $(basename "$program") != mot ]] ||
  (ulimit -v 2000000; refused "too large" "not enough memory for these sizes" --samples 16777216; exit $failed) ||
    failed=1
case $(basename "$program") in
  classification)
    "$program" --quick --threshold 2 --length 8 --epochs 8 --tuning-lr 0.01 --gate plain "${data[@]}" \
      --out "$dir/learnt" >"$dir/out" 2>"$dir/err" || fail "8 epochs: $(tail -n 1 "$dir/err")"
    for start in pretrained random; do
      awk -v name="plain.$start.accuracy" '$1 == name && $2 > 90 { found = 1 } END { exit !found }' "$dir/out" ||
        fail "learns too little from $start: $(grep accuracy "$dir/out")"
    done
    # tsv WHAT PATTERN TEXT: expects that a file of training sentences with this text is refused.
    tsv() {
      printf "$3" >"$dir/bad.tsv"
      refused "$1" "$dir/bad.tsv: $2" --data "$dir/bad.tsv" --test "$dir/dev.tsv"
    }
    tsv "no header" 'line 1: header: expected "sentence<tab>label", got "good film.1"' 'good film\t1\n'
    tsv "a missing column" 'line 2: columns: expected two, separated by one tab, got "good"' 'sentence\tlabel\ngood\n'
    tsv "a word as label" 'line 3: label: expected a whole number from 0 to 999, got "yes"' \
      'sentence\tlabel\nbad\t0\ngood\tyes\n'
    tsv "one class" 'labels: expected at least two classes, got only 0' 'sentence\tlabel\nbad\t0\n'
    refused "a missing file" "$dir/none.tsv: missing: run .bash examples/run.sh finetune" --data "$dir/none.tsv"
    printf 'sentence\tlabel\nw1\t2\n' >"$dir/bad.tsv"
    refused "a new class" 'bad.tsv: line 2: label: expected a whole number from 0 to 1, got "2"' \
      --test "$dir/bad.tsv"
    refused "a gate that does not exist" "hash not in" --gate hash
    ;;
  expert_count)
    small=(--quick --seeds 2 --expert cnn --train 20 --iterations 3)
    for values in "experts 4,32 32" "patches 4,8 8" "picks 1,2,48 48"; do
      read -r option given got <<<"$values"
      refused "$option that no study takes" "$option: expected values that the chosen studies use, got $got" \
        --study top-k "--$option" "$given"
    done
    refused "a value twice" "decay: expected distinct values, got 0.70" --study unequal --decay 0.7,0.70
    for eta in 1e-300 3; do
      refused "1 / eta iterations" "eta: expected .* of the study theorem, .* got $eta" \
        --study theorem --expert mlp --eta $eta
    done
    run "$dir/close" --test 20 --study unequal --decay 0.7,0.7000001 || fail "close values: $(tail -n 1 "$dir/err")"
    [ "$(results "$dir/close" | grep -cE '"name": ".*\.decay0\.7(000001)?\.accuracy"')" -eq 4 ] &&
      [ "$(find "$dir/close/runs" -name '*.decay0.7000001.*' | wc -l)" -eq 4 ] || fail "close values have the same name"
    # A result that cannot be computed is printed as nan, for example if a cluster has no items or an output is NaN.
    run "$dir/few" --test 2 --study theorem,unequal --expert both --eta 0.1 --decay 0.01 &&
      grep -qE "\.smallest_cluster_accuracy +nan ± nan" "$dir/out" && grep -qE "\.own_error +nan ± nan" "$dir/out" ||
      fail "clusters without items: $(cat "$dir/out" "$dir/err")"
    run "$dir/large" --test 20 --study unequal --decay 1 --scale 1e30 &&
      grep -qE "\.decay1\.accuracy +nan ± nan" "$dir/out" || fail "outputs that are NaN: $(cat "$dir/out" "$dir/err")"
    ;;
  mot)
    [[ " $* " =~ " --"(router-rates|growing|variants)" " ]] ||  # these parts have no grid
      refused "a grid beyond the last epoch" "--grid: T₂: expected at most T = 20, got [0-9]+" --grid 1e6
    ;;
  mot_text)
    most() { run "$dir/1" "$@"; grep -oE "expected at most [0-9]+ together" "$dir/err"; }
    [ -n "$(most --train 20000)" ] && [ "$(most --train 20000)" = "$(most --train 1000000)" ] ||
      fail "expected the same bound of --train twice, got $(most --train 20000), $(most --train 1000000)"
    ;;
esac
echo keep >"$dir/file"
refused "a file for the folder" file --out "$dir/file"
refused "a folder below a file" file --out "$dir/file/below"
[ "$(cat "$dir/file")" = keep ] || fail "overwrote a file that has the name of the folder"
"$program" --help | grep -q -- --seeds || fail "--help"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
