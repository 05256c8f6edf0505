#!/usr/bin/env bash
# includes.sh DIR: compares the headers under DIR with the list of allowed includes below. Prints "file:line: rule:
# text" for each violation and fails if there is one.
cd "$1" || exit 2
mapfile -t files < <(find . -name '*.hpp' -o -name '*.cuh' | sed 's|^\./||' | sort)
((${#files[@]})) || { echo "no headers under $1"; exit 2; }

exec awk '
# For each folder, the folders that it may include directly. Includes are transitive (closure below).
BEGIN {
  allow["core"] = ""
  allow["tensor"] = "core"
  allow["policy"] = "tensor"
  allow["backend"] = "policy"
  allow["routing"] = "backend"
  allow["attention"] = "routing"
  allow["gate"] = allow["expert"] = "attention"
  allow["update"] = "backend"
  allow["diagnosis"] = "gate expert update"
  allow["layer"] = "diagnosis"
  allow["model"] = "layer loss"
  allow["loss"] = allow["optim"] = allow["io"] = allow["data"] = "backend"
  allow["metric"] = "routing"
  allow["train"] = "layer optim loss io model"
  allow["check"] = "layer optim loss"
  allow["distributed"] = "train"
  allow["papers"] = "train metric data"
  for (folder in allow) reach(folder, folder)
  for (i = 1; i < ARGC; ++i) exists[ARGV[i]] = 1
}
function reach(from, to, next_folders, n, i) {
  may[from, to] = 1
  n = split(allow[to], next_folders, " ")
  for (i = 1; i <= n; ++i) reach(from, next_folders[i])
}
function report(rule) { printf "%s:%d: %s: %s\n", FILENAME, FNR, rule, $0; bad = 1 }
function inside(path, folder) { return index(path, folder "/") == 1 }

# Returns the header that an include names, relative to the root. If it does not exist there, the name is relative to
# the including file.
function resolve(name, path) {
  sub(/^gatefold\//, "", name)
  if (exists[name] || top == "") return name
  path = FILENAME
  sub(/[^\/]*$/, "", path)
  path = path name
  while (sub(/[^\/]+\/\.\.\//, "", path)) {}
  return exists[path] ? path : name
}

# Returns the line without strings and comments.
function code(line, out, at) {
  gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
  out = ""
  while (line != "") {
    if (in_comment) {
      if (!(at = index(line, "*/"))) return out
      line = substr(line, at + 2)
      in_comment = 0
    } else if (match(line, /\/\/|\/\*/)) {
      out = out substr(line, 1, RSTART - 1)
      if (substr(line, RSTART, 2) == "//") return out
      line = substr(line, RSTART + 2)
      in_comment = 1
    } else {
      return out line
    }
  }
  return out
}

FNR == 1 {
  top = FILENAME ~ /\// ? FILENAME : ""  # an umbrella header is not in a folder
  sub(/\/.*/, "", top)
  in_comment = has_json = 0
  on_cpu = FILENAME == "papers/eigenvalues.hpp"  # its small matrices are on the host, with any backend
  if (top != "" && !(top in allow)) report("folder")
}
{ text = code($0) }

text ~ /^[ \t]*#[ \t]*include/ && match($0, /["<][^">]+[">]/) {
  header = resolve(substr($0, RSTART + 1, RLENGTH - 2))
  other = header
  sub(/\/.*/, "", other)
  if (top != "" && exists[header] && header !~ /\//) report("umbrella")
  if (top in allow && other in allow && header ~ /\// && !((top, other) in may)) report("direction")
  for (i = 1; i <= 2; ++i) {
    backend = i == 1 ? "backend/cpu" : "backend/cuda"
    if (inside(header, backend) && top != "" && !inside(FILENAME, backend) && !on_cpu) report("backend")
  }
  if (header ~ /^(unsupported\/)?Eigen\// && !inside(FILENAME, "backend/cpu") && !on_cpu) report("eigen")
  if (header ~ /^(cuda|cub\/|thrust\/|cublas|curand|cudnn|nccl|cooperative_groups|mma\.h)/ &&
      !inside(FILENAME, "backend/cuda"))
    report("cuda")
  if (header == "mpi.h" && FILENAME != "distributed/mpi_transfers.hpp") report("mpi")
  if (header ~ /^nlohmann\// && FILENAME != "io/json.hpp") report("json")
  if (header == "io/json.hpp" || FILENAME == "io/json.hpp") has_json = 1
  if (header ~ /\.cuh$/ && FILENAME ~ /\.hpp$/) report("cuh")
  if (header == "iostream") report("iostream")
}
text ~ /(^|[^A-Za-z0-9_])Cpu([^A-Za-z0-9_]|$)/ && top != "" && !inside(FILENAME, "backend/cpu") && !on_cpu {
  report("cpu-name")
}
text ~ /(^|[^A-Za-z0-9_])using[ \t]+namespace([^A-Za-z0-9_]|$)/ { report("using-namespace") }
text ~ /(^|[^A-Za-z0-9_])nlohmann::/ && !has_json { report("json") }
text ~ /__CUDACC/ && FILENAME != "core/config.hpp" { report("cudacc") }
END { exit bad }
' "${files[@]}"
