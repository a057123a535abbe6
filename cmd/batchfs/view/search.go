package view

import (
	"bytes"
	"context"
	"errors"
	"sort"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/internal/jsonbytes"
)

// Limits of one response. The page continues with another request.
const (
	maxSearched = 1 << 22 // tokens per request
	pieceLen    = 1 << 16 // tokens decoded at a time
	maxHits     = 20
	contextLen  = 48 // bytes of text before and after a hit
)

type searchResult struct {
	Hits []hit `json:"hits"`
	Next int64 `json:"next"` // position at which to continue
}

type hit struct {
	Pos    int64            `json:"pos"` // position of the first token, counted over all sources
	Before jsonbytes.String `json:"before"`
	After  jsonbytes.String `json:"after"`
}

// search searches the token files, starting at a position. It does not find a text that spans two
// files.
func (s *sequence) search(ctx context.Context, from int64, text string) (*searchResult, error) {
	if text == "" {
		return nil, errors.New("text: must not be empty")
	}
	f, last := &searchResult{Hits: []hit{}, Next: from}, min(from, s.data.Len())+maxSearched
	begin := int64(0) // position of the source's first token
	for i, arrays := range s.data.Arrays() {
		for _, run := range arrays[0].Extents() {
			end := begin + run.Start + run.Len
			for f.Next < min(end, last) && len(f.Hits) < maxHits {
				if err := f.searchPiece(ctx, arrays[0], s.decoders[i], begin, end, []byte(text)); err != nil {
					return nil, err
				}
			}
		}
		begin += arrays[0].Len()
	}
	return f, nil
}

// searchPiece searches pieceLen tokens, beginning at Next, and advances Next. The array begins at
// position begin, and the search reads no token at or after end.
func (f *searchResult) searchPiece(ctx context.Context, from *cache.Array, decode decoder, begin, end int64, wanted []byte) error {
	first := f.Next
	f.Next = min(first+pieceLen, end)
	if decode == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	w := array.Window{Start: first - begin, Len: int(min(f.Next+int64(len(wanted)), end) - first)}
	return from.Read([]array.Window{w}, func(_ int, raw []byte) error {
		var all []byte
		var starts []int // offset of each token's text in all
		for size := from.DType().Size(); len(raw) > 0; raw = raw[size:] {
			starts = append(starts, len(all))
			all = append(all, decode(from.DType().Bits(raw))...)
		}
		for at, next := bytes.Index(all, wanted), 0; at >= 0; at = bytes.Index(all[next:], wanted) {
			at += next
			next = at + len(wanted)
			pos := first + int64(sort.SearchInts(starts, at+1)-1)
			if pos >= f.Next { // the next piece has it
				return nil
			}
			before, after := all[max(at-contextLen, 0):at], all[next:min(next+contextLen, len(all))]
			f.Hits = append(f.Hits, hit{Pos: pos, Before: jsonbytes.String(before), After: jsonbytes.String(after)})
			if len(f.Hits) == maxHits {
				f.Next = pos + 1
			}
		}
		return nil
	})
}
