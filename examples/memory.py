#!/usr/bin/env python3
"""Shows how the memory of a trainer grows with each way of reading random windows of one large file,
and what the mount itself takes: prints a table and a chart, and writes examples/memory.svg.

    make memory                          # in an environment with what this needs
    make memory MEMORY="--tokens FILE"   # your own file of 16-bit tokens, without a header

Exits with status 1 if a trainer that reads a mount, or the mount, grows by more than 8 MiB after the
first 1,000 batches, or if a map that is kept does not grow."""
import argparse
import json
import mmap
import pathlib
import signal
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS, LENGTH = 12, 1025  # as nanoGPT's batches of 12 times 1,024, and one token more for y
GIB, MIB = 1 << 30, 1 << 20
LEAST = 64 * MIB  # size of a file; the first batch alone can make 24 MiB of it resident
SHOWN = [1, 10, 100, 1000, 10_000]  # batches after which the table shows memory
MARKS = sorted({round(10 ** (n / 10)) for n in range(41)})  # those of the chart

WAYS = {
    "kept": "np.memmap, kept open",
    "recreated": "np.memmap, recreated for every batch",
    "advised": "np.memmap, kept, with madvise",
    "remap": 'a mount, access = "remap"',
    "advise": 'a mount, access = "advise"',
    "pread": 'a mount, access = "pread"',
}


def reader(way, path):
    """Returns a function that reads a batch."""
    if way not in ("kept", "recreated", "advised"):
        return lambda: open(path, "rb").read()
    tokens, rng = np.memmap(path, np.uint16, "r"), np.random.default_rng(0)
    if way == "advised":
        tokens._mmap.madvise(mmap.MADV_RANDOM)  # no readahead
        tokens._mmap.madvise(mmap.MADV_DONTDUMP)  # not in core dumps

    def read():
        nonlocal tokens
        if way == "recreated":
            tokens = np.memmap(path, np.uint16, "r")
        for start in rng.integers(0, len(tokens) - LENGTH, ROWS):
            np.array(tokens[start : start + LENGTH])
        if way == "advised":
            tokens._mmap.madvise(mmap.MADV_DONTNEED)  # the pages are not needed any more
    return read


def train(way, path):
    """Runs in the trainer: reads batches, and waits for a line at each mark."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ends with the process that measures it
    read, done = reader(way, path), 0
    for mark in MARKS:
        for _ in range(mark - done):
            read()
        done = mark
        print(mark, flush=True)
        if not sys.stdin.readline():
            return


def resident(pids):
    """Returns the anonymous and the file pages of processes that are resident, in MiB."""
    sums = {"Rss": 0, "Anonymous": 0}
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in sums:
                sums[name] += int(value.split()[0]) / 1024
    return sums["Anonymous"], sums["Rss"] - sums["Anonymous"]


def measure(way, path, pids):
    """Runs a trainer. Returns the memory that memory_profiler reports for it and for other processes at
    each mark, in MiB, and resident() of both at the marks that the table shows."""
    from memory_profiler import memory_usage

    curves, table = ([], []), ({}, {})
    with subprocess.Popen([sys.executable, __file__, "--train", way, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        for mark in MARKS:
            if trainer.stdout.readline().strip() != str(mark):
                sys.exit(f"the trainer that reads with {WAYS[way]} ended after less than {mark} batches")
            for curve, rows, processes in zip(curves, table, ([trainer.pid], pids)):
                curve.append(sum(memory_usage(pid)[0] for pid in processes))
                if mark in SHOWN:
                    rows[mark] = resident(processes)
            trainer.stdin.write("\n")
            trainer.stdin.flush()
    return curves, table


def run(path):
    """Yields the name of each series, its curve and its rows of the table."""
    import psutil
    sys.path.insert(0, str(ROOT / "python"))
    import batchfs

    for way, name in WAYS.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        if way in ("kept", "recreated", "advised"):
            (curve, _), (rows, _) = measure(way, path, [])
            yield way, name, curve, rows
            continue
        settings = {"splits.train.tokens": path, "splits.train.token_dtype": "uint16", "memory.access": way, "batch.batch_size": ROWS, "batch.block_size": LENGTH - 1}
        with batchfs.mount(config="/dev/null", set=settings) as mounted:
            status = json.loads(pathlib.Path(mounted.mountpoint, "status.json").read_text())
            supervisor = psutil.Process(status["pid"]).parent()
            processes = [supervisor.pid] + [child.pid for child in supervisor.children()]
            curves, tables = measure(way, f"{mounted.mountpoint}/train/next", processes)
        yield way, f"{name}: the trainer", curves[0], tables[0]
        yield way, f"{name}: the mount", curves[1], tables[1]


def chart(series, path):
    """Prints each curve as a line of blocks, and draws all of them."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "batchfs", "font.family": "sans-serif"})
    import matplotlib.pyplot as plt

    most = max(max(curve) for _, _, curve, _ in series)
    print(f"\nResident memory from batch 1 to batch {MARKS[-1]:,}, up to {most:,.0f} MiB:\n")
    for _, name, curve, _ in series:
        print("".join("▁▂▃▄▅▆▇█"[min(int(value / most * 8), 7)] for value in curve), f" {name}")

    figure, axes = plt.subplots(figsize=(8, 4.5))
    colors = {"kept": "#d55e00", "recreated": "#0072b2", "advised": "#56b4e9", "remap": "#009e73", "advise": "#cc79a7", "pread": "#7f7f7f"}
    for way, name, curve, _ in series:
        axes.plot(MARKS, curve, label=name, color=colors[way], linestyle="--" if name.endswith("the mount") else "-", linewidth=2.5 if way == "kept" else 1.5)
    axes.set(xscale="log", xlabel="batches read", ylabel="resident memory, MiB", title="Random batches of one large file")
    axes.set_ylim(bottom=0)
    axes.set_xticks(SHOWN, [f"{mark:,}" for mark in SHOWN])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def size_of(tokens):
    """Returns the size of the file that --tokens names, or says why it cannot show anything."""
    try:
        with open(tokens, "rb") as file:
            size = file.seek(0, 2)
    except OSError as e:
        sys.exit(f"--tokens: {tokens}: {e.strerror}")
    if size % 2:
        sys.exit(f"--tokens: {tokens} has an odd number of bytes, so it has no 16-bit tokens")
    if size < LEAST:
        sys.exit(f"--tokens: {tokens} has {size / MIB:.1f} MiB; only with {LEAST // MIB} or more can one see memory grow")
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", help="a file of 16-bit tokens without a header (default: one of 2 GiB that this makes)")
    parser.add_argument("--svg", default=ROOT / "examples/memory.svg", help="where to write the picture")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    o = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")  # the locale's encoding may lack the bars
    if o.train:
        return train(*o.train)
    size = size_of(o.tokens) if o.tokens else 2 * GIB
    if not (directory := pathlib.Path(o.svg).resolve().parent).is_dir():
        sys.exit(f"--svg: there is no directory {directory}")
    import psutil

    free, made = psutil.virtual_memory().available, None
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        if not o.tokens:
            while free < 2 * size and size > LEAST:
                size //= 2
            if size < 2 * GIB:
                print(f"{free / GIB:.1f} GiB of memory are free, so the file has {size / GIB:g} GiB instead of 2: it should fit into half of the memory")
            (ROOT / "demo").mkdir(exist_ok=True)
            made = ROOT / "demo/memory.bin"
            block = np.random.default_rng(0).integers(0, 50_000, LEAST // 2, np.uint16).tobytes()
            try:
                with open(made, "wb") as file:
                    for _ in range(size // len(block)):
                        file.write(block)
            except OSError as e:
                sys.exit(f"{made}: {e.strerror}; --tokens names a file of your own")
            o.tokens = made
        elif free < 2 * size:
            print(f"{free / GIB:.1f} GiB of memory are free, less than twice the size of {o.tokens} ({size / GIB:.1f} GiB): the kernel may reclaim pages, so curves rise less")
        series = list(run(str(pathlib.Path(o.tokens).resolve())))
    finally:
        if made:
            made.unlink(missing_ok=True)

    print("\nResident memory in MiB, anonymous + file pages, after batches:\n")
    width = max(len(name) for _, name, _, _ in series)
    print(" " * width, *(f"{mark:>12,}" for mark in SHOWN))
    for _, name, _, rows in series:
        print(name.ljust(width), *(f"{anonymous:>5.0f} +{file:>5.0f}" for anonymous, file in rows.values()))
    chart(series, o.svg)
    print(f"\nThe picture is {o.svg}.")

    failed = False
    for way, name, curve, _ in series:
        grown = curve[-1] - curve[MARKS.index(1000)]
        if way in ("remap", "advise", "pread") and grown > 8:
            print(f"FAILED: {name}: grew by {grown:.0f} MiB after the first 1,000 batches, more than 8")
            failed = True
        if way == "kept" and curve[-1] < curve[0] + min(size, GIB) / MIB / 4:
            print(f"FAILED: {name}: grew by only {curve[-1] - curve[0]:.0f} MiB, so this shows nothing; is the memory of this machine limited?")
            failed = True
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
