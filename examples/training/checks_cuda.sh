# Sourced by the tests of programs with a CUDA backend, after they set `program`.
source "$(dirname "${BASH_SOURCE[0]}")/../checks.sh"

# losses RUN: prints the loss of each step on a line.
losses() { grep -o '"loss":[0-9.]*' "$dir/$1/metrics.jsonl" | cut -d : -f 2; }
# close_losses STEPS TOLERANCE RUN: compares the losses of RUN.cpu and RUN.cuda. Both runs compute in float, but add
# numbers in different orders, and the difference grows with each step.
close_losses() {
  paste <(losses "$3.cpu") <(losses "$3.cuda") | awk -v steps="$1" -v most="$2" '
    { apart = $1 / $2 - 1; if (apart < 0) apart = -apart; if (!(apart < most)) exit 1 }
    END { exit NR != steps }' ||
    fail "$3: losses of the CPU and others:" $(losses "$3.cpu") and $(losses "$3.cuda")
}
