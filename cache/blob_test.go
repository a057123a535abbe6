package cache

import (
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"batchfs/cache/array"
)

// A memory is a Blob that is no file. It visits its ranges backwards, which a Blob may.
type memory struct {
	path     string
	raw      []byte
	changed  bool
	reads    int
	released bool
}

func (m *memory) Path() string            { return m.path }
func (m *memory) Identity() Identity      { return Identity{Size: int64(len(m.raw))} }
func (m *memory) Sample() Sample          { return Sample{} }
func (m *memory) Want([]Range, Turn) bool { return true }
func (m *memory) Release()                { m.released = true }

func (m *memory) Check() error {
	if m.changed {
		return &ChangedError{m.path, "at will"}
	}
	return nil
}

func (m *memory) Read(ranges []Range, visit func(int, []byte) error) error {
	m.reads++
	for _, r := range slices.Backward(ranges) {
		if err := visit(r.Index, m.raw[r.From:r.To]); err != nil {
			return errors.Join(m.Check(), err)
		}
	}
	return m.Check()
}

// Tokens need nothing of a blob but what the interface says.
func TestTokensOfAnotherBlob(t *testing.T) {
	lens := []int{100, 1, 5000, 7}
	tokens := &Array{dtype: array.Uint32, number: 4, width: 4}
	var blobs []*memory
	from := 0
	for _, n := range lens {
		b := &memory{path: "object", raw: append([]byte("head"), count(from, n, 4)...)}
		blobs = append(blobs, b)
		tokens.shards = append(tokens.shards, shard{tracked: tracked{blob: b}, format: Format{Offset: 4, DType: array.Uint32, Count: int64(n)}, start: int64(from)})
		from += n
	}
	tokens.runs = []array.Run{{Name: "object", Start: 0, Len: int64(from)}}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		must(t, readAll(tokens, anyWindows(r, tokens.runs)))
	}
	must(t, readAll(tokens, []array.Window{{Start: 0, Len: from}, {Start: 99, Len: 3}}))

	for _, b := range blobs {
		b.reads = 0
	}
	must(t, readAll(tokens, []array.Window{{Start: 5106, Len: 2}, {Start: 0, Len: 5}, {Start: 200, Len: 9}, {Start: 90, Len: 1}, {Start: 4000, Len: 50}}))
	for i, want := range []int{1, 0, 1, 1} {
		if blobs[i].reads != want {
			t.Errorf("blob %d was read %d times for windows in any order, want %d", i, blobs[i].reads, want)
		}
	}

	blobs[2].changed = true
	for range 2 {
		if err := tokens.Check(); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("error %v, want ESTALE", err)
		}
	}
	for _, ws := range [][]array.Window{{{Len: 1}}, nil} {
		if err := readAll(tokens, ws); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("windows %v: error %v, want ESTALE", ws, err)
		}
	}
	blobs[2].changed = false
	must(t, readAll(tokens, []array.Window{{Len: 1}}))
	tokens.Release()
	for i, b := range blobs {
		if !b.released {
			t.Errorf("blob %d was not released", i)
		}
	}
}
