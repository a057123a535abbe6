"""files.py OUT STEP writes to OUT every STEP-th of about 200 files that pyarrow, pandas, polars, duckdb and datasets write with their options.

It also writes tokenizer.json, and cases.json with a list: for each file, its name, the arguments of batchfs prepare, and either NAME.tokens, in
which are the tokens of what the library itself reads from the file, or what the error of prepare must contain."""

import datetime
import decimal
import itertools
import json
import os
import sys
from pathlib import Path

os.environ["HF_HOME"] = str(Path(sys.argv[1], "cache"))
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather as feather
import pyarrow.json
import pyarrow.parquet as pq
import tokenizers

OUT, STEP = Path(sys.argv[1]), int(sys.argv[2])

WORDS = "It was the best of times, naïve 中文 日本語。 emoji 👍🏽 ☎️ \u0301 \u200b \ufeff don't \"quoted\" back\\slash tab\t CRLF\r\n\n\x01 <|endoftext|> 12345".split(" ")
RNG = np.random.default_rng(1)
TEXTS: list[str] = [" ".join(RNG.choice(WORDS, 1 + int(RNG.integers(30)))) for _ in range(200)]
TEXTS += ["", "same", "same", "x" * 5000, "\n", "\ufeffmark", *["again and again"] * 50]
NULLS = [None if i % 7 == 3 else text for i, text in enumerate(TEXTS)]
CHATS = [[{"role": "user" if j % 2 else "assistant", "content": text} for j, text in enumerate(TEXTS[i : i + i % 4])] for i in range(100)]
BPE = tokenizers.ByteLevelBPETokenizer()
BPE.train_from_iterator(TEXTS, vocab_size=600, show_progress=False, special_tokens=["<|endoftext|>"])
BPE.save(str(OUT / "tokenizer.json"))
EOT = BPE.token_to_id("<|endoftext|>")
ORDINARY = tokenizers.Tokenizer.from_str(json.dumps({**json.loads(BPE.to_str()), "added_tokens": []}))
IDS = [[int(i) for i in RNG.integers(0, 120, int(RNG.integers(1, 50)))] for _ in range(100)]

cases, n = [], itertools.count()


def encode(document):
    """Returns the tokens of a text, of the texts of a chat, or of ids."""
    if isinstance(document, str):
        return [*ORDINARY.encode(document).ids, EOT] if document else []
    if document is None or len(document) == 0:
        return []
    if isinstance(document[0], (int, np.integer)):
        return [*document]
    tokens = [token for text in document for token in ORDINARY.encode(text).ids]
    return [*tokens, EOT] if tokens else []


def case(name, write, read, args=(), refused=None):
    """Writes a file, and what is read from it: texts, lists of texts, or lists of ids."""
    if next(n) % STEP:
        return
    write(OUT / name)
    found = {"file": name, "args": ["--by", str(OUT / "tokenizer.json"), *args], "refused": refused or ""}
    if refused is None:
        documents = list(read(OUT / name))
        assert documents, name
        np.array([token for document in documents for token in encode(document)], np.uint16).tofile(OUT / (name + ".tokens"))
    cases.append(found)


def table(texts=TEXTS, type=None, name="text", **more):
    return pa.table({"n": range(len(texts)), name: pa.array(texts, type), **more})


def column(name="text"):
    return lambda path: pq.read_table(path).column(name).to_pylist()


def contents(chats):
    """Returns what --field messages.*.content selects."""
    return [[message["content"] for message in chat or [] if message["content"] is not None] for chat in chats]


# Parquet of pyarrow.
def arrow_parquet(name, of=None, read=column(), args=(), refused=None, **options):
    case(f"pyarrow {name}.parquet", lambda path: pq.write_table(of or table(), path, **options), read, args, refused)


for codec, version, dictionary in itertools.product(["none", "snappy", "gzip", "brotli", "zstd", "lz4"], ["1.0", "2.0"], [True, False]):
    arrow_parquet(f"{codec} v{version} {dictionary}", table(NULLS), compression=codec, data_page_version=version, use_dictionary=dictionary, row_group_size=100)
for encoding, version, codec in itertools.product(["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"], ["1.0", "2.0"], ["none", "zstd"]):
    options = {"column_encoding": {"text": encoding}, "use_dictionary": False, "data_page_version": version, "compression": codec}
    arrow_parquet(f"{encoding} v{version} {codec}", table(NULLS), **options)
for version in ("1.0", "2.4", "2.6"):
    arrow_parquet(f"format {version}", version=version)
for size in (1, 7, 1000):
    arrow_parquet(f"groups of {size}", row_group_size=size)
for name, options in {
    "small pages": {"data_page_size": 64, "write_batch_size": 3},
    "full dictionary": {"dictionary_pagesize_limit": 100},
    "page index": {"write_page_index": True},
    "checksums": {"write_page_checksum": True},
    "no statistics": {"write_statistics": False},
    "no Arrow schema": {"store_schema": False},
    "bloom filter": {"bloom_filter_options": {"text": {"ndv": 100, "fpp": 0.1}}},
    "levels": {"compression": "zstd", "compression_level": 19},
    "codec of each column": {"compression": {"n": "snappy", "text": "zstd"}},
}.items():
    arrow_parquet(name, **options)
TYPES = {
    "large string": pa.large_string(),
    "string view": pa.string_view(),
    "binary": pa.binary(),
    "large binary": pa.large_binary(),
    "binary view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int16(), pa.string()),
    "large dictionary": pa.dictionary(pa.int32(), pa.large_string()),
}


def decoded(read):
    return lambda path: [text.decode() if isinstance(text, bytes) else text for text in read(path)]


def as_type(texts, type):
    if pa.types.is_dictionary(type):
        return pa.array(texts, type.value_type).dictionary_encode().cast(type)
    return pa.array(texts, type)


for (name, type), texts in itertools.product(TYPES.items(), (TEXTS, NULLS)):
    typed = pa.table({"text": as_type(texts, type)})
    arrow_parquet(f"{name} {None in texts}", typed, decoded(column()))
arrow_parquet("not null", pa.table([TEXTS], schema=pa.schema([pa.field("text", pa.string(), nullable=False)])))
arrow_parquet("JSON type", pa.table({"text": pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps(text) for text in TEXTS]))}))
arrow_parquet("name with dots", table(name="meta.body"), column("meta.body"), ["--field", "meta.body"])
arrow_parquet("name with spaces", table(name="der Text 中"), column("der Text 中"), ["--field", "der Text 中"])
arrow_parquet(
    "other columns",
    table(
        TEXTS[:3],
        time=pa.array([datetime.datetime(2020, 1, i) for i in (1, 2, 3)], pa.timestamp("ns", "UTC")),
        day=pa.array([datetime.date(2020, 1, i) for i in (1, 2, 3)]),
        took=pa.array([1, 2, None], pa.duration("us")),
        price=pa.array([decimal.Decimal("1.5"), None, decimal.Decimal("-2")], pa.decimal128(30, 2)),
        half=pa.array(np.array([1, 2, 3], np.float16)),
        nothing=pa.nulls(3),
        fixed=pa.array([b"abcd"] * 3, pa.binary(4)),
        map=pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int8())),
        list=pa.array([[[1], None, []], [], None]),
    ),
)
nested = pa.array([None if text is None else {"body": text, "lang": "en"} for text in NULLS])
arrow_parquet("struct", pa.table({"meta": nested}), lambda path: [m and m["body"] for m in column("meta")(path)], ["--field", "meta.body"])
deep = pa.array([{"b": {"c": {"text": text}}} for text in NULLS])
arrow_parquet("deep struct", pa.table({"a": deep}), lambda path: [a["b"]["c"]["text"] for a in column("a")(path)], ["--field", "a.b.c.text"])
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
LISTS = {
    "list": pa.list_(MESSAGE),
    "large list": pa.large_list(MESSAGE),
    "list of large strings": pa.list_(pa.struct([("role", pa.large_string()), ("content", pa.large_string())])),
}
FIELD = ["--field", "messages.*.content"]
for name, type in LISTS.items():
    for version in ("1.0", "2.0"):
        chats = pa.table({"messages": pa.array([*CHATS, None], type), "n": range(len(CHATS) + 1)})
        arrow_parquet(f"{name} v{version}", chats, lambda path: contents(column("messages")(path)), FIELD, data_page_version=version, data_page_size=100)
chats = pa.table({"messages": pa.array(CHATS)})
arrow_parquet("old lists", chats, lambda path: contents(column("messages")(path)), FIELD, use_compliant_nested_type=False)
arrow_parquet("list of strings", pa.table({"parts": pa.array([TEXTS[i : i + i % 4] for i in range(100)])}), column("parts"), ["--field", "parts.*"])
for type in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()):
    arrow_parquet(f"ids {type}", pa.table({"input_ids": pa.array(IDS, pa.list_(type))}), column("input_ids"), ["--ids", "input_ids"])
for encoding in ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"):
    options = {"column_encoding": {"input_ids.list.element": encoding}, "use_dictionary": False}
    arrow_parquet(f"ids {encoding}", pa.table({"input_ids": pa.array(IDS, pa.list_(pa.int32()))}), column("input_ids"), ["--ids", "input_ids"], **options)
arrow_parquet("large list of ids", pa.table({"input_ids": pa.array(IDS, pa.large_list(pa.int64()))}), column("input_ids"), ["--ids", "input_ids"])
blocks = [ids[:8] for ids in IDS if len(ids) >= 8]
arrow_parquet("blocks of ids", pa.table({"input_ids": pa.array(blocks, pa.list_(pa.int32(), 8))}), column("input_ids"), ["--ids", "input_ids"])


def attended(path):
    rows = pq.read_table(path).to_pylist()
    return [[i for i, kept in zip(row["input_ids"], row["attention_mask"]) if kept] for row in rows]


padded = {"input_ids": [[*ids, 0, 0] for ids in IDS], "attention_mask": [[1] * len(ids) + [0, 0] for ids in IDS]}
arrow_parquet("attention mask", pa.table(padded), attended, ["--ids", "input_ids"])
case(
    "pyarrow partitions",
    lambda path: pq.write_to_dataset(table(TEXTS[:90], part=[i % 3 for i in range(90)]), path, partition_cols=["part"], basename_template="{i}.parquet"),
    lambda path: [text for file in sorted(path.rglob("*.parquet")) for text in pq.read_table(file, partitioning=None).column("text").to_pylist()],
)


# Arrow files and streams of pyarrow.
def arrow(name, of, options=None, stream=False, read=None, args=(), suffix=".arrow"):
    def write(path):
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        with make(path, of.schema, options=pa.ipc.IpcWriteOptions(**(options or {}))) as out:
            for batch in of.to_batches(max_chunksize=50):
                out.write_batch(batch)

    def all_of(path):
        return (pa.ipc.open_stream(path) if stream else pa.ipc.open_file(path)).read_all()

    case(f"pyarrow {name} {stream}{suffix}", write, lambda path: (read or (lambda t: t.column("text").to_pylist()))(all_of(path)), args)


for codec, stream in itertools.product([None, "lz4", "zstd"], [False, True]):
    arrow(f"{codec}", table(NULLS), {"compression": codec}, stream)
for name, type in TYPES.items():
    read = lambda t: [text.decode() if isinstance(text, bytes) else text for text in t.column("text").to_pylist()]
    arrow(name, pa.table({"text": as_type(NULLS, type)}), stream=name < "d", read=read)
for name, type in {**LISTS, "list view": pa.list_view(MESSAGE)}.items():
    chats = pa.table({"messages": pa.array([*CHATS, None], type)})
    arrow(name, chats, read=lambda t: contents(t.column("messages").to_pylist()), args=FIELD)
arrow("struct", pa.table({"meta": nested}), read=lambda t: [m and m["body"] for m in t.column("meta").to_pylist()], args=["--field", "meta.body"], stream=True)
for type in (pa.list_(pa.uint16()), pa.large_list(pa.int64()), pa.list_view(pa.int32())):
    arrow(f"ids {type}", pa.table({"input_ids": pa.array(IDS, type)}), read=lambda t: t.column("input_ids").to_pylist(), args=["--ids", "input_ids"])
for codec in ("uncompressed", "lz4", "zstd"):
    write = lambda path, codec=codec: feather.write_feather(table(NULLS), path, compression=codec)
    case(f"pyarrow {codec}.feather", write, lambda path: feather.read_table(path).column("text").to_pylist())
case(
    "pyarrow version 1.feather",
    lambda path: feather.write_feather(table(), path, version=1),
    None,
    refused="write it again with pyarrow.feather.write_feather",
)

# pandas. A missing text is NaN or None.
frame = pd.DataFrame({"n": range(len(NULLS)), "text": NULLS})


def of_frame(f, name="text"):
    return [None if pd.isna(text) else text for text in f[name]]


for codec in (None, "snappy", "gzip", "brotli", "zstd", "lz4"):
    write = lambda path, codec=codec: frame.to_parquet(path, compression=codec)
    case(f"pandas {codec}.parquet", write, lambda path: of_frame(pd.read_parquet(path)))
for dtype in ("object", "string", "string[python]", "string[pyarrow]", "category"):
    write = lambda path, dtype=dtype: frame.astype({"text": dtype}).to_parquet(path)
    case(f"pandas {dtype}.parquet", write, lambda path: of_frame(pd.read_parquet(path)))
    write = lambda path, dtype=dtype: frame.astype({"text": dtype}).to_feather(path)
    case(f"pandas {dtype}.feather", write, lambda path: of_frame(pd.read_feather(path)))
case("pandas index.parquet", lambda path: frame.set_index("text").to_parquet(path), lambda path: of_frame(pd.read_parquet(path).reset_index()))
lines = pd.DataFrame({"n": [0.5, float("nan")] * 100, "text": TEXTS[:200]})
for codec in (None, "gzip", "zstd", "bz2", "xz", "zip", "tar"):
    suffix = {None: "", "gzip": ".gz", "zstd": ".zst"}.get(codec, f".{codec}")
    remedy = {"bz2": "decompress it", "xz": "decompress it", "zip": "unpack it", "tar": "unpack it"}.get(codec)
    for is_ascii in (True, False):
        write = lambda path, codec=codec, a=is_ascii: lines.to_json(path, orient="records", lines=True, compression=codec, force_ascii=a)
        read = lambda path, codec=codec: of_frame(pd.read_json(path, lines=True, compression=codec))
        case(f"pandas {codec} {is_ascii}.jsonl{suffix}", write, read, refused=remedy)
case("pandas list.json", lambda path: lines.to_json(path, orient="records"), None, refused="jq -c '.[]'")
case("pandas.csv", lambda path: frame.to_csv(path), None, refused="write its rows as JSON lines: python3 -c")

# polars.
frame2 = pl.DataFrame({"n": range(len(NULLS)), "text": NULLS})
for codec in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"):
    write = lambda path, codec=codec: frame2.write_parquet(path, compression=codec)
    case(f"polars {codec}.parquet", write, lambda path: pl.read_parquet(path)["text"])
for name, options in {"small groups": {"row_group_size": 10}, "small pages": {"data_page_size": 100}, "no statistics": {"statistics": False}}.items():
    case(f"polars {name}.parquet", lambda path, options=options: frame2.write_parquet(path, **options), lambda path: pl.read_parquet(path)["text"])
case("polars sink.parquet", lambda path: frame2.lazy().sink_parquet(path), lambda path: pl.read_parquet(path)["text"])
KINDS = {"categorical": pl.Categorical, "enum": pl.Enum(sorted({text for text in TEXTS}))}
for name, kind in KINDS.items():
    typed2 = frame2.with_columns(pl.col("text").cast(kind))
    case(f"polars {name}.parquet", lambda path, f=typed2: f.write_parquet(path), lambda path: pl.read_parquet(path)["text"])
    case(f"polars {name}.arrow", lambda path, f=typed2: f.write_ipc(path), lambda path: pl.read_ipc(path)["text"])
chats2 = pl.DataFrame({"messages": CHATS})
ids2 = pl.DataFrame({"input_ids": IDS})
for codec, level in itertools.product(("uncompressed", "lz4", "zstd"), (pl.CompatLevel.oldest(), pl.CompatLevel.newest())):
    options = {"compression": codec, "compat_level": level}
    name = f"{codec} {'newest' if level._version else 'oldest'}"
    case(f"polars {name}.arrow", lambda path, o=options: frame2.write_ipc(path, **o), lambda path: pl.read_ipc(path)["text"])
    case(f"polars {name}.arrows", lambda path, o=options: frame2.write_ipc_stream(path, **o), lambda path: pl.read_ipc_stream(path)["text"])
case("polars chats.parquet", lambda path: chats2.write_parquet(path), lambda path: contents(pl.read_parquet(path)["messages"].to_list()), FIELD)
case("polars chats.arrow", lambda path: chats2.write_ipc(path), lambda path: contents(pl.read_ipc(path)["messages"].to_list()), FIELD)
case("polars ids.parquet", lambda path: ids2.write_parquet(path), lambda path: pl.read_parquet(path)["input_ids"].to_list(), ["--ids", "input_ids"])
case("polars ids.arrow", lambda path: ids2.write_ipc(path), lambda path: pl.read_ipc(path)["input_ids"].to_list(), ["--ids", "input_ids"])
whole2 = pl.DataFrame({"n": range(len(TEXTS)), "text": TEXTS})
case("polars.jsonl", lambda path: whole2.write_ndjson(path), lambda path: pl.read_ndjson(path)["text"])
case("polars chats.jsonl", lambda path: chats2.write_ndjson(path), lambda path: contents(pl.read_ndjson(path)["messages"].to_list()), FIELD)
case("polars ids.jsonl", lambda path: ids2.write_ndjson(path), lambda path: pl.read_ndjson(path)["input_ids"].to_list(), ["--ids", "input_ids"])
case("polars nulls.jsonl", lambda path: frame2.write_ndjson(path), lambda path: pl.read_ndjson(path)["text"])

# duckdb.
duckdb.sql("create table texts as select * from frame")
duckdb.sql("create table chats as select * from chats2")
duckdb.sql("create table ids as select * from ids2")


def duck(name, query, options, args=(), field="text", refused=None, look=lambda values: values):
    def write(path):
        duckdb.sql(f"copy ({query}) to '{path}' ({options})")

    def read(path):
        reader = "read_parquet" if path.suffix == ".parquet" else "read_json"
        return look([value for (value,) in duckdb.sql(f"select {field} from {reader}('{path}')").fetchall()])

    case(f"duckdb {name}", write, read, args, refused)


for codec in ("uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4_raw", "lz4"):
    for version in ("v1", "v2"):
        duck(f"{codec} {version}.parquet", "from texts", f"format parquet, compression {codec}, parquet_version {version}")
duck("small groups.parquet", "from texts", "format parquet, row_group_size 16")
duck("no dictionary.parquet", "from texts", "format parquet, dictionary_size_limit 0, parquet_version v2")
duck("chats.parquet", "from chats", "format parquet", FIELD, "messages", look=contents)
duck("ids.parquet", "from ids", "format parquet", ["--ids", "input_ids"], "input_ids")
duck("struct.parquet", "select {'body': text} as meta from texts", "format parquet", ["--field", "meta.body"], "meta.body")
duck("enum.parquet", "select (case when n % 2 = 0 then 'even' else 'odd' end)::enum('even', 'odd') as text from texts", "format parquet")
duck("blob.parquet", "select encode(text) as text from texts where text is not null", "format parquet", field="decode(text)")
for codec, suffix in (("none", ""), ("gzip", ".gz"), ("zstd", ".zst")):
    duck(f"{codec}.jsonl{suffix}", "from texts where text is not null", f"format json, compression {codec}")
duck("chats.jsonl", "from chats", "format json", FIELD, "messages", look=contents)
duck("ids.jsonl", "from ids", "format json", ["--ids", "input_ids"], "input_ids")
duck("array.json", "from texts", "format json, array true", refused="jq -c '.[]'")
duck("nulls.jsonl", "from texts", "format json")

# datasets.
datasets.disable_progress_bars()
texts3 = datasets.Dataset.from_dict({"n": [*range(len(TEXTS))], "text": TEXTS})
chats3 = datasets.Dataset.from_dict({"messages": CHATS})
ids3 = datasets.Dataset.from_dict({"input_ids": IDS})


def parquet3(path, name="text"):
    return datasets.Dataset.from_parquet(str(path), cache_dir=str(OUT / "cache"))[name]


def json3(path, name="text"):
    return datasets.Dataset.from_json(str(path), cache_dir=str(OUT / "cache"))[name]


case("datasets.parquet", lambda path: texts3.to_parquet(path), parquet3)
case("datasets nulls.parquet", lambda path: datasets.Dataset.from_dict({"text": NULLS}).to_parquet(path), parquet3)
case("datasets chats.parquet", lambda path: chats3.to_parquet(path), lambda path: contents(parquet3(path, "messages")), FIELD)
case("datasets ids.parquet", lambda path: ids3.to_parquet(path), lambda path: parquet3(path, "input_ids"), ["--ids", "input_ids"])
for codec, suffix in ((None, ""), ("gzip", ".gz"), ("bz2", ".bz2"), ("xz", ".xz")):
    write = lambda path, codec=codec: texts3.to_json(path, compression=codec)
    case(f"datasets {codec}.jsonl{suffix}", write, json3, refused="decompress it" if codec in ("bz2", "xz") else None)
case("datasets chats.jsonl", lambda path: chats3.to_json(path), lambda path: contents(json3(path, "messages")), FIELD)
case("datasets list.json", lambda path: texts3.to_json(path, lines=False, orient="records"), None, refused="jq -c '.[]'")
disk = lambda name: lambda path: datasets.load_from_disk(str(path))[name]
for shards in (1, 3):
    case(f"datasets saved {shards}", lambda path, shards=shards: texts3.save_to_disk(path, num_shards=shards), disk("text"))
case("datasets saved chats", lambda path: chats3.save_to_disk(path), lambda path: contents(disk("messages")(path)), FIELD)
case("datasets saved ids", lambda path: ids3.save_to_disk(path), disk("input_ids"), ["--ids", "input_ids"])
large = texts3.cast_column("text", datasets.Value("large_string"))
case("datasets saved large", lambda path: large.save_to_disk(path), disk("text"))
case("datasets selected", lambda path: texts3.select(range(3, 90)).flatten_indices().save_to_disk(path), disk("text"))
case(
    "datasets splits",
    lambda path: datasets.DatasetDict({"test": texts3.select(range(9)), "train": texts3}).save_to_disk(path),
    lambda path: [text for split in ("test", "train") for text in datasets.load_from_disk(str(path))[split]["text"]],
)

(OUT / "cases.json").write_text(json.dumps(cases))
