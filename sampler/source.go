package sampler

import (
	"fmt"
	"hash/fnv"

	"batchfs/cache"
	"batchfs/cache/array"
)

// Tokens is what a sequence needs of one source: one array of tokens. A *cache.Tokens is one. Positions count from its first
// token. It must be safe for concurrent use.
type Tokens interface {
	// DType is the type of a token in the files: array.Uint16 or array.Uint32.
	DType() array.DType

	// VocabSize bounds the tokens: all are below it. Where nobody knows, it is 0.
	VocabSize() int64

	// Runs are the stretches that a row must not leave, in order. They never change.
	Runs() []cache.Run

	// Read calls visit once for each window, in any order, with its index in ws and its tokens as in the files. raw is valid
	// during the call only. Read fails, also for no windows, while a file of the source is known to have changed.
	Read(ws []cache.Window, visit func(i int, raw []byte) error) error

	// Locate says, for an error, where the token at a position stands.
	Locate(pos int64) cache.Place
}

// A source is one array of tokens with an order of its own. The mixture says which source each row of a sequence belongs to.
type source struct {
	tokens  Tokens
	vocab   vocabulary
	tables  *windowTables // of all sequences of these tokens
	windows *windows      // that of tables for the block size
	order   order
}

// newSource is a source without settings.
func newSource(tokens Tokens) source {
	return source{tokens: tokens, vocab: newVocabulary(tokens.VocabSize(), tokens.DType()), tables: newWindowTables(tokens.Runs())}
}

// with is the i-th source of a sequence under settings.
func (s source) with(settings Settings, i int) (_ source, err error) {
	if s.windows, err = s.tables.get(settings.BlockSize); err != nil {
		return s, err
	}
	s.order, err = newOrder(settings, i, s.windows)
	return s, err
}

// newOrder is the order of a source. Each source has its own random stream: that of the split if there is one source, else that
// of a split named "split/source". No split has a name with a slash.
func newOrder(s Settings, source int, w *windows) (order, error) {
	name := s.Split
	if len(s.Weights) > 1 {
		name = fmt.Sprintf("%s/%d", s.Split, source)
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	key := [2]uint64{s.Seed, h.Sum64()}
	switch s.Order {
	case Sequential:
		return sequential{w}, nil
	case Shuffle:
		return newShuffle(key, w), nil
	case Torch, Torch26:
		if len(s.Weights) > 1 {
			return nil, fmt.Errorf("order %s draws from one array of tokens and cannot mix sources; choose another order", s.Order)
		}
		return newTorch(s, w)
	}
	return random{w, key}, nil
}
