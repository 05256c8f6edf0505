#!/usr/bin/env bash
# catalogue.sh ROOT [check]: makes docs/reference/catalogue.md from the doc comments of the policies' headers.
#   bash tests/structure/catalogue.sh . >docs/reference/catalogue.md     writes the page
#   bash tests/structure/catalogue.sh . check                            compares it, as the tests do
# A policy is a struct with forward or backward that is not in the namespaces functor and detail_, or a mixing that
# inherits them from a struct in detail_::mixing. A policy without equation, source, cost or test is reported.
cd "$1" || exit 2
if [[ ${2:-} == check ]]; then
  made=$(bash "${BASH_SOURCE[0]}" .) || { echo "$made" | grep '^include'; exit 1; }
  diff <(echo "$made") docs/reference/catalogue.md && exit 0
  echo "docs/reference/catalogue.md has drifted: bash tests/structure/catalogue.sh . >docs/reference/catalogue.md"
  exit 1
fi
mapfile -t files < <(find include/gatefold/{gate,update,expert,loss,layer,papers/merged_transformer.hpp} -name '*.hpp' \
  2>/dev/null | sort)
((${#files[@]})) || { echo "no headers"; exit 2; }

exec awk '
BEGIN {
  n = split("whole gates|scores|mixing|selections|auxiliary losses of a gate|update rules|experts|losses|" \
    "branches with tensors of their own", titles, "|")
}
FNR == 1 { doc = ""; in_fn = 0; collecting = 0 }
/^namespace (functor|steps|support|detail_(::[a-z_]+)*) \{/ { in_fn = 1 }
/^\}  \/\/ namespace (functor|steps|support|detail_(::[a-z_]+)*)/ { in_fn = 0 }
!collecting && /^\/\/\// {
  if (doc_closed || doc == "") { doc = ""; pending_template = "" }
  doc_closed = 0; doc = doc $0 "\n"; line_of_doc = FNR; next
}
!collecting && /^using [A-Za-z0-9]+ =/ && doc != "" && !in_fn { alias(); doc = ""; next }
!collecting && /^template </ { pending_template = $0; next }
!collecting && /^using [A-Za-z0-9]+ =/ { doc = ""; next }
!collecting && /^struct [A-Z][A-Za-z0-9]* \{/ && doc != "" && !in_fn {
  name = $2; body = options = tensors = ""
  open_options = 1; in_params = in_static = 0; collecting = 1; first = FNR; next
}
!collecting && /^struct [A-Z][A-Za-z0-9]* : detail_::mixing::.*> \{\};$/ && doc != "" && !in_fn {
  name = $2; body = "void forward( rank("; options = tensors = ""; policy(); doc = ""; next
}
!collecting { if ($0 !~ /^ *$/) { doc_closed = 1; if ($0 !~ /^(requires|class)/) doc = "" } next }
collecting && /^\};/ { collecting = 0; policy(); doc = ""; pending_template = ""; next }
collecting {
  body = body $0 "\n"
  if (in_params) params_line()
  if (/^  struct Params \{/) in_params = 1
  if (/^  using Params = [A-Z][A-Za-z]*::Params<T, B>;/) tensors = "those of `" between($0, "Params = ", "::") "`"
  if (/^  using Params = gatefold::Params</) tensors = "those of " between($0, "gatefold::Params<", ",")
  if (open_options && /^  static/) in_static = 1
  if (in_static) { if (/^  }|[;}]( *\/\/.*)?$/) in_static = 0; next }
  if (open_options && /^  (template|private|\/\/\/)|\) const/) open_options = 0
  if (open_options && /^  [A-Za-z_:<>.]+(, [a-z]+>)?( [A-Za-z_:<>]+)* [a-z_0-9]+.*;/ && !/^  using/) {
    text = $0
    sub(/ *\/\/.*/, "", text); sub(/^ +/, "", text); sub(/;.*/, "", text)
    options = options (options ? "; " : "") text
  }
}

# Reads a line of struct Params, for example `weight` [E, D, O]. Members that are packs become `expert.…`.
function params_line(  text, shape, names, i, count) {
  if (/^  \};/) { in_params = 0; return }
  if (/ (gatefold::Params<.*>|[A-Z][A-Za-z]*)::each\(f, p\./) {
    tensors = "those of `" between($0, "each(f, p.", "...") "`"
    return
  }
  if (!/^    (Tensor|Table|std::vector<Table|gatefold::Params|[A-Z][A-Za-z]*::Params|std::tuple)<.*> [a-z_, ]+;/) return
  text = shape = $0
  if (!sub(/.*;  *\/\/ */, "", shape)) shape = ""
  sub(/;.*/, "", text)
  sub(/.*> /, "", text)
  count = split(text, names, ", ")
  for (i = 1; i <= count; ++i)
    tensors = tensors (i > 1 ? ", " : tensors ? "; " : "") "`" names[i] \
      (/^    ([A-Z][A-Za-z]*::Params|gatefold|std::)/ ? ".…" : "") "`" \
      (shape && i == count ? " " shape : "")
}
function between(text, before, after,  at) {
  text = substr(text, index(text, before) + length(before))
  return substr(text, 1, index(text, after) - 1)
}
# Splits the text of a doc comment, without its slashes, into the parts of the template.
function parse(  lines, i, count, line, part) {
  sentence = equation = source = cost = ""
  count = split(doc, lines, "\n")
  part = "sentence"
  for (i = 1; i < count; ++i) {
    line = lines[i]
    sub(/^\/\/\/ ?/, "", line)
    if (part == "cost" && line ~ /^    /) {
      sub(/^ +/, "", line)
      cost = cost " " line
    } else if (part == "tag" && line ~ /^    /) {
      continue
    } else if (line ~ /^    /) {
      sub(/^ +/, "", line)
      sub(/ +\([0-9]+\)$/, "", line)
      gsub(/  +/, "  ", line)
      gsub(/`/, "", line)  # all of it is code
      equation = equation (equation ? "<br>" : "") "`" line "`"
      part = "after"
    } else if (line == "") {
      if (part == "sentence" && sentence) part = "after"
      if (part == "source") part = "after"
    } else if (line ~ /^Source:/) {
      part = "source"
      sub(/^Source: */, "", line)
      source = line
    } else if (line ~ /^@cost/) {
      part = "cost"
      sub(/^@cost */, "", line)
      cost = line
    } else if (line ~ /^@/) {
      part = "tag"
    } else if (part == "sentence") {
      sentence = sentence (sentence ? " " : "") line
    } else if (part == "source") {
      source = source " " line
    } else if (part == "cost") {
      sub(/^ +/, "", line)
      cost = cost " " line
    }
  }
  sub(/[.:] .*/, ".", sentence)
  sub(/:$/, ".", sentence)
  source = first_sentence(source)
  sub(/\.$/, "", source)
}
# Returns the text up to the first full stop that does not end an abbreviation.
function first_sentence(text,  kept, rest) {
  kept = ""
  rest = text
  while (match(rest, /\. [A-Z]/)) {
    kept = kept substr(rest, 1, RSTART)
    if (kept !~ /( |\()([Aa]pp|[Ss]ec|eq|al|fig|e\.g|i\.e)\.$/) return kept
    rest = substr(rest, RSTART + 1)
  }
  return text
}
function section(folder) {
  if (folder == "update") return 6
  if (folder == "expert" || folder == "papers") return 7
  if (folder == "loss") return 8
  if (folder == "layer") return 9
  if (body ~ /GateOutcome</) return 5
  if (body ~ /Candidates</ && body ~ /SparsePlan</ && body !~ /using Plan =/) return 4
  if (body ~ / rank\(/) return 3
  if (body ~ /using Plan =/) return 1
  return 2
}
function links(header, test) { return "[header](../../include/gatefold/" header "), [test](../../tests/" test ")" }
function cell(text) { gsub(/\|/, "\\|", text); return text }
function report(what) { printf "%s:%d: %s: %s\n", FILENAME, first, what, name; bad = 1 }
function policy(  folder, test, parts, key, shown) {
  if (body !~ /void (forward|backward)\(|GATEFOLD_(BRANCH|LAYER)_PASSES\(/ || name ~ /Extra|Grad$/ ||
      FILENAME ~ /\/(gate|update|expert|loss)\.hpp$/) return
  if (FILENAME ~ /composed_gate\.hpp$/) return
  split(FILENAME, parts, "/")
  folder = parts[3]
  if (folder == "layer" && tensors !~ /\[|those of `[A-Z]/) return  # it has no tensors except those of its parts
  if (folder == "update" && body !~ /&& d?f,( (Out|In|int)|\n)/) return  # not a rule but a part of one
  test = FILENAME
  sub(/^include\/gatefold\//, "", test)
  shown = test
  sub(/\.hpp$/, "_test.cpp", test)
  parse()
  if (equation == "") report("no-equation")
  if (source == "") report("no-source")
  if (cost == "") report("no-cost")
  if ((getline key < ("tests/" test)) < 0) report("no-test")
  close("tests/" test)
  rows[section(folder)] = rows[section(folder)] sprintf("| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", \
    name, cell(sentence), cell(equation), cell(source), options ? "`" cell(options) "`" : "", cell(tensors), \
    cell(cost), links(shown, test))
}
function alias(  text, line, spelled) {
  parse()
  text = $0
  while (text !~ /;/ && (getline line) > 0) text = text " " line
  gsub(/  +/, " ", text)
  spelled = text
  sub(/^using [A-Za-z0-9]+ = */, "", spelled)
  sub(/;.*/, "", spelled)
  split(text, words, " ")
  if (FILENAME ~ /\/update\//) {
    shown = test = FILENAME
    sub(/^include\/gatefold\//, "", shown)
    test = shown
    sub(/\.hpp$/, "_test.cpp", test)
    rows[6] = rows[6] sprintf("| `%s` | %s | %s | %s | `%s` | | %s | %s |\n", \
      words[2], cell(sentence), cell(equation), cell(source), cell(spelled), cell(cost), links(shown, test))
    return
  }
  if (spelled !~ /^(ComposedGate|typename detail_::lookup::WithAux|WithMixing)/) return
  if (spelled ~ /^typename/) spelled = ""
  names = names sprintf("| `%s%s` | %s | %s | %s |\n", words[2], pending_template != "" ? "<Base>" : "", \
    cell(sentence), spelled ? "`" cell(spelled) "`" : "", cell(source))
  pending_template = ""
}
END {
  if (bad) exit 1
  print "# Catalogue\n"
  print "This page lists every policy. It is generated from the doc comments of the headers\n" \
    "(`bash tests/structure/catalogue.sh . >docs/reference/catalogue.md`), and a test compares the two.\n"
  print "Letters: N items, L items per sequence, D model, H hidden, E experts, K picks, S slots.\n"
  print "- A gate is scores × mixing × selection, combined by `ComposedGate`. Any scores work with any mixing and\n" \
    "  any selection. The first table lists the combinations that have a name."
  print "- Tensors have the names that files use, after the name of the part that holds them, for example\n" \
    "  `layers.0.branch.gate.scores.weight`. A bias tensor that is switched off has 0 values."
  print "- A policy around other policies takes them in order, without member names:\n" \
    "  `HiddenDropout{0.2, Mlp<Relu>{…}}`. clang 14 and nvcc cannot deduce the types of named members."
  print "\n## gates by name\n\n| gate | what | composition | source |\n|---|---|---|---|"
  printf "%s", names
  for (i = 1; i <= n; ++i) {
    if (rows[i] == "") continue
    print "\n## " titles[i] "\n\n| policy | what | equation | source | options | tensors | cost | where |"
    print "|---|---|---|---|---|---|---|---|"
    printf "%s", rows[i]
  }
}
' "${files[@]}"
