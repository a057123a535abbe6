package cache

import (
	"cmp"
	"errors"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"batchfs/cache/array"
)

// Tokens is one array of tokens kept in one or several files, one after the other. A position in it counts tokens from its
// first, in the order of the files. It is safe for concurrent use.
//
// It has no lock of its own. Read and Release take those of its files, one at a time.
type Tokens struct {
	dtype  array.DType
	width  int64 // bytes of a token
	vocab  int64 // Options.VocabSize
	shards []shard
	runs   []Run
	many   bool // Check does not look at all files each time

	changed atomic.Pointer[shard] // one that was found changed, until it is put back
	checked atomic.Int64          // when Check last looked at all of many files, as uptime says; 0: never
}

// uptime is a time on a clock that nobody sets. It is above a second.
func uptime() time.Duration { return time.Since(began) }

var began = time.Now().Add(-time.Minute)

// A shard is one file.
type shard struct {
	blob    Blob
	format  Format
	start   int64      // position of its first token
	settles settlement // of the file that was written over it
}

// end is the position behind the shard's last token.
func (s *shard) end() int64 { return s.start + s.format.Count }

// A Window is Len tokens from position Start on.
type Window struct {
	Start int64
	Len   int
}

// A Run is a stretch of the array that a window must not leave: one file, or all of them where they are joined.
type Run struct {
	Name  string // the file, or the first of those joined
	Start int64  // position of its first token
	Len   int64  // tokens
}

// A Place is where a token stands.
type Place struct {
	Path  string
	Index int64 // of the token in the file
}

// Len is the number of tokens.
func (t *Tokens) Len() int64 { return t.shards[len(t.shards)-1].end() }

// DType is the type of a token in the files.
func (t *Tokens) DType() array.DType { return t.dtype }

// VocabSize is that of the Options: tokens are below it, or 0 where nobody knows. Read does not compare them.
func (t *Tokens) VocabSize() int64 { return t.vocab }

// Files are the paths, in order.
func (t *Tokens) Files() []string {
	paths := make([]string, len(t.shards))
	for i := range t.shards {
		paths[i] = t.shards[i].blob.Path()
	}
	return paths
}

// Runs are the stretches that windows must stay within, in order and without gaps. They are not the caller's to change.
func (t *Tokens) Runs() []Run { return t.runs }

// Locate is where the token at a position stands.
func (t *Tokens) Locate(pos int64) Place {
	s := t.shardAt(pos)
	return Place{s.blob.Path(), pos - s.start}
}

// shard is that of file i, or nil where there are no tokens or no such file.
func (t *Tokens) shard(i int) *shard {
	if t == nil || i >= len(t.shards) {
		return nil
	}
	return &t.shards[i]
}

// fewFiles is how many files every Check looks at. If there are more, Check looks at all of them once a second.
const fewFiles = 64

// Check looks whether the files are those that were opened, without reading them. It returns a ChangedError for one that is
// not, or the error of looking, for example of a file that is gone. Of more than 64 files it looks at all once a second, and
// in between at the one that was last found changed, if there is one.
func (t *Tokens) Check() error {
	if err := t.checkChanged(); err != nil {
		return err
	}
	if t.many {
		now, last := int64(uptime()), t.checked.Load()
		if now-last < int64(time.Second) || !t.checked.CompareAndSwap(last, now) {
			return nil
		}
	}
	for i := range t.shards {
		s := &t.shards[i]
		if err := s.blob.Check(); err != nil {
			return t.remember(s, err)
		}
	}
	return nil
}

// checkChanged looks again at a file that was found changed: the others are of no use until it is put back.
func (t *Tokens) checkChanged() error {
	s := t.changed.Load()
	if s == nil {
		return nil
	}
	if err := s.blob.Check(); err != nil {
		return err
	}
	t.changed.CompareAndSwap(s, nil)
	return nil
}

// remember returns err, and keeps the shard for checkChanged if err says that it has changed.
func (t *Tokens) remember(s *shard, err error) error {
	if errors.Is(err, syscall.ESTALE) {
		t.changed.Store(s)
	}
	return err
}

// Release lets go of what is kept between two reads: mappings, which keep the space of deleted files taken. The next read
// makes them again.
func (t *Tokens) Release() {
	for i := range t.shards {
		t.shards[i].blob.Release()
	}
}

// shardAt is the shard that holds a position.
func (t *Tokens) shardAt(pos int64) *shard {
	return &t.shards[sort.Search(len(t.shards), func(i int) bool { return t.shards[i].start > pos })-1]
}

// rangeLists are *[]Range, the ranges of one Read.
var rangeLists = sync.Pool{New: func() any { return new([]Range) }}

// Read fetches windows and calls visit once for each, in any order, with the window's index in ws and its tokens as they stand
// in the file. raw is valid during the call only. Each window must lie within a run. An error of visit ends the read and is
// returned, unless the file changed, which then explains it.
//
// While a file is known to have changed, every read fails with its ChangedError, also one of other files or of no window.
func (t *Tokens) Read(ws []Window, visit func(i int, raw []byte) error) error {
	if err := t.checkChanged(); err != nil || len(ws) == 0 {
		return err
	}
	list := rangeLists.Get().(*[]Range)
	defer rangeLists.Put(list)
	todo := slices.Grow((*list)[:0], len(ws))
	for i, w := range ws {
		todo = append(todo, Range{w.Start, w.Start + int64(w.Len), i}) // positions, until their file is known
	}
	*list = todo
	if len(t.shards) > 1 { // so that each file is opened once
		slices.SortFunc(todo, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	}
	for len(todo) > 0 {
		s := t.shardAt(todo[0].From)
		n := 0
		for n < len(todo) && todo[n].To <= s.end() {
			todo[n] = t.bytes(s, todo[n])
			n++
		}
		if n == 0 {
			n = 1
			if err := t.readAcross(todo[0], visit); err != nil {
				return err
			}
		} else if err := s.blob.Read(todo[:n], visit); err != nil {
			return t.remember(s, err)
		}
		todo = todo[n:]
	}
	return nil
}

// bytes makes positions within a shard bytes of its file.
func (t *Tokens) bytes(s *shard, r Range) Range {
	first := s.format.Offset - s.start*t.width
	return Range{first + r.From*t.width, first + r.To*t.width, r.Index}
}

// readAcross reads positions that begin in one shard and end in a later one.
func (t *Tokens) readAcross(r Range, visit func(int, []byte) error) error {
	whole := make([]byte, 0, (r.To-r.From)*t.width)
	for next := r.From; next < r.To; {
		s := t.shardAt(next)
		part := Range{From: next, To: min(r.To, s.end())}
		next = part.To
		err := s.blob.Read([]Range{t.bytes(s, part)}, func(_ int, raw []byte) error {
			whole = append(whole, raw...)
			return nil
		})
		if err != nil {
			return t.remember(s, err)
		}
	}
	return visit(r.Index, whole)
}
