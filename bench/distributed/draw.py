"""Draws the parts of the seconds of a step against the number of ranks, as a PNG, with gnuplot."""
import shutil
import subprocess

from model import PARTS

COLOURS = ["#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb", "#555555"]


def quote(text):
    return "'" + text.replace("'", "''") + "'"


def panel(number, title, steps):
    """Returns the gnuplot text of a panel of stacked bars, one for each (ranks, step)."""
    lines = [f"$p{number} << EOD"]
    lines += [" ".join([str(ranks)] + [f"{step.parts[p]:.5g}" for p in PARTS]) for ranks, step in steps]
    bars = [f"$p{number} using {i + 2}:xtic(1) title {quote(p)} lc rgb '{c}'"
            for i, (p, c) in enumerate(zip(PARTS, COLOURS))]
    key = "" if number else "set key top left reverse Left\n"
    return "\n".join(lines) + f"\nEOD\n{key}set title {quote(title)}\nplot " + ", ".join(bars) + "\nunset key\n"


def draw(path, panels, width=900, height=380):
    """Draws panels (title, [(ranks, step)]). Returns False if there is no gnuplot."""
    if not shutil.which("gnuplot"):
        return False
    script = f"""set terminal pngcairo noenhanced size {width},{height} font 'sans,9'
set output {quote(str(path))}
set multiplot layout 1,{len(panels)}
set style data histograms
set style histogram rowstacked
set style fill solid border -1
set boxwidth 0.8
set xlabel 'ranks'
set ylabel 'seconds of a step'
set xtics rotate by -45
set yrange [0:*]
""" + "".join(panel(i, title, steps) for i, (title, steps) in enumerate(panels)) + "unset multiplot\nset output\n"
    subprocess.run(["gnuplot"], input=script, text=True, check=True)
    return True
