"""Writes the files of this directory with the libraries that define their formats: numpy 2.4.6, safetensors 0.8.0,
megatron-core 0.16.1 and datatrove 0.10.1. llm.c has no library; its files are written like its dev/data/data_common.py
does. Each a* holds 100 tokens, 0, 600, 1200, ..., and each b* holds 50, 300, 900, 1500, ..., in documents of 7 tokens,
the last one shorter.
"""
import numpy as np
import torch
from datatrove.io import get_datafolder
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from safetensors.numpy import save_file

for name, n, first in ("a", 100, 0), ("b", 50, 300):
    tokens = (np.arange(n) * 600 + first).astype(np.uint16)
    documents = [tokens[i:i + 7] for i in range(0, n, 7)]
    tokens.tofile(f"{name}.bin")
    for version in (1, 0), (2, 0), (3, 0):
        with open(f"{name}{version[0]}.npy", "wb") as f:
            np.lib.format.write_array(f, tokens, version=version)
    save_file({"other": tokens[:3].astype(np.float32), "tokens": tokens}, f"{name}.safetensors", {"made": "by safetensors"})

    built = IndexedDatasetBuilder(f"{name}_text_document.bin", dtype=np.uint16)
    for i, document in enumerate(documents):
        if i % 3 == 1 and len(document) > 3:  # a document of two sequences
            built.add_document(torch.tensor(document.astype(np.int32)), [3, len(document) - 3])
        else:
            built.add_document(torch.tensor(document.astype(np.int32)), [len(document)])
    built.finalize(f"{name}_text_document.idx")

    file = TokenizedFile(get_datafolder("."), f"{name}.ds", tokenizer_name_or_path="gpt2", save_final_metadata=True, token_size=2)
    for document in documents:
        file.write(document.tolist(), None)
    file.close()

    for kind, magic, version, dtype in ("llmc", 20240520, 1, np.uint16), ("llama3", 20240801, 7, np.uint32):
        header = np.zeros(256, dtype=np.int32)
        header[:3] = magic, version, n
        with open(f"{name}_{kind}.bin", "wb") as f:
            f.write(header.tobytes())
            f.write(tokens.astype(dtype).tobytes())

np.save("floats.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
np.save("fortran.npy", np.asfortranarray(np.arange(12, dtype=np.uint16).reshape(4, 3)))
np.save("big.npy", np.arange(12, dtype=">u2"))
np.save("pickled.npy", np.array([[1, 2], [3]], dtype=object))
np.save("structured.npy", np.zeros(4, dtype=[("token", "<u2"), ("weight", "<f4")]))
np.save("complex.npy", np.zeros(4, dtype=np.complex64))
np.save("scalar.npy", np.uint16(7))
np.save("none.npy", np.zeros(0, dtype=np.uint16))
