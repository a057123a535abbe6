package view

import (
	"bytes"
	"context"
	"errors"
	"sort"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/internal/jsontext"
)

// Bounds of one answer: the page asks again from where it ended.
const (
	searched = 1 << 22 // tokens
	piece    = 1 << 16 // tokens that are made text at once
	maxHits  = 20
	around   = 48 // bytes of text before and behind a hit
)

type found struct {
	Hits []hit `json:"hits"`
	Next int64 `json:"next"` // position to search from
}

type hit struct {
	Pos    int64           `json:"pos"` // of the token in which the text begins, among those of all sources
	Before jsontext.String `json:"before"`
	After  jsontext.String `json:"after"`
}

// search looks for a text in the token files, from a position on. It finds none that two files hold together.
func (s *sequence) search(ctx context.Context, from int64, text string) (*found, error) {
	if text == "" {
		return nil, errors.New("text: is empty")
	}
	f, last := &found{Hits: []hit{}, Next: from}, min(from, s.data.Len())+searched
	begin := int64(0) // of the source, among the positions of all
	for i, arrays := range s.data.Arrays() {
		for _, run := range arrays[0].Extents() {
			end := begin + run.Start + run.Len
			for f.Next < min(end, last) && len(f.Hits) < maxHits {
				if err := f.piece(ctx, arrays[0], s.texts[i], begin, end, []byte(text)); err != nil {
					return nil, err
				}
			}
		}
		begin += arrays[0].Len()
	}
	return f, nil
}

// piece searches tokens from Next on, of an array whose positions begin at begin and which may be read up to end.
func (f *found) piece(ctx context.Context, from *cache.Array, text textOf, begin, end int64, wanted []byte) error {
	first := f.Next
	f.Next = min(first+piece, end)
	if text == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	w := array.Window{Start: first - begin, Len: int(min(f.Next+int64(len(wanted)), end) - first)}
	return from.Read([]array.Window{w}, func(_ int, raw []byte) error {
		var all []byte
		var starts []int // of the text of each token
		for size := from.DType().Size(); len(raw) > 0; raw = raw[size:] {
			starts = append(starts, len(all))
			all = append(all, text(from.DType().Bits(raw))...)
		}
		for at, behind := bytes.Index(all, wanted), 0; at >= 0; at = bytes.Index(all[behind:], wanted) {
			at += behind
			behind = at + len(wanted)
			pos := first + int64(sort.SearchInts(starts, at+1)-1)
			if pos >= f.Next { // the next piece finds it
				return nil
			}
			before, after := all[max(at-around, 0):at], all[behind:min(behind+around, len(all))]
			f.Hits = append(f.Hits, hit{Pos: pos, Before: jsontext.String(before), After: jsontext.String(after)})
			if len(f.Hits) == maxHits {
				f.Next = pos + 1
			}
		}
		return nil
	})
}
