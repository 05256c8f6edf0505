# Pictures of the growth curves: gnuplot bench/growth.gp where the .dat files of table.py lie.
set terminal pngcairo size 720,480 font "sans,10"
set grid
set key top left
set datafile columnheaders
set logscale xy 2
set ylabel "milliseconds"
do for [curve in "tokens experts picks model_dim hidden_dim threads"] {
  file = curve.".dat"
  if (system("test -f ".file." && echo 1") eq "1") {
    set output curve.".png"
    set title "inference of one layer against ".curve noenhanced
    set xlabel curve noenhanced
    plot file using "x":"ms" with linespoints title "layer", file using "x":"gate_ms" with linespoints title "gate", \
         file using "x":"experts_ms" with linespoints title "experts"
    unset output
  }
}
