#!/usr/bin/env python3
"""Draws training runs, rooflines, and every figure of the docs.

    tools/plot.py run RUN… --out curves.svg
    warpwright roofline --gpu h200 --measured bench/results/nvidia-h200.json --json | tools/plot.py roofline --out r.svg
    warpwright roofline --gpu h200 --op dw --k 65536 --map --json | tools/plot.py map --out m.svg
    warpwright bench products 16384x3072x768 --device cuda --timeline t.json; tools/plot.py timeline t.json --out t.svg
    tools/plot.py curve bench/results/nvidia-h200-curve.json --out curve.svg
    tools/plot.py figures --warpwright build/release/warpwright

The suffix of --out decides the format: svg, png or pdf. Needs matplotlib (`pip install matplotlib`, or
`apt-get install python3-matplotlib`).
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Okabe and Ito's colours, which colour-blind readers can tell apart, and four of Tol's.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f4f24", "#444444", "#882255", "#999933",
           "#44aa99", "#aa4499"]
SCHEDULES = ["block", "persistent", "stream_k"]


def load_pyplot():
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py: matplotlib is missing: pip install matplotlib, or apt-get install python3-matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "warpwright", "font.size": 10, "axes.spines.top": False,
                            "axes.spines.right": False, "legend.frameon": False, "axes.prop_cycle": pyplot.cycler(color=COLOURS)})
    return pyplot


def save(pyplot, figure, out):
    metadata = {"Date": None} if out.suffix == ".svg" else None  # makes the same figure the same file
    try:
        figure.savefig(out, metadata=metadata)
    except (OSError, ValueError) as error:
        sys.exit(f"plot.py: {out}: {error}")
    pyplot.close(figure)


def read_json(path):
    """The JSON in a file, or on standard input for "-"."""
    try:
        return json.loads(sys.stdin.read() if str(path) == "-" else pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"plot.py: {path}: {error}")


def read_report(path):
    report = read_json(path)
    if not isinstance(report, dict) or not {"machine", "dtype"} <= report.keys():
        sys.exit(f"plot.py: {path} is not a report of `warpwright roofline --json`")
    return report


# ---- Training runs

def read_run(folder):
    """{field: ([step…], [value…])} from a run's metrics.jsonl."""
    path = folder / "metrics.jsonl" if folder.is_dir() else folder
    series = {}
    try:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                row = json.loads(line)
                step = row["step"]
            except (ValueError, KeyError, TypeError):
                sys.exit(f"plot.py: {path}: line {number} is not a step of a run")
            for field, value in row.items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    steps, values = series.setdefault(field, ([], []))
                    steps.append(step)
                    values.append(value)
    except OSError as error:
        sys.exit(f"plot.py: {error}")
    if not series:
        sys.exit(f"plot.py: {path}: no steps")
    return series


RUN_PANELS = [("loss", "training loss"), ("val_loss", "validation loss"), ("lr", "learning rate"),
              ("norm", "gradient norm"), ("tokens_per_second", "tokens/s")]


def draw_runs(args):
    pyplot = load_pyplot()
    runs = {folder: read_run(folder) for folder in args.runs}
    panels = [(field, name) for field, name in RUN_PANELS if any(field in series for series in runs.values())]
    figure, axes = pyplot.subplots(len(panels), 1, sharex=True, squeeze=False, figsize=(8, 1 + 1.8 * len(panels)),
                                   layout="constrained")
    for (field, name), axis in zip(panels, axes[:, 0]):
        for number, (folder, series) in enumerate(runs.items()):
            if field in series:
                axis.plot(*series[field], linewidth=1, marker="." if len(series[field][0]) < 30 else None, label=str(folder),
                          color=COLOURS[number % len(COLOURS)])
        axis.set_ylabel(name)
        axis.grid(color="#eeeeee")
    axes[0, 0].legend()
    axes[-1, 0].set_xlabel("step")
    save(pyplot, figure, args.out)


# ---- Rooflines

def roofs_of(machine):
    """[(name, bytes per second)], device memory first."""
    roofs = [("device memory", machine["memory_bytes_per_second"])]
    if machine["l2_bytes_per_second"]:
        roofs.append(("L2 (assumed)" if machine["l2_bytes_per_second_assumed"] else "L2", machine["l2_bytes_per_second"]))
    roofs.append(("shared memory", machine["shared_bytes_per_second"]))
    roofs.append(("registers, at least", machine["register_bytes_per_second_at_least"]))
    return roofs


def points_of(report):
    """[(group, label, intensity, FLOP/s, predicted)]: a product's variants and predictions, or all operations."""
    product = report.get("product")
    measured = product["measured"] if product else report.get("measured", [])
    points = []
    for row in measured:
        if row["dtype"] != report["dtype"] or not row["bytes"]:
            continue
        variant = row["variant"].split("[")[0]
        group = variant if product else row["op"].split(".")[0]
        points.append((group, "" if product else row["op"], row["flops"] / row["bytes"], row["flops"] / row["seconds"], False))
    for schedule in product["schedules"] if product else []:
        points.append((f"{schedule['schedule']}, by the model", "", product["intensity"], schedule["flops_per_second"], True))
    return points


def draw_labels(axis, points):
    """Labels each point in a free place, unless a label of the same name is near."""
    from matplotlib.transforms import Bbox

    figure = axis.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    taken = [text.get_window_extent(renderer) for text in axis.texts]
    places = {point: axis.transData.transform(point[2:4]) for point in points}
    taken += [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in places.values()]
    labelled = []
    for point in sorted(points, key=lambda point: -point[3]):
        _, label, x, y, _ = point
        if not label or any(label == other[1] and math.dist(places[point], places[other]) < 40 for other in labelled):
            continue
        labelled.append(point)
        for dx, dy, ha in [(7, -3, "left"), (-7, -3, "right"), (7, 8, "left"), (-7, 8, "right"), (7, -14, "left"), (-7, -14, "right"),
                           (9, 19, "left"), (-9, 19, "right"), (9, -25, "left"), (-9, -25, "right")]:
            text = axis.annotate(label, (x, y), (dx, dy), textcoords="offset points", ha=ha, fontsize=8)
            box = text.get_window_extent(renderer).expanded(1.02, 1.1)
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def draw_roofline(args):
    pyplot = load_pyplot()
    draw_roofline_of(pyplot, read_report(args.report), args.out)


def draw_roofline_of(pyplot, report, out):
    machine, points = report["machine"], points_of(report)
    peak, roofs = machine["peak_flops"], roofs_of(machine)
    least = min([peak / rate / 8 for _, rate in roofs] + [point[2] for point in points])
    most = max([peak / rate for _, rate in roofs] + [point[2] for point in points]) * 7
    figure, axis = pyplot.subplots(figsize=(10, 6.8), layout="constrained")
    axis.set(xscale="log", yscale="log", xlim=(least / 1.5, most), xlabel="arithmetic intensity, FLOP a byte", ylabel="TFLOP/s")
    axis.grid(which="both", color="#eeeeee", linewidth=0.5)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(lambda value, _: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")
    for number, (name, rate) in enumerate(roofs):
        ridge, ink = peak / rate, "#222222" if number == 0 else "#777777"
        axis.plot([least / 1.5, ridge], [least / 1.5 * rate / 1e12, peak / 1e12], color=ink, linewidth=2 if number == 0 else 1.2,
                  linestyle="-" if number == 0 else (0, (6, 4)))
        axis.plot([ridge], [peak / 1e12], "o", markersize=5, markerfacecolor="white", markeredgecolor="#222222")
        axis.annotate(f"{ridge:.3g}", (ridge, peak / 1e12), (0, 7), textcoords="offset points", ha="center", fontsize=8, color="#777777")
        axis.annotate(f"{name} {rate / 1e12:.3g} TB/s", (ridge / 4, peak / 4e12), (-5, 5), textcoords="offset points", fontsize=8, color=ink,
                      ha="center", va="bottom", rotation=45, rotation_mode="anchor", transform_rotates_text=True)
    unit = "fp32" if report["dtype"] == "fp32" else f"{report['dtype']} tensor cores"
    ceilings = [(unit, peak, max(rate for _, rate in roofs), "-")]
    if report["dtype"] != "fp32":
        ceilings.append(("fp32", machine["fp32_peak_flops"], roofs[0][1], ":"))
    for name, flops, rate, style in ceilings:
        axis.plot([flops / rate, most], [flops / 1e12] * 2, color="#222222" if style == "-" else "#777777", linestyle=style)
        axis.annotate(f"{name} {flops / 1e12:.1f} TFLOP/s", (most, flops / 1e12), (-6, 4), textcoords="offset points", ha="right", fontsize=8)
    groups = list(dict.fromkeys(point[0] for point in points))
    for number, group in enumerate(groups):
        colour = COLOURS[number % len(COLOURS)]
        of_group = [point for point in points if point[0] == group]
        predicted = of_group[0][4]
        axis.plot([p[2] for p in of_group], [p[3] / 1e12 for p in of_group], "o", markersize=7, label=group,
                  markerfacecolor="white" if predicted else colour, markeredgecolor=colour if predicted else "white")
    if groups:
        axis.legend(loc="lower right", frameon=True, edgecolor="#e6e6e6", fontsize=8)
    title = f"{machine['name']}: roofline, {report['dtype']}"
    if product := report.get("product"):
        title += f", {product['op'].split('.')[1]} of {product['M']} × {product['N']} × {product['K']}"
    figure.suptitle(title, fontsize=14, fontweight="bold", x=0.01, ha="left")
    axis.set_title(f"{machine['source']}; figures above the roofs' ends are their ridge points, FLOP a byte", fontsize=8,
                   color="#777777", loc="left")
    draw_labels(axis, [(g, label, x, y / 1e12, p) for g, label, x, y, p in points])
    save(pyplot, figure, out)


# ---- Which schedule is fastest

def draw_map(args):
    pyplot = load_pyplot()
    draw_map_of(pyplot, read_report(args.report), args.out)


def human(count):
    return f"{count // 1024}Ki" if count % 1024 == 0 else f"{count:,}"


def draw_map_of(pyplot, report, out):
    from matplotlib.colors import to_rgb

    cells = report.get("map")
    if not cells:
        sys.exit("plot.py: the report has no map: give `warpwright roofline` --map")
    rows, cols = (list(dict.fromkeys(cell[side] for cell in cells)) for side in ("rows", "cols"))
    figure, axis = pyplot.subplots(figsize=(1.6 + 0.72 * len(cols), 1.6 + 0.34 * len(rows)), layout="constrained")

    def tinted(schedule, strength):
        return [1 + (channel - 1) * strength for channel in to_rgb(COLOURS[SCHEDULES.index(schedule)])]

    image = [[None] * len(cols) for _ in rows]
    for cell in cells:
        r, c = rows.index(cell["rows"]), cols.index(cell["cols"])
        image[r][c] = tinted(cell["schedule"], 0.15 + 0.6 * min(max((cell["over_block"] - 1) / 1.5, 0), 1))
        if cell["schedule"] != "block":
            axis.text(c, r, f"{cell['over_block']:.2f}", ha="center", va="center", fontsize=8)
    axis.imshow(image, aspect="auto")
    axis.set_xticks([c + 0.5 for c in range(len(cols) - 1)], minor=True)
    axis.set_yticks([r + 0.5 for r in range(len(rows) - 1)], minor=True)
    axis.grid(which="minor", color="white", linewidth=1.5)
    axis.tick_params(which="minor", length=0)
    axis.set_xticks(range(len(cols)), [human(c) for c in cols])
    axis.set_yticks(range(len(rows)), [human(r) for r in rows])
    axis.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axis.set(ylabel="rows", xlabel="columns of the result")
    axis.xaxis.set_label_position("top")
    axis.spines[:].set_visible(False)
    figure.suptitle(f"{report['machine']['name']}: the fastest schedule, {report['dtype']}, depth {cells[0]['depth']}", fontsize=13,
                    fontweight="bold", x=0.01, ha="left")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=tinted(schedule, 0.6)) for schedule in SCHEDULES]
    figure.legend(handles, SCHEDULES, loc="outside lower left", ncols=3,
                  title="by the model; figures: block's time over the fastest's", title_fontsize=8)
    save(pyplot, figure, out)


# ---- A block's timeline

def draw_timeline(args):
    pyplot, report = load_pyplot(), read_json(args.report)
    try:
        groups = [[(tile["products"], tile["epilogue"], tile["end"]) for tile in tiles] for tiles in report["groups"]]
        product, overlap, clock = report["product"], report["overlap"], report["clocks_per_second"]
        first = min(tile[0] for tiles in groups for tile in tiles)
        last = max(tile[2] for tiles in groups for tile in tiles)
        microseconds = (last - first) / clock * 1e6
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        sys.exit(f"plot.py: {args.report} is not a timeline of `warpwright bench products --timeline`")
    figure, axis = pyplot.subplots(figsize=(10, 1.1 + 0.4 * len(groups)), layout="constrained")
    for group, tiles in enumerate(groups):
        for name, begin, end, colour in (("products", 0, 1, "#3b6ea8"), ("epilogue", 1, 2, "#e0a030")):
            axis.broken_barh([(tile[begin] - first, tile[end] - tile[begin]) for tile in tiles], (group - 0.35, 0.7), color=colour,
                             label=name if group == 0 else None)
    axis.set(yticks=range(len(groups)), yticklabels=[f"group {group}" for group in range(len(groups))],
             xlabel=f"clocks; {last - first:,} take {microseconds:.1f} µs at the highest clock")
    axis.invert_yaxis()
    axis.tick_params(left=False)
    axis.spines[["left"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=2)
    figure.suptitle(f"{product}: {100 * overlap:.0f} % of the epilogues pass while the other group multiplies",
                    fontsize=10, x=0.01, ha="left")
    save(pyplot, figure, args.out)


# ---- Speed compared with other programs

def draw_speed_of(pyplot, record, out):
    """Each program's tokens a second over PyTorch's, by model and precision."""
    from matplotlib.ticker import PercentFormatter

    # llm.c's fp32 trainer multiplies in tf32, so it has no bar among the fp32 programs.
    peers = [(peer, {name: row["tokens_per_second"] for name, row in peer["programs"].items()
                     if (name, peer["dtype"]) != ("llm.c", "fp32")}) for peer in record["peers"]]
    peers.sort(key=lambda entry: (["bf16", "tf32", "fp32"].index(entry[0]["dtype"]), len(entry[0]["model"]), entry[0]["model"]))
    figure, axis = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    width = 0.27
    for number, name in enumerate(("warpwright", "PyTorch", "llm.c")):
        for place, (_, speeds) in enumerate(peers):
            if name not in speeds:
                continue
            height, x = speeds[name] / speeds["PyTorch"], place + (number - 1) * width
            axis.bar(x, height, width * 0.94, color=COLOURS[number], label=None if name in axis.get_legend_handles_labels()[1] else name)
            axis.annotate(f"{speeds[name] / 1000:,.0f}k", (x, height), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axis.set_xticks(range(len(peers)), [f"{peer['model'].removeprefix('gpt2:')}, {peer['dtype']}, B={peer['batch']}" for peer, _ in peers])
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set(ylabel="tokens/s, PyTorch = 100 %", ylim=(0, 1.6), title=f"A training step of GPT-2, T={peers[0][0]['seq']}, {record['machine']}")
    axis.legend(ncols=3, loc="upper right")
    save(pyplot, figure, out)


# ---- The training step

# A block's operations in order, with what each saves for the backward, in tensors of the size (N, C).
BLOCK = [("norm", [("norm1", 1)]), ("matmul qkv", [("q", 1), ("k", 1), ("v", 1)]), ("attention", [("attention", 1)]),
         ("matmul attproj + residual", [("sum", 1)]), ("norm", [("norm2", 1)]),
         ("matmul fc + bias + GELU", [("before GELU", 4), ("after GELU", 4)]), ("matmul fcproj + residual", [("sum", 1)])]


def draw_step_of(pyplot, step, out):
    """A block and what it saves, and where the memory of a recorded step is."""
    layers, channels, vocabulary, context = 12, 768, 50304, 1024  # gpt2:124M
    tokens = step["batch"] * step["seq"]
    parameters = (vocabulary + context) * channels + layers * (12 * channels**2 + 13 * channels) + 2 * channels
    parts = [("weights, masters, gradients,\nAdamW's moments", 16 * parameters),
             ("saved by 12 blocks", 2 * 16 * tokens * channels * layers)]
    parts.append(("a chunk of logits, the backward's\nbuffers, statistics", step["planned_bytes"] - sum(size for _, size in parts)))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.4), width_ratios=[2, 1], layout="constrained")

    def boxed(x, y, width, height, colour, text):
        left.add_patch(pyplot.Rectangle((x, y), width, height, color=colour))
        left.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8.5)

    left.set(xlim=(0, 21), ylim=(-len(BLOCK) - 0.2, 1.1))
    left.axis("off")
    left.text(3.6, 0.45, "a block, forward", ha="center", fontweight="bold")
    left.text(7.4, 0.45, "saved for the backward", fontweight="bold")
    for row, (operation, saved) in enumerate(BLOCK):
        boxed(0.4, -row - 0.7, 6.4, 0.62, "#dde6ef", operation)
        if row + 1 < len(BLOCK):
            left.annotate("", (3.6, -row - 1.1), (3.6, -row - 0.68), arrowprops={"arrowstyle": "->", "color": "#555555"})
        x = 7.4
        for name, size in saved:
            boxed(x, -row - 0.7, size * 1.7 - 0.1, 0.62, "#f3d19c" if size > 1 else "#b5dcf4", name)
            x += size * 1.7
    left.text(7.4, -len(BLOCK) - 0.1, "a narrow box is a tensor of (N, C): 16 in all", fontsize=8.5, color="#555555")
    bottom = 0
    for number, (name, size) in enumerate(parts):
        right.bar(0, size / 2**30, 0.5, bottom=bottom, color=COLOURS[number], alpha=0.75)
        right.annotate(f"{name}: {size / 2**30:.1f} GiB", (0.29, bottom + size / 2**31), va="center", fontsize=8.5)
        bottom += size / 2**30
    right.set(xlim=(-0.35, 1.6), ylim=(0, bottom * 1.02), xticks=[], ylabel="GiB")
    right.set_title(f"{step['model']}, {step['dtype']}, B={step['batch']}, T={step['seq']}: {bottom:.1f} GiB planned", fontsize=10)
    right.spines["bottom"].set_visible(False)
    save(pyplot, figure, out)


# ---- Loss compared with another program's

def draw_curve(args):
    pyplot = load_pyplot()
    draw_curve_of(pyplot, read_json(args.record), args.out)


def draw_curve_of(pyplot, record, out):
    theirs = record["loss"]["PyTorch"]
    figure, (top, bottom) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5), height_ratios=[3, 2], layout="constrained")
    steps = range(1, len(theirs) + 1)
    top.plot(steps, theirs, color="#d95f02", linewidth=3, alpha=0.6, label="PyTorch")
    bottom.axhline(0, color="gray", linewidth=0.5)
    for name, colour in (("PyTorch, cuDNN", "#999999"), ("warpwright, tf32", "#7fb069"), ("warpwright", "#1b4f72")):
        if losses := record["loss"].get(name):
            top.plot(steps, losses, color=colour, linewidth=1, label=name)
            bottom.plot(steps, [a - b for a, b in zip(losses, theirs)], color=colour, linewidth=1)
    top.set(ylabel="training loss",
            title=f"{record['model']}, {record['dtype']}, {record['batch']} × {record['seq']} tokens a step, {record['machine']}")
    top.legend()
    bottom.set(ylabel="difference from PyTorch", xlabel="step")
    save(pyplot, figure, out)


# ---- Two optimizers

def draw_optimizers_of(pyplot, record, out):
    figure, axes = pyplot.subplots(figsize=(7, 3.8), layout="constrained")
    for name, label, colour in (("adamw", "AdamW", "#d95f02"), ("muon", "Muon, and AdamW for the rest", "#1b4f72")):
        for number, run in enumerate(run for run in record["runs"] if run["optimizer"] == name):
            steps, losses = zip(*run["validation"])
            axes.plot(steps, losses, color=colour, linewidth=1, label=None if number else label)
    axes.set(xlabel="step", ylabel="validation loss", ylim=(3, 7),
             title=f"{record['model']}, {record['dtype']}, {record['batch']} × {record['seq']} tokens a step, three seeds, {record['machine']}")
    axes.legend()
    save(pyplot, figure, out)


# ---- The figures of the docs

def draw_figures(args):
    pyplot, out, results = load_pyplot(), args.out, ROOT / "bench/results"

    def roofline(*words):
        command = [str(args.warpwright), "roofline", "--gpu", "H200", *map(str, words), "--json"]
        try:
            return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"plot.py: {error}; build it, or give --warpwright")

    record = read_json(results / "nvidia-h200.json")
    draw_curve_of(pyplot, read_json(results / "nvidia-h200-curve.json"), out / "loss-curve.svg")
    draw_speed_of(pyplot, record, out / "speed-h200.svg")
    draw_optimizers_of(pyplot, read_json(results / "nvidia-h200-muon.json"), out / "muon.svg")
    wanted = {"model": "gpt2:124M", "dtype": "bf16", "batch": 64, "optimizer": "adamw"}
    step = next(step for step in record["steps"] if wanted.items() <= step.items())
    draw_step_of(pyplot, step, out / "training-step.svg")
    draw_map_of(pyplot, roofline("--op", "forward", "--k", 3072, "--map"), out / "schedules-h200-3072.svg")
    draw_map_of(pyplot, roofline("--op", "dw", "--k", 65536, "--map"), out / "schedules-h200-dw-65536.svg")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(step, file)
        file.flush()
        draw_roofline_of(pyplot, roofline("--measured", file.name), out / "roofline-h200-step.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, work, what, default=None):
        added = commands.add_parser(name, help=what, description=what)
        if default:
            added.add_argument("--out", type=pathlib.Path, default=default, help=f"default: {default}")
        added.set_defaults(work=work)
        return added

    run = command("run", draw_runs, "loss, validation, learning rate, gradient norm and tokens/s of training runs, on one page", "run.svg")
    run.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="a folder from `warpwright train --out`, or its metrics.jsonl")
    for name, work, what in (("roofline", draw_roofline, "a roofline with measured points"),
                             ("map", draw_map, "the fastest schedule for each shape")):
        command(name, work, what, f"{name}.svg").add_argument("report", nargs="?", type=pathlib.Path, default="-",
                                                              help="JSON of `warpwright roofline`; default: standard input")
    timeline = command("timeline", draw_timeline, "when a block's groups multiply and when they store", "timeline.svg")
    timeline.add_argument("report", nargs="?", type=pathlib.Path, default="-",
                          help="JSON of `warpwright bench products --timeline`; default: standard input")
    curve = command("curve", draw_curve, "losses compared with PyTorch's, step by step", "curve.svg")
    curve.add_argument("record", type=pathlib.Path, help="a record from bench/peers/gpu_curve.py")
    figures = command("figures", draw_figures, "the figures of docs/ from bench/results")
    figures.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/figures", metavar="FOLDER", help="default: docs/figures")
    figures.add_argument("--warpwright", type=pathlib.Path, default=ROOT / "build/release/warpwright",
                         help="default: build/release/warpwright")
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
