#!/usr/bin/env python3
"""Writes fineweb-edu.parquet, which has the columns of a file of FineWeb-Edu, as the Hub stores it.

    python3 test/testdata/make.py     needs pyarrow
"""
import pathlib
import random

import pyarrow as pa
import pyarrow.parquet as pq

here = pathlib.Path(__file__).parent
random.seed(0)
texts = []
for page in sorted((here / "../../docs").resolve().glob("*.md")):
    paragraphs = page.read_text().split("\n\n")
    texts += ["\n\n".join(paragraphs[i:i + 4]) for i in range(0, len(paragraphs), 4)]
texts = [text for text in texts if len(text) > 300 and "|" not in text]
random.shuffle(texts)
rows = [{
    "text": text, "id": f"<urn:uuid:{i:032x}>", "dump": "CC-MAIN-2024-10", "url": f"https://example.org/{i}",
    "file_path": "s3://commoncrawl/example.warc.gz", "language": "en", "language_score": 0.97,
    "token_count": len(text) // 4, "score": 3.5, "int_score": 4,
} for i, text in enumerate(texts[:160])]
pq.write_table(pa.Table.from_pylist(rows), here / "fineweb-edu.parquet", row_group_size=50, compression="zstd", compression_level=19)
