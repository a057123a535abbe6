package readers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// Batches of documents, and the arrays that say where documents end, equal what a reference computes that shares no code with the program:
// for random settings, files, indexes and arrays beside the tokens.
func TestDocumentsAgreeWithReference(t *testing.T) {
	e2e.Long(t)
	if got := e2e.Run(t, e2e.Python, "clients/documents.py", "--golden", "../sampler/testdata/documents.json"); got != "ok\n" {
		t.Error(got)
	}
	for seed := range 2 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			e2e.Run(t, e2e.Python, "clients/documents.py", "--make", dir, fmt.Sprint(seed))
			m := e2e.Mount(t, "-c", filepath.Join(dir, "config.toml"))
			if out := e2e.Run(t, e2e.Python, "clients/documents.py", "--check", dir, m.Dir); !strings.HasPrefix(out, "compared ") {
				t.Error(out)
			}
		})
	}
}

// documents is a configuration of splits of documents whose lengths are these, of tokens below 1000.
func documents(t testing.TB, lengths []int, settings string, splits ...string) (config string) {
	t.Helper()
	dir, end := t.TempDir(), 0
	var raw, index []byte
	for _, n := range lengths {
		for i := range n {
			raw = binary.LittleEndian.AppendUint16(raw, uint16((end+i)*7919%1000))
		}
		end += n
		index = binary.LittleEndian.AppendUint64(index, uint64(end))
	}
	e2e.Write(t, filepath.Join(dir, "a.bin"), raw)
	e2e.Write(t, filepath.Join(dir, "a.bin.index"), index)
	text := "[batch]\n" + settings
	for _, split := range splits {
		text += fmt.Sprintf("[splits.%s]\nrows = %q\ntokens = \"a.bin\"\n", split, split)
	}
	config = filepath.Join(dir, "config.toml")
	e2e.Write(t, config, []byte(text))
	return config
}

// someLengths returns the lengths of n documents. Most are short.
func someLengths(n, most int) (lengths []int) {
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		lengths = append(lengths, 1+r.IntN(1+r.IntN(most)))
	}
	return lengths
}

// The losses of attention that stops at documents, as the examples compute it from a batch, equal the losses of a loop over its documents.
func TestAttentionWithinDocuments(t *testing.T) {
	e2e.Long(t)
	if out, err := e2e.Command(t, e2e.Python, "-c", "import torch.nn.attention.flex_attention").CombinedOutput(); err != nil {
		e2e.Lack(t, "no PyTorch with flex attention: %s", out)
	}
	config := documents(t, someLengths(500, 100), "batch_size = 4\nblock_size = 128\ndtype = \"int64\"\ndocuments = true\nmask_targets = true\n",
		"windows", "packed")
	m := e2e.Mount(t, "-c", config)
	for split, example := range map[string]string{"packed": "attention_varlen.py", "windows": "attention_flex.py"} {
		e2e.Run(t, e2e.Python, "../examples/"+example, m.Path(split))
	}
	// They would notice: with attention across documents the losses differ.
	code := e2e.Content(t, "../examples/attention_flex.py")
	across := filepath.Join(t.TempDir(), "across.py")
	e2e.Write(t, across, bytes.Replace(code, []byte("(query >= key) & (document[b, query] == document[b, key])"), []byte("query >= key"), 1))
	e2e.Fails(t, "the losses differ", e2e.Python, across, m.Path("packed"))
}
