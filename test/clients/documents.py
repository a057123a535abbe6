"""Computes batches with documents as docs/orders.md defines them, with NumPy alone.

    documents.py --make DIR SEED       writes random token files, their document indexes,
                                       config.toml, and settings.json for --check
    documents.py --check DIR MOUNT     compares a mount of DIR/config.toml, byte by byte
    documents.py --golden FILE         checks a golden file

The Go code is tested against this program, so never port code from there to here.
"""

import hashlib
import json
import os
import random
import sys
import tempfile

import numpy as np

from reference import Schedule, Source, U64, decimal, fnv1a, shuffled, uniform

GROUP = 4096  # documents that are packed together
NUMPY = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8", "float16": "<f2"}


def cut(begin, end, t, too_long):
    """Returns the pieces of a document, each a (first token, length)."""
    if end - begin <= t + 1:
        return [(begin, end - begin)][:end - begin]
    if too_long == "drop":
        return []
    if too_long == "truncate":
        return [(begin, t + 1)]
    return [(at, min(t + 1, end - at)) for at in range(begin, end - 1, t)]


def pack(pieces, size):
    """Packs pieces into rows of `size` positions, by best fit decreasing."""
    rows, rooms = [], {}  # rooms maps numbers of free positions to rows, the last changed row last
    for piece in sorted(pieces, key=lambda piece: -piece[1]):
        room = min((r for r in rooms if r >= piece[1] and rooms[r]), default=None)
        if room is None:
            room, row = size, len(rows)
            rows.append([])
        else:
            row = rooms[room].pop()
        rows[row].append(piece)
        rooms.setdefault(room - piece[1], []).append(row)
    return sorted(sorted(row) for row in rows)


def rows_of(kind, ends, t, too_long):
    """Returns all rows of a source and its number of document groups."""
    begins, rows = [0, *ends[:-1]], []
    for g in range(0, len(ends), GROUP):
        documents = [cut(b, e, t, too_long) for b, e in zip(begins[g:g + GROUP], ends[g:g + GROUP])]
        if kind == "document-first":
            rows += [[pieces[0]] for pieces in documents if pieces]
        elif kind == "document":
            rows += [[piece] for pieces in documents for piece in pieces]
        else:
            rows += pack([piece for pieces in documents for piece in pieces], t + 1)
    return rows, -(-len(ends) // GROUP)


class Sequence:
    def __init__(self, split, sources, batch_size, block_size, dtype, layout, order, seed, rank, world, rows, documents, mask_targets,
                 eot=None, bos=None, ignore_index=-100, arrays=(), join=False, stages=(), only=0, too_long="cut", document_numbers=False):
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})
        self.shuffle_block, self.mixed = 0, len(sources) > 1 or bool(stages)
        self.each, limits = [], []
        for i, source in enumerate(sources):
            files = [np.fromfile(path, NUMPY[source["token_dtype"]]) for path in source["tokens"]]
            begins = np.cumsum([0, *map(len, files)])
            if documents == "files":
                ends = begins[1:].tolist()
            elif not any(os.path.exists(path + ".index") for path in source["tokens"]):
                ends = None  # documents end after eot
            else:
                ends = [int(end + begin) for path, begin in zip(source["tokens"], begins) for end in np.fromfile(path + ".index", "<u8")]
            name = f"{split}/{i}" if self.mixed else split
            one = {"token_dtype": source["token_dtype"], "tokens": np.concatenate(files), "ends": ends, "begins": {0, *(ends or ())}, "key": seed % U64 + U64 * fnv1a(name.encode())}
            if rows == "windows":
                one["order"] = Source(name, [len(f) for f in files], 0, self)
            else:
                one["rows"], one["groups"] = rows_of(rows, ends, block_size, too_long)
            epochs = source.get("max_epochs", 0)
            limits.append(int(decimal(epochs) * (one["order"].rows if rows == "windows" else len(one["rows"]))) if epochs else None)
            for a in arrays:
                raw = np.concatenate([np.fromfile(path, NUMPY[a["dtype"]]) for path in source["arrays"][a["name"]]])
                one[a["name"]] = raw.reshape(-1, *a["shape"])
            self.each.append(one)
        self.schedule = Schedule(self, [source["weight"] for source in sources], limits)

    def row(self, s):
        """Returns the source of global row s, and arrays of positions, pieces and documents of its tokens.

        A piece is the part of a document in the row. Padding has -1 in all of them, and a token that
        bos replaces has position -1.
        """
        t = self.block_size
        i, s = self.schedule.place(s)
        source = self.each[i]
        if self.rows == "windows":
            places = source["order"].start(s) + np.arange(t + 1)
            if source["ends"] is None:
                after = source["tokens"][places] == self.eot
                return i, places, np.cumsum([0, *after[:-1]]), None
            document = np.searchsorted(source["ends"], places, "right")
            return i, places, document, document
        r = len(source["rows"])
        number = {"random": lambda: uniform(r, source["key"], s), "sequential": lambda: s % r,
                  "shuffle": lambda: shuffled(r, -(-r // source["groups"]), source["key"], s)}[self.order]()
        places, piece, document, at = np.full(t + 1, -1), np.full(t + 1, -1), np.full(t + 1, -1), 0
        for n, (begin, length) in enumerate(source["rows"][number]):
            places[at:at + length], piece[at:at + length] = begin + np.arange(length), n
            document[at:at + length] = np.searchsorted(source["ends"], begin, "right")
            if self.bos is not None and begin not in source["begins"]:
                places[at] = -1
            at += length
        return i, places, piece, document

    def batch(self, k):
        """Returns the arrays of batch k by name."""
        t, first = self.block_size, (k * self.world + self.rank) * self.batch_size
        rows = [self.row(s) for s in range(first, first + self.batch_size)]
        out = {}

        def put(name, dtype, row):
            out.setdefault(name, []).append(np.asarray(row).astype(dtype))

        for i, places, piece, document in rows:
            source, there = self.each[i], places >= 0
            dtype = NUMPY[source["token_dtype"] if self.dtype == "native" else self.dtype]
            padding = (self.eot or 0) if self.bos is None else self.bos
            tokens = np.where(there, source["tokens"][places].astype(np.int64), padding)
            begins = [0, *(np.flatnonzero(np.diff(piece)) + 1)]
            if self.layout == "tokens":
                put("tokens", dtype, tokens)
            else:
                y = tokens[1:].copy()
                if self.mask_targets:
                    y[(np.diff(piece) != 0) | ~there[1:]] = self.ignore_index
                if isinstance(self.mask_targets, str):
                    y[~there[1:] | (source[self.mask_targets][places[1:]] == 0)] = self.ignore_index
                put("x", dtype, tokens[:-1])
                put("y", dtype, y)
            for a in self.arrays:
                here = slice(0, t) if a["at"] == "x" else slice(1, t + 1)
                value = source[a["name"]][places[here]].copy()
                value[~there[here]] = 0
                put(a["name"], NUMPY[a["dtype"]], value)
            if self.documents:
                inner = [b for b in begins if b < t]
                put("cu_seqlens", "<i4", inner + [t] * (t + 1 - len(inner)))
                put("positions", "<i4", [p - max(b for b in inner if b <= p) for p in range(t)])
            if self.document_numbers:
                inner = document[[b for b in begins if b < t]]
                put("document_numbers", "<i8", [*inner, *[-1] * (t - len(inner))])
            if self.rows != "windows":
                put("lengths", "<i4", (piece[:t] >= 0).sum())
            if self.mixed:
                put("source", "<i2", i)
        return {name: np.stack(values) for name, values in out.items()}


def check(directory, mountpoint):
    with open(f"{directory}/settings.json") as f:
        described = json.load(f)
    compared = 0
    for settings in described:
        sequence = Sequence(**settings)
        path = f"{mountpoint}/{settings['split']}"
        for k in (0, 1, 2, 17, 1000, 2**40 - 1):
            want = sequence.batch(k)
            with open(f"{path}/batch/{k}.safetensors", "rb") as f:
                raw = f.read()
            begin = 8 + int.from_bytes(raw[:8], "little")
            header = {name: a for name, a in json.loads(raw[8:begin]).items() if name != "__metadata__"}
            assert header.keys() == want.keys(), f"{path}: got arrays {sorted(header)}, want {sorted(want)}"
            for name, a in want.items():
                at, end = header[name]["data_offsets"]
                got = np.frombuffer(raw[begin + at:begin + end], a.dtype).reshape(header[name]["shape"])
                if got.shape != a.shape or got.tobytes() != a.tobytes():
                    sys.exit(f"{path}: batch {k}: {name}: got\n{got}\nwant\n{a}\nwith settings {settings}")
                compared += 1
                if name not in ("x", "y", "tokens") and k < 2**36:
                    alone = np.load(f"{path}/batch/{k}.{name}.npy")
                    assert alone.dtype == a.dtype and alone.tobytes() == a.tobytes(), f"{path}/batch/{k}.{name}.npy: got {alone}, want {a}"
    print("compared", compared)


def make(directory, seed):
    chance = random.Random(seed)
    described, config = [], ""
    for n in range(24):
        kind = ("packed", "document", "document-first", "windows")[n % 4]
        layout, documents = chance.choice(["xy", "xy", "tokens"]), chance.choice([True, True, "files"])
        token_dtype = chance.choice(["uint16", "uint32"])
        dtype = chance.choice(["native", "uint32", "int32", "int64"])
        by_eot = kind == "windows" and documents is True and chance.random() < 0.5
        s = {
            "split": f"s{n}", "batch_size": chance.randrange(1, 6), "block_size": chance.randrange(1, 70), "dtype": dtype, "layout": layout,
            "order": chance.choice(["random", "shuffle", "sequential"]), "seed": chance.randrange(2**63), "world": chance.randrange(1, 4),
            "rows": kind, "documents": documents if kind == "windows" else chance.choice([documents, documents is not True and documents]),
            "mask_targets": layout == "xy" and dtype in ("int32", "int64") and chance.random() < 0.6,
        }
        s["document_numbers"] = not by_eot and chance.random() < 0.5
        if s["mask_targets"] and chance.random() < 0.5:
            s["ignore_index"] = chance.choice([-1, -70000])
        if by_eot or kind != "windows" and chance.random() < 0.5:
            s["eot"] = 7
        if kind != "windows" and chance.random() < 0.5:
            s["bos"] = 5
        if kind != "windows":
            # A file that is one document is long.
            s["too_long"] = chance.choice(["cut", "truncate"] if s["documents"] == "files" else ["cut", "drop", "truncate"])
        s["rank"] = chance.randrange(s["world"])
        arrays = [{"name": "mask", "dtype": "uint8", "shape": [], "at": "y"}, {"name": "logits", "dtype": "float16", "shape": [3], "at": "x"}]
        arrays = chance.sample(arrays, chance.randrange(3))
        if s["mask_targets"] and arrays and arrays[0]["name"] == "mask":
            s["mask_targets"] = "mask"
        config += f"[splits.s{n}]\ntoken_dtype = {json.dumps(token_dtype)}\n"
        config += "".join(f"{key} = {json.dumps(value)}\n" for key, value in s.items() if key != "split")
        sources = []
        for i in range(chance.choice([1, 1, 2])):
            weight, paths, aligned_paths = chance.randrange(1, 4), [], {a["name"]: [] for a in arrays}
            indexed = not by_eot or chance.random() < 0.5
            for f in range(chance.randrange(1, 4)):
                path = f"{directory}/{n}-{i}-{f}.bin"
                count = 5000 if n == f == 0 else chance.randrange(1, 300)
                lengths = [int(chance.random() ** 3 * chance.choice([10, 10, 200])) for _ in range(count)]
                if s.get("too_long"):  # many lengths around those of one and of two rows
                    t = s["block_size"]
                    lengths = [n if chance.random() < 0.5 else chance.choice([1, 2]) * t + chance.randrange(-1, 3) for n in lengths]
                lengths[chance.randrange(count)] += 70  # at least one window
                lengths.append(1)  # at least one document to keep
                ends = np.cumsum(lengths)
                tokens = np.array([chance.randrange(20) for _ in range(ends[-1])])
                tokens[np.unique([0, *ends[ends < ends[-1]]])] = s.get("bos", tokens[0])
                tokens.astype(NUMPY[token_dtype]).tofile(path)
                if indexed:
                    ends.astype("<u8").tofile(path + ".index")
                paths.append(path)
                for a in arrays:
                    name = f"{path[:-4]}.{a['name']}"
                    values = np.array([chance.randrange(256) * chance.randrange(2) for _ in range(ends[-1] * int(np.prod(a["shape"], dtype=int)))])
                    values.astype(NUMPY[a["dtype"]]).tofile(name)
                    aligned_paths[a["name"]].append(name)
            sources.append({"tokens": paths, "weight": weight, "token_dtype": token_dtype, "arrays": aligned_paths})
        one = len(sources) == 1
        stages = [{"weights": [2, 1]}, {"weights": [1, 3], "from_row": chance.randrange(1, 20)}] if not one and chance.random() < 0.5 else []
        if one:
            config += f"tokens = {json.dumps(sources[0]['tokens'])}\n"
        for source in sources:
            if not one:
                config += f"[[splits.s{n}.sources]]\ntokens = {json.dumps(source['tokens'])}\n"
                config += "" if stages else f"weight = {source['weight']}\n"
            for a in arrays:
                config += f"[[splits.s{n}.{'' if one else 'sources.'}arrays]]\nfiles = {json.dumps(source['arrays'][a['name']])}\n"
                config += "".join(f"{key} = {json.dumps(value)}\n" for key, value in a.items())
        for stage in stages:
            config += f"[[splits.s{n}.stages]]\nweights = {{0 = {stage['weights'][0]}, 1 = {stage['weights'][1]}}}\n"
            config += f"from_row = {stage['from_row']}\n" if "from_row" in stage else ""
        described.append(s | {"sources": sources, "arrays": arrays, "stages": stages})
    with open(f"{directory}/config.toml", "w") as f:
        f.write(config)
    with open(f"{directory}/settings.json", "w") as f:
        json.dump(described, f)


def golden(path):
    with open(path) as f:
        cases = json.load(f)
    for case in cases:
        want, counts, most = case.pop("batches"), case.pop("documents"), case.pop("most")
        with tempfile.TemporaryDirectory() as directory:
            begin, sources = 0, []
            for n, count in enumerate(counts):
                file = f"{directory}/{n}.bin"
                ends = np.cumsum([1 + i * i * 7919 % most for i in range(count)])
                ends.astype("<u8").tofile(file + ".index")
                tokens = np.arange(begin, begin + ends[-1])
                if "bos" in case:
                    tokens[[0, *ends[:-1]]] = case["bos"]
                tokens.astype("<u4").tofile(file)
                begin += ends[-1]
                sources.append({"tokens": [file], "weight": 1, "token_dtype": "uint32"})
            sequence = Sequence(sources=sources, documents=True, **case)
        for line in want:
            k, *sums = line.split()
            sums = dict(zip(sums[::2], sums[1::2]))
            got = {name: hashlib.sha256(a.tobytes()).hexdigest()[:16] for name, a in sequence.batch(int(k)).items()}
            assert got == sums, f"{case}: batch {k}: got {got}, want {sums}"
    print("ok")


if __name__ == "__main__":
    what, *args = sys.argv[1:]
    if what == "--make":
        make(args[0], int(args[1]))
    elif what == "--check":
        check(*args)
    else:
        golden(*args)
