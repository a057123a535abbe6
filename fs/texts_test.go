package fs

import (
	"bytes"
	"testing"
)

// The memory of texts is limited, and every handle still shows its whole text.
func TestTextsAreBounded(t *testing.T) {
	const size = 20 << 20
	names := []string{"a", "b", "c"}
	var splits []Sequence
	for _, name := range names {
		s := countingBatches(name, 1000)
		s.info = func() []byte { return bytes.Repeat([]byte(name), size) }
		splits = append(splits, s)
	}
	tr := newTestTree(t, splits...)
	var readers []*reader
	for _, name := range names {
		readers = append(readers, tr.openFile(t, name+"/info.json", 0))
	}
	for _, off := range []int64{0, 1 << 20, 17 << 20, size - 10, size} {
		for n, r := range readers {
			want := bytes.Repeat([]byte(names[n]), int(min(100, size-off)))
			if text, status := r.read(off, 100); !status.Ok() || !bytes.Equal(text, want) {
				t.Errorf("%s/info.json at %d: %q, %v", names[n], off, text, status)
			}
			if tr.texts.bytes.Load() > maxTextBytes || len(tr.texts.byHandle) > 1 {
				t.Fatalf("%d texts of %d bytes are cached", len(tr.texts.byHandle), tr.texts.bytes.Load())
			}
		}
	}
	for _, r := range readers {
		r.close()
	}
	if tr.texts.bytes.Load() != 0 || len(tr.texts.byHandle) != 0 {
		t.Errorf("when all are closed, %d bytes of %d texts are cached", tr.texts.bytes.Load(), len(tr.texts.byHandle))
	}
}
