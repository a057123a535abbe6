package prepare

import (
	"context"
	"runtime"
	"sync"

	"batchfs/cmd/batchfs/command"
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
// the reader, which may be blocked by a pipe or a disk. The reader decompresses parquet files in
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
