package integrations

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// Attention that stops at document boundaries, computed from a batch as in the examples, has the
// same losses as a loop over the documents.
func TestAttentionWithinDocuments(t *testing.T) {
	e2e.SkipIfShort(t)
	e2e.NeedPython(t, "torch.nn.attention.flex_attention")
	dir, r := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	var raw, index []byte
	for range 500 { // documents, most of them short
		for range 1 + r.IntN(1+r.IntN(100)) {
			raw = binary.LittleEndian.AppendUint16(raw, uint16(len(raw)/2*7919%1000))
		}
		index = binary.LittleEndian.AppendUint64(index, uint64(len(raw)/2))
	}
	e2e.Write(t, filepath.Join(dir, "a.bin"), raw)
	e2e.Write(t, filepath.Join(dir, "a.bin.index"), index)
	config := e2e.Write(t, filepath.Join(dir, "config.toml"), `
batch = {batch_size = 4, block_size = 128, dtype = "int64", documents = true, mask_targets = true}
splits.windows = {tokens = "a.bin", rows = "windows"}
splits.packed = {tokens = "a.bin", rows = "packed"}
`)
	m := e2e.Mount(t, "-c", config)
	// If attention crosses documents, the example must detect that the losses differ.
	flex := "../examples/attention_flex.py"
	across := e2e.Write(t, filepath.Join(t.TempDir(), "across.py"), bytes.Replace(e2e.Content(t, flex),
		[]byte("(query >= key) & (document[b, query] == document[b, key])"), []byte("query >= key"), 1))
	const inOneProcess = `
import runpy, sys
for example, split in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.argv = [example, split]
    runpy.run_path(example, run_name="__main__")
    print("right")`
	out, stderr, err := e2e.TryJob(t, e2e.Python, "-c", inOneProcess, "../examples/attention_varlen.py", m.Path("packed"), flex, m.Path("windows"), across, m.Path("packed"))
	if err == nil || strings.Count(out, "right") != 2 || !strings.Contains(stderr, "the losses differ") {
		t.Errorf("error %v, want two examples that are right and a third whose losses differ\n%s%s", err, out, stderr)
	}
}
