"""Computes batches as docs/orders.md defines them, with NumPy alone.

    reference.py SETTINGS.json K...            prints a line for each batch number K:
    reference.py SETTINGS.json --count N       `<k> <sha256 of the raw batch> <start of every row>`
    reference.py SETTINGS.json --fingerprint   prints the fingerprint of the files
    reference.py --selftest                    checks itself with published numbers, PyTorch's
                                               numbers, and the golden file

A start is always an index into the concatenation of all files.
The Go code is tested against this program, so never port code from there to here.
"""

import hashlib
import json
import os
import sys
import tempfile
from bisect import bisect_right
from fractions import Fraction
from functools import cache
from itertools import accumulate
from math import lcm

import numpy as np

DEFAULTS = {
    "files": [], "sources": [], "arrays": [], "join": False, "token_dtype": "uint16", "shape": [], "split": "train",
    "batch_size": 12, "block_size": 1024, "dtype": "native", "layout": "xy",
    "order": "random", "seed": 1337, "torch_state": "", "rank": 0, "world": 1,
    "shuffle_block": 0, "local_world": 1,
    "stages": [], "only": 0,  # only is 1 + the number of the source in source=NAME
    "eot": None, "documents": False, "mask_targets": False, "ignore_index": -100,
}
TYPES = {
    "bool": "|b1", "uint8": "|u1", "int8": "|i1", "uint16": "<u2", "int16": "<i2", "uint32": "<u4", "int32": "<i4",
    "uint64": "<u8", "int64": "<i8", "float16": "<f2", "float32": "<f4", "float64": "<f8",
    "bfloat16": "<u2",  # NumPy has no bfloat16
}
WIDE_FROM = {"torch": 2**28, "torch-2.6": 2**32}  # smallest n for which a draw takes 64 bits
U64 = 2**64


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % U64
    return h


def philox(key, *counter):
    """Returns the four words of the block of Philox4x64-10 at a counter of up to four words.

    For NumPy, key and counter are integers whose lowest 64 bits are word 0. NumPy increments the
    counter before its first block, hence the -1.
    """
    counter = sum(word * U64**i for i, word in enumerate(counter))
    return np.random.Philox(key=key, counter=(counter - 1) % U64**4).random_raw(4).tolist()


def uniform(n, key, s):
    """Draws the start of row s from [0, n) with Lemire's method."""
    attempt = 0
    while True:
        for w in philox(key, s, attempt):
            if w * n % U64 >= U64 % n:
                return w * n >> 64
        attempt += 1


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % U64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % U64
    return z ^ z >> 31


def permute(r, key, epoch, i, stream=0):
    """Returns which of r windows is the i-th of an epoch."""
    keys = [word for block in range(3) for word in philox(key, epoch, block, stream, 1)]
    bits = max(8, (r - 1).bit_length())
    low = bits - bits // 2
    while True:
        left, right = i >> low, i % 2**low
        for n in range(10):
            if n % 2 == 0:
                left ^= mix(right ^ keys[n]) % 2 ** (bits // 2)
            else:
                right ^= mix(left ^ keys[n]) % 2**low
        i = left << low | right
        if keys[10] % 2 == 1 and i < 2:
            i = 1 - i
        if i < r:
            return i


MIXED = 16  # blocks that are shuffled together


def shuffled(r, size, key, s):
    """Returns which of r rows is row s, if blocks of size rows are shuffled."""
    epoch, i = divmod(s, r)
    whole, span = r // size, MIXED * size
    number = i // span
    i = number * span + permute(min(span, r - number * span), key, epoch, i % span, stream=number + 1)
    block, rest = divmod(i, size)
    if block < whole:
        block = permute(whole, key, epoch, block)
    begin = philox(key, epoch, 2, 0, 1)[3] * r >> 64
    return (block * size + rest + begin) % r


# Integers stand for polynomials over the field of two elements: bit i is the coefficient of x^i.

DEGREE = 19937  # degree of the characteristic polynomial of mt19937


@cache
def lower_terms():
    """Returns the exponents of the characteristic polynomial except DEGREE.

    See appendix A of Matsumoto and Nishimura, "Mersenne Twister" (1998), with w = 32 and r = 31.
    """
    def times(p, n, m):
        """Returns p times x^n + x^m."""
        return p << n ^ p << m

    power, p = 1, 0  # power of x^623 + x^396
    for i in reversed(range(31)):
        p ^= times(power, 624, 397) * (0x9908B0DF >> i & 1)
        power = times(power, 623, 396)
    p ^= times(power, 624, 397) ^ 0x9908B0DF >> 31
    return [i for i in range(DEGREE) if p >> i & 1]


@cache
def power_of_x(n):
    """Returns x^n modulo the characteristic polynomial."""
    p = 1
    for bit in f"{n:b}":
        square = int(f"{p:b}".replace("0", "00").replace("1", "01"), 2)
        p = square << int(bit)
        while high := p >> DEGREE:
            p %= 1 << DEGREE
            for i in lower_terms():
                p ^= high << i
    return p


class Mersenne:
    """The mt19937 generator, seeded and read like PyTorch's on a CPU."""

    def __init__(self, seed=0, state_file=""):
        if state_file:
            # torch.get_rng_state() returns at::mt19937_data_pod: seed u64, left i32, seeded i32,
            # next u64, and 624 words as u64. The generator makes new words after left-1 draws.
            with open(state_file, "rb") as f:
                raw = f.read()
            left = int.from_bytes(raw[8:12], "little")
            words = np.frombuffer(raw, "<u8", 624, offset=24)
        else:
            left, words = 1, [seed % 2**32]
            for i in range(1, 624):
                words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + i) % 2**32)
        self.state = {"key": np.array(words, np.uint32), "pos": 625 - left}

    def words(self, first, count):
        """Returns words first to first+count-1."""
        bits = np.random.MT19937()
        bits.state = {"bit_generator": "MT19937", "state": self.state}
        if first < 2**25:
            bits.random_raw(first, output=False)
            return bits.random_raw(count).tolist()
        # The words are a linear recurrence. If x^first is the sum of x^i for some set of i, modulo
        # the characteristic polynomial, then word first+j is the exclusive or of the words i+j.
        chosen = np.frombuffer(f"{power_of_x(first):0{DEGREE}b}".encode(), np.uint8)[::-1] == ord("1")
        near = bits.random_raw(DEGREE + count)
        return [int(np.bitwise_xor.reduce(near[j : j + DEGREE][chosen])) for j in range(count)]

    def randint(self, n, first, count, wide_from):
        """Returns draws first to first+count-1 from [0, n), of two words each if n >= wide_from."""
        if n < wide_from:
            return [w % n for w in self.words(first, count)]
        words = self.words(2 * first, 2 * count)
        return [(high << 32 | low) % n for high, low in zip(words[::2], words[1::2])]


def decimal(weight):
    """Returns the shortest decimal number that parses as this float."""
    return Fraction(repr(float(weight)))


def shares(weights):
    """Returns the number of rows of each source in a period."""
    parts = [w / sum(weights) for w in weights]
    period = lcm(*(p.denominator for p in parts))
    if period <= 2**20:
        return [int(p * period) for p in parts]
    exact = [p * 2**20 for p in parts]
    rounded = [int(e) for e in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: rounded[i] - exact[i])
    for i in by_remainder[: 2**20 - sum(rounded)]:
        rounded[i] += 1
    if any(e and not r for e, r in zip(exact, rounded)):
        raise ValueError("a weight is too small")
    return rounded


class Mixture:
    def __init__(self, weights):
        self.shares = shares(weights)
        period = sum(self.shares)
        have = [0] * len(self.shares)
        self.period = []  # each row's source, and the number of earlier rows of that source
        for n in range(period):
            due = [(-(-(c + 1) * period // a), i) for i, (c, a) in enumerate(zip(have, self.shares))
                   if a and c * period < (n + 1) * a]
            _, source = min(due)
            self.period.append((source, have[source]))
            have[source] += 1

    def place(self, n):
        """Returns the source of global row n, and the number of the row within that source."""
        periods, rest = divmod(n, len(self.period))
        source, before = self.period[rest]
        return source, periods * self.shares[source] + before

    def count(self, source, n):
        """Returns how many of the first n rows come from a source."""
        periods, rest = divmod(n, len(self.period))
        return periods * self.shares[source] + sum(i == source for i, _ in self.period[:rest])

    def row_of(self, source, index):
        """Returns the global row that is row number index of a source."""
        periods, before = divmod(index, self.shares[source])
        return periods * len(self.period) + self.period.index((source, before))


class Schedule:
    """The stages of a split. limits has the most rows of each source, or None."""

    def __init__(self, settings, weights, limits):
        stages = [{"weights": stage["weights"], "from": max(stage.get("from_row", 0), -(-stage.get("from_tokens", 0) // settings.block_size))}
                  for stage in settings.stages] or [{"weights": weights, "from": 0}]
        hosts = settings.world // settings.local_world if settings.shuffle_block else 1
        firsts = [-(-stage["from"] // hosts) for stage in stages]
        stages = [[decimal(w) for w in stage["weights"]] for stage in stages]
        if settings.only:
            firsts, stages = [0], [[Fraction(i + 1 == settings.only) for i in range(len(limits))]]
        # Each stage has its first row, its mixture, and the earlier rows by source.
        self.stages, self.end = [], None
        row, before = 0, [0] * len(limits)
        for weights, following in zip(stages, [*firsts[1:], None]):
            while row != following:
                left = [w * (b != limit) for w, b, limit in zip(weights, before, limits)]
                if not any(left):
                    self.end = row
                    return
                mixture = Mixture(left)
                self.stages.append((row, mixture, before))
                stops = [row + mixture.row_of(i, limit - before[i] - 1) + 1 for i, limit in enumerate(limits) if limit is not None and left[i]]
                stops += [] if following is None else [following]
                if not stops:
                    return
                before = [b + mixture.count(i, min(stops) - row) for i, b in enumerate(before)]
                row = min(stops)

    def place(self, s):
        """Returns the source of row s, and the number of the row within that source."""
        first, mixture, before = self.stages[bisect_right(self.stages, s, key=lambda stage: stage[0]) - 1]
        source, index = mixture.place(s - first)
        return source, before[source] + index


class Source:
    """The rows of one source, in the order of the split."""

    def __init__(self, name, lengths, begin, settings):
        self.order = settings.order
        if settings.join:
            lengths = [sum(lengths)]
        # size is the number of elements in a row, step that from one disjoint row to the next.
        size, step = (1, 1) if settings.layout == "rows" else (settings.block_size + 1, settings.block_size)
        if max(lengths) < size:
            raise ValueError("no file has block_size + 1 tokens")
        self.key = settings.seed % U64 + U64 * fnv1a(name.encode())
        self.rows = sum((n - size) // step + 1 for n in lengths)  # in an epoch
        # self.choices has the number of positions or windows before each file, and in all files;
        # self.begins has where each file begins.
        if self.order == "random":
            self.step, choices = 1, [max(n - size + 1, 0) for n in lengths]
        else:
            self.step, choices = step, [(n - size) // step + 1 for n in lengths]
        self.choices = [0, *accumulate(choices)]
        self.begins = list(accumulate(lengths, initial=begin))

    def start(self, s):
        """Returns the start of row s."""
        n = self.choices[-1]
        if self.order == "random":
            return self.locate(uniform(n, self.key, s))
        if self.order == "shuffle":
            return self.locate(permute(n, self.key, s // n, s % n))
        return self.locate(s % n)

    def locate(self, choice):
        """Returns the position of a choice. Neighboring choices in a file are step tokens apart."""
        f = bisect_right(self.choices, choice) - 1
        return self.begins[f] + (choice - self.choices[f]) * self.step


class Share:
    """The rows of one source that a host reads, with shuffle_block."""

    def __init__(self, name, files, begin, settings, host):
        hosts = settings.world // settings.local_world
        block, lengths = settings.shuffle_block, [len(f) for f in files]
        width = files[0].dtype.itemsize * int(np.prod(files[0].shape[1:], dtype=int))
        size, self.step = (1, 1) if settings.layout == "rows" else (settings.block_size + 1, settings.block_size)

        def cut(h):
            """Returns where host h-1's part ends and host h's begins, in elements of all files."""
            element, f = h * sum(lengths) // hosts, 0
            if h in (0, hosts):
                return element, element
            while element >= lengths[f]:
                element, f = element - lengths[f], f + 1
            first, last = files[f].offset, files[f].offset + lengths[f] * width
            places = [first, *(b for b in range(0, last, block) if b > first), last]
            best = min(places, key=lambda place: abs(place - (first + element * width))) - first
            return sum(lengths[:f]) + best // width, sum(lengths[:f]) - (-best // width)

        start, stop = cut(host)[1], cut(host + 1)[0]
        self.windows = []
        for i, n in enumerate([sum(lengths)] if settings.join else lengths):
            before = sum(lengths[:i])
            self.windows += range(begin + max(before, start), begin + min(before + n, stop) - size + 1, self.step)
        if not self.windows:
            raise ValueError(f"no row for host {host}")
        self.key = settings.seed % U64 + U64 * fnv1a(f"{name}/host{host}".encode())
        self.size = min(max(block // (self.step * width), 1), len(self.windows))

    def start(self, s):
        """Returns the start of row s of the host."""
        return self.windows[shuffled(len(self.windows), self.size, self.key, s)]


def read(paths, dtype, shape):
    """Returns the arrays in .npy files, or in files that are only elements of a shape."""
    return [np.load(f, mmap_mode="r") if f.endswith(".npy") else np.memmap(f, TYPES[dtype], mode="r").reshape(-1, *shape)
            for f in paths]


def joined(arrays):
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class Sequence:
    def __init__(self, **settings):
        if unknown := settings.keys() - DEFAULTS.keys():
            raise ValueError(f"unknown settings: {sorted(unknown)}")
        self.__dict__.update(DEFAULTS | settings)
        self.hash_all = False  # whether line also hashes the other arrays
        if self.order not in ("random", "sequential", "shuffle", *WIDE_FROM):
            raise ValueError(f"no reference for order {self.order}")
        if self.layout not in ("xy", "tokens", "rows"):
            raise ValueError(f"no reference for layout {self.layout}")

        sources = self.sources or [{"files": self.files, "arrays": self.arrays, "weight": 1}]
        self.main_paths = [path for source in sources for path in source["files"]]
        files = read(self.main_paths, self.token_dtype, self.shape)
        self.tokens = joined(files)
        self.type = self.tokens.dtype if self.dtype == "native" else np.dtype(TYPES[self.dtype])
        if self.type != self.tokens.dtype:
            limits = np.iinfo(self.type)
            least, most = int(self.tokens.min()), int(self.tokens.max())
            if least < limits.min or most > limits.max:
                raise ValueError(f"{least} or {most} does not fit {self.type}")
        # aligned holds the aligned arrays, and paths all files in the order of the fingerprint.
        self.aligned, self.paths = [], []
        for source in sources:
            self.paths += source["files"] + [path for b in source.get("arrays", []) for path in b["files"]]
        for alike in zip(*(source.get("arrays", []) for source in sources)):
            whole = joined([a for b in alike for a in read(b["files"], b.get("dtype", "uint16"), b.get("shape", []))])
            if len(whole) != len(self.tokens):
                raise ValueError(f"{alike[0]['name']} has {len(whole)} elements for {len(self.tokens)} tokens")
            self.aligned.append((alike[0]["name"], alike[0].get("at", "y"), whole))

        lengths, begin, self.orders, self.ends, limits = [len(f) for f in files], 0, [], [], []
        self.mixed = len(sources) > 1 or bool(self.stages)
        for i, source in enumerate(sources):
            own, lengths = lengths[: len(source["files"])], lengths[len(source["files"]) :]
            name = f"{self.split}/{i}" if self.mixed else self.split
            if self.shuffle_block:
                shares = [Share(name, files[: len(own)], begin, self, host) for host in range(self.world // self.local_world)]
                self.orders.append(shares[self.rank // self.local_world])
                least = min(len(share.windows) for share in shares)
            else:
                self.orders.append(Source(name, own, begin, self))
                least = self.orders[-1].rows
            epochs = source.get("max_epochs", 0)
            limits.append(int(decimal(epochs) * least) if epochs else None)
            files = files[len(own) :]
            begin += sum(own)
            self.ends.append(begin)
        self.schedule = Schedule(self, [source.get("weight", 1) for source in sources], limits)

        if self.order in WIDE_FROM:
            if len(self.main_paths) > 1 and not self.join or len(sources) > 1:
                raise ValueError("torch draws from one array")
            if self.torch_state and self.world > 1:
                raise ValueError("torch_state needs world = 1")
            self.generator = Mersenne(self.seed + self.rank, self.torch_state)

    def starts(self, k):
        """Returns the starts of the rows of batch k."""
        if self.order in WIDE_FROM:
            n = len(self.tokens) - (0 if self.layout == "rows" else self.block_size)
            return self.generator.randint(n, k * self.batch_size, self.batch_size, WIDE_FROM[self.order])
        rank, world = (self.rank % self.local_world, self.local_world) if self.shuffle_block else (self.rank, self.world)
        first = (k * world + rank) * self.batch_size
        rows = range(first, first + self.batch_size)
        if rows.stop > U64:
            raise ValueError("a row's number needs more than 64 bits")
        if self.schedule.end is not None and (k + 1) * world * self.batch_size > self.schedule.end:
            raise ValueError(f"batch {k} is after the end")
        places = [self.schedule.place(s) for s in rows]
        return [self.orders[source].start(s) for source, s in places]

    def arrays_of(self, k):
        """Returns the starts of batch k, and its arrays by name, the main ones first."""
        starts = self.starts(k)
        begin, t = np.array(starts)[:, None], self.block_size
        if self.layout == "rows":
            arrays = {"rows": self.tokens[starts].astype(self.type)}
            x = y = np.zeros(1, int)
        else:
            x, y = np.arange(t), np.arange(t) + 1
            rows = self.tokens[begin + np.arange(t + 1)].astype(self.type)
            arrays = {"tokens": rows} if self.layout == "tokens" else {"x": rows[:, :-1], "y": rows[:, 1:].copy()}
        for name, where, array in self.aligned:
            arrays[name] = array[begin + (x if where == "x" else y)]
            if self.layout == "rows":
                arrays[name] = arrays[name][:, 0]
        if isinstance(self.mask_targets, str):
            arrays["y"][arrays[self.mask_targets] == 0] = self.ignore_index
        if self.eot is not None and (self.documents or self.mask_targets):
            last = self.tokens[begin + x] == self.eot  # the token ends a document
            if self.mask_targets:
                arrays["y"][last] = self.ignore_index
            if self.documents:
                arrays["cu_seqlens"] = np.full((self.batch_size, t + 1), t, np.int32)
                arrays["positions"] = np.empty((self.batch_size, t), np.int32)
                for j, row in enumerate(last):
                    begins = [0, *(i + 1 for i in np.flatnonzero(row[:-1]).tolist())]
                    arrays["cu_seqlens"][j, : len(begins)] = begins
                    arrays["positions"][j] = [i - begins[bisect_right(begins, i) - 1] for i in range(t)]
        if self.mixed:
            arrays["source"] = np.array([bisect_right(self.ends, start) for start in starts], np.int16)
        return starts, arrays

    def batch(self, k):
        """Returns the starts and the raw bytes of batch k: x and y, tokens, or rows."""
        starts, arrays = self.arrays_of(k)
        return starts, b"".join(arrays[name].tobytes() for name in ("x", "y", "tokens", "rows") if name in arrays)

    def line(self, k):
        starts, raw = self.batch(k)
        if self.hash_all:
            arrays = self.arrays_of(k)[1]
            raw += b"".join(arrays[name].tobytes() for name in sorted(arrays) if name not in ("x", "y", "tokens", "rows"))
        return f"{k} {hashlib.sha256(raw).hexdigest()} {','.join(map(str, starts))}"

    def fingerprint(self):
        h = hashlib.sha256()
        n = max(2, 64 // len(self.paths))
        for path in self.paths:
            with open(path, "rb") as f:
                raw = f.read()
            h.update(os.path.basename(path).encode() + b"\0" + len(raw).to_bytes(8, "little"))
            if len(raw) > n * 4096:
                raw = b"".join(raw[(len(raw) - 4096) * i // (n - 1) :][:4096] for i in range(n))
            h.update(raw)
        return h.hexdigest()[:32]


def golden(path):
    """Checks a golden file.

    Each token in its cases is the token's position in all files together. Elements of the n-th array
    are n+1 larger.
    """
    with open(path) as f:
        cases = json.load(f)
    for number, case in enumerate(cases):
        with tempfile.TemporaryDirectory() as directory:

            def file(name, begin, n, settings, dtype, more=0):
                """Writes a file of n consecutive elements that begins with begin."""
                numbers = int(np.prod(settings.get("shape", []), dtype=int))
                width = np.dtype(TYPES[dtype]).itemsize
                name = os.path.join(directory, f"{name}.bin")
                (np.arange(begin * numbers, (begin + n) * numbers) + more).astype(f"<u{width}").tofile(name)
                return name

            begin, arrays = 0, case.pop("arrays", [])
            for part in case.get("sources", [case]):
                first = begin
                for i, n in enumerate(part["files"]):
                    part["files"][i] = file(begin, begin, n, case, case["token_dtype"])
                    begin += n
                part["arrays"] = [a | {"files": [file(f"{a['name']}{first}", first, begin - first, a, a["dtype"], n + 1)]}
                                  for n, a in enumerate(arrays)]
            if "torch_state" in case:
                case["torch_state"] = os.path.join(os.path.dirname(path), case["torch_state"])
            lines = case.pop("batches")
            sequence = Sequence(**case)
            sequence.hash_all = bool(arrays) or sequence.documents
            for want in lines:
                got = sequence.line(int(want.split()[0]))
                assert got == want, f"case {number}: got\n{got}\nwant\n{want}"


def torch(path):
    """Checks the draws against PyTorch's."""
    with open(path) as f:
        draws = json.load(f)
    for order in WIDE_FROM:
        for case in draws[order]["cases"]:
            for number, want in enumerate(case["calls"]):
                n = case["n"]
                assert Mersenne(case["seed"]).randint(case["range"], number * n, n, WIDE_FROM[order]) == want, f"{order}: {case}"
        for case in draws[order]["checksums"]:
            got = Mersenne(case["seed"]).randint(case["range"], 0, case["calls"] * case["n"], WIDE_FROM[order])
            assert hashlib.sha256(np.array(got, "<i8")).hexdigest() == case["sha256_of_int64_le"]


def selftest():
    # Known answers published with Random123 (kat_vectors, "philox4x64 10").
    assert philox(0) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert philox(2**128 - 1, *4 * [U64 - 1]) == [
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0]
    # Published test vectors.
    assert fnv1a(b"") == 0xCBF29CE484222325 and fnv1a(b"foobar") == 0x85944171F73967E8
    # For n = 2^63 + 1, Lemire's method rejects almost half of the words. Some rows need two blocks.
    n, second = 2**63 + 1, 0
    for s in range(200):
        words = [word for attempt in range(4) for word in philox(5, s, attempt)]
        accepted = [i for i, w in enumerate(words) if w * n % U64 >= U64 % n]
        assert uniform(n, 5, s) == words[accepted[0]] * n >> 64
        second += accepted[0] >= 4
    assert second > 0
    # The first number of SplitMix64 with the seed 0.
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    # Every epoch has each window exactly once.
    for r in (1, 2, 3, 255, 257, 1000):
        assert sorted(permute(r, 5, 7, i) for i in range(r)) == list(range(r))
    # The first words of mt19937ar with its default seed, and its 10,000th from the C++ standard.
    mersenne = Mersenne(5489)
    assert mersenne.words(0, 2) == [3499211612, 581869302] and mersenne.words(9999, 1) == [4123659995]
    # Jumping ahead gives the words that NumPy reaches step by step.
    bits = np.random.MT19937()
    bits.state = {"bit_generator": "MT19937", "state": mersenne.state}
    bits.random_raw(2**25 + 12345, output=False)
    assert mersenne.words(2**25 + 12345, 3) == bits.random_raw(3).tolist()
    # Among the first n rows, for any n, the number of rows of each source is exact to within one.
    for weights in ([7, 2, 1], [0.7, 0.3], [1, 1, 1], [97, 2, 1, 50, 50]):
        mixture, have = Mixture(list(map(decimal, weights))), [0] * len(weights)
        total = sum(mixture.shares)
        for n in range(3 * len(mixture.period)):
            source, index = mixture.place(n)
            assert index == have[source]
            have[source] += 1
            assert all(abs(c - (n + 1) * w / total) < 1 for w, c in zip(mixture.shares, have))
    # Shares of periods over 2^20 rows are rounded; the first of equal remainders is rounded up.
    assert shares(list(map(Fraction, [1000000, 1000000, 97154]))) == [500000, 499999, 48577]

    testdata = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../sampler/testdata")
    torch(os.path.join(testdata, "torch_randint.json"))
    golden(os.path.join(testdata, "golden.json"))


def main(args):
    if args == ["--selftest"]:
        selftest()
        print("ok")
        return
    if len(args) < 2:
        sys.exit("usage: reference.py SETTINGS.json {K... | --count N | --fingerprint} | --selftest")
    with open(args[0]) as f:
        sequence = Sequence(**json.load(f))
    if args[1] == "--fingerprint":
        print(sequence.fingerprint())
        return
    for k in range(int(args[2])) if args[1] == "--count" else map(int, args[1:]):
        print(sequence.line(k))


if __name__ == "__main__":
    main(sys.argv[1:])
