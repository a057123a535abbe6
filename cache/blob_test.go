package cache

import (
	"slices"

	"batchfs/cache/blob"
)

// A memory is a Blob that is no file. It visits its ranges backwards, which a Blob may.
type memory struct {
	path string
	raw  []byte
}

func (m *memory) Path() string            { return m.path }
func (m *memory) Identity() blob.Identity { return blob.Identity{Size: int64(len(m.raw))} }
func (m *memory) Sample() blob.Sample     { return blob.Sample{} }
func (m *memory) Check() error            { return nil }
func (m *memory) Release()                {}

func (m *memory) Read(ranges []blob.Range, visit func(int, []byte) error) error {
	for _, r := range slices.Backward(ranges) {
		if err := visit(r.Index, m.raw[r.From:r.To]); err != nil {
			return err
		}
	}
	return nil
}
