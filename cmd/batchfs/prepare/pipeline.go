package prepare

import (
	"context"
	"runtime"
	"sync"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/units"
)

// maxChunks limits the chunks in memory, however many processors there are. Few workers get fewer,
// so that their chunks stay in the processor's cache.
const maxChunks = 256

// pipelineGoroutines counts the goroutines of all pipelines, which may outlive them after an error.
// Tests wait for it.
var pipelineGoroutines sync.WaitGroup

// A pipeline carries chunks from a reader to the encoders, and from these, in the order of the
// inputs, to whatever writes their tokens.
type pipeline struct {
	ctx     context.Context
	permits chan struct{} // limit the text in memory; each is for about chunkSize bytes
	todo    chan *chunk   // chunks for the encoders
	ordered chan *chunk   // all chunks that have been read and not written
}

// encodeInputs reads the inputs of a plan, starting at a position, encodes them on all processors,
// and calls write with each chunk in order. After an error or a cancellation, it does not wait for
// the reader, which may be blocked by a pipe or a disk. The reader spools files of rows in
// scratchDir.
func encodeInputs(ctx context.Context, p *plan, from position, scratchDir string, write func(*chunk) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	encoders := runtime.GOMAXPROCS(0)
	permits := min(max(32, encoders+16), maxChunks)
	l := &pipeline{ctx, make(chan struct{}, permits), make(chan *chunk, permits), make(chan *chunk, permits)}
	for range encoders {
		pipelineGoroutines.Go(func() { newEncodeWorker(p).encodeChunks(l.todo) })
	}
	readError := make(chan error, 1)
	pipelineGoroutines.Go(func() {
		readError <- newReader(p, scratchDir, l.add).read(from)
		close(l.todo)
		close(l.ordered)
	})
	for {
		ch, err := l.next()
		switch {
		case err != nil:
			return err
		case ch == nil:
			return <-readError
		}
		if err := write(ch); err != nil {
			return err
		}
		l.release(ch)
	}
}

// add passes a chunk to the encoders when there are permits for it.
func (l *pipeline) add(ch *chunk) error {
	ch.done = make(chan struct{})
	ch.permits = min(cap(l.permits), 1+len(ch.text)/chunkSize)
	for range ch.permits {
		select {
		case l.permits <- struct{}{}:
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
	l.todo <- ch
	l.ordered <- ch
	return nil
}

// next returns the next encoded chunk in order, or nil at the end.
func (l *pipeline) next() (*chunk, error) {
	var ch *chunk
	select {
	case ch = <-l.ordered:
	case <-l.ctx.Done():
	}
	switch {
	case l.ctx.Err() != nil:
		return nil, command.ErrInterrupted
	case ch == nil:
		return nil, nil
	}
	<-ch.done
	return ch, ch.err
}

func (l *pipeline) release(ch *chunk) {
	n := ch.permits
	ch.recycle()
	for range n {
		<-l.permits
	}
}

// Limits on memory, in bytes. They are variables so that tests can lower them.
var (
	chunkSize = 128 << 10 // text that is read at a time
	maxLine   = 64 << 20  // longest line, row, or stretch of text in which no word ends
)

// A position is a point between two text pieces, from which reading can resume. Checkpoints store
// it.
type position struct {
	Input  int   `json:"input"`
	Offset int64 `json:"offset"` // bytes of decompressed content; rows of a parquet or Arrow file
	Line   int64 `json:"line"`   // lines before this position, in JSON Lines
	Within bool  `json:"within"` // whether the position is inside a document
	Val    bool  `json:"val"`    // whether that document belongs to val
	Read   int64 `json:"read"`   // bytes read of all inputs, as stored on disk
}

// A textPiece is a part of an input that can be encoded without the rest: lines of JSON Lines, a
// row, or a text or part of one.
type textPiece struct {
	text  []byte
	in    *input.File
	start position
	// startsDocument and endsDocument say whether the piece has the beginning and the end of its
	// document.
	startsDocument, endsDocument bool
	leftOut                      bool // whether the whole input is left out, as it is not UTF-8
}

// A chunk is a group of text pieces that one worker encodes at a time. It carries their text, and
// later their tokens, through the pipeline.
type chunk struct {
	pieces []textPiece
	text   []byte   // text of the pieces
	end    position // beginning of the next chunk

	permits int // permits of the pipeline that the chunk holds
	encoded [len(splits)]encodedTokens
	err     error
	done    chan struct{} // closed when encoded, notes and err are set

	notes notes
}

// Indexes of splits, and of all other arrays with one element for each split.
const (
	trainSplit = iota
	valSplit
)

var splits = [...]string{trainSplit: "train", valSplit: "val"}

// encodedTokens are the tokens of a chunk that belong to one split.
type encodedTokens struct {
	tokens []byte  // little-endian
	mask   []byte  // one byte per token, if masked
	ends   []int64 // ends of documents, in tokens
	ids    []byte  // with --id, a line for each of these documents

	eot units.EOTCounts
}

// chunks recycles the memory of chunks, because on many processors the heap would grow a lot while
// the garbage collector runs.
var chunks = sync.Pool{New: func() any { return new(chunk) }}

func (c *chunk) recycle() {
	*c = chunk{pieces: c.pieces[:0], text: c.text[:0], encoded: c.encoded}
	for i, e := range c.encoded {
		c.encoded[i] = encodedTokens{tokens: e.tokens[:0], mask: e.mask[:0], ends: e.ends[:0], ids: e.ids[:0]}
	}
	chunks.Put(c)
}

// split returns the tokens for val if isVal is true, and otherwise the tokens for train.
func (c *chunk) split(isVal bool) *encodedTokens {
	if isVal {
		return &c.encoded[valSplit]
	}
	return &c.encoded[trainSplit]
}

// tokens returns the number of tokens in the chunk. A token takes width bytes.
func (c *chunk) tokens(width int) (n int64) {
	for _, e := range c.encoded {
		n += int64(len(e.tokens) / width)
	}
	return n
}
