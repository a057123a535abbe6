package prepare

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"batchfs/cmd/batchfs/vocabulary"
)

var splits = [...]string{"train", "val"}

// A writer appends encoded chunks to the shards of train and val in a working directory, and saves
// checkpoints. It belongs to one goroutine.
type writer struct {
	work      *workDir
	state     *checkpoint
	shards    [len(splits)]*split
	canResume bool // whether the inputs can be read again from a position
	progress  *progress

	began, nextSave time.Time
	tokens          int64 // written since began
}

// newWriter returns a writer that continues from a checkpoint, which it keeps up to date.
func newWriter(p *plan, work *workDir, state *checkpoint, progress *progress) *writer {
	began := time.Now()
	w := &writer{work: work, state: state, canResume: !slices.ContainsFunc(p.inputs, (*input).readableOnce), progress: progress,
		began: began, nextSave: began.Add(time.Second)}
	out := &outputOptions{dir: work.dir, format: outputFormats[p.Format], width: p.width, maxTokens: p.ShardTokens, masked: p.masked, tokenizer: p.Name()}
	out.wholeDocuments = p.eotBegins || out.format.finish != nil
	for i, name := range splits {
		w.shards[i] = &split{outputOptions: out, name: name, splitState: state.Splits[i]}
	}
	return w
}

// write appends a chunk. It saves a checkpoint after a second, then every ten seconds and after
// each complete shard.
func (w *writer) write(ch *chunk) error {
	due := time.Now().After(w.nextSave)
	w.state.Notes.add(&ch.notes)
	if err := w.state.Notes.checkUnusable(); err != nil {
		return err
	}
	for i, split := range w.shards {
		completed, err := split.write(ch.encoded[i])
		if err != nil {
			return err
		}
		due = due || completed
	}
	w.tokens += ch.tokens(w.shards[0].width)
	w.progress.advanceTo(ch.end)
	w.progress.Describe(fmt.Sprintf("encoding, %.2f million tokens/s", float64(w.tokens)/1e6/time.Since(w.began).Seconds()))
	if !due {
		return nil
	}
	w.nextSave = time.Now().Add(10 * time.Second)
	return w.save(ch.end)
}

// save saves a checkpoint at a position.
func (w *writer) save(pos position) error {
	if !w.canResume {
		return nil
	}
	w.state.Position = pos
	for i, split := range w.shards {
		if err := split.sync(); err != nil {
			return err
		}
		w.state.Splits[i] = split.splitState
	}
	return w.work.save(w.state)
}

// complete completes the last shards, and returns what was written in all.
func (w *writer) complete() (made [len(splits)]vocabulary.Split, err error) {
	for i, split := range w.shards {
		if err := split.completeShard(); err != nil {
			return made, err
		}
		made[i] = split.total()
	}
	return made, nil
}

func (w *writer) close() {
	for _, split := range w.shards {
		split.closeFiles()
	}
}

type outputOptions struct {
	dir       *os.Root
	format    outputFormat
	width     int
	maxTokens int64 // per shard; 0 for a single shard
	masked    bool
	tokenizer string

	wholeDocuments bool // whether each shard ends with a document
}

// A split writes the shards of train or val, one after the other. It belongs to one goroutine.
type split struct {
	*outputOptions
	name string
	splitState
	files [3]*os.File // tokens, ends of documents and mask of the current shard; nil if absent
}

type splitState struct {
	Shards    []vocabulary.Shard `json:"shards"`
	Tokens    int64              `json:"tokens"`     // tokens in the current shard
	Documents int64              `json:"documents"`  // documents that end in the current shard
	MaskOnes  int64              `json:"mask_ones"`  // tokens with mask 1 in the current shard
	EOTInside int64              `json:"eot_inside"` // end-of-text tokens inside documents, in all
}

// shardName returns the name of the current shard. mount --data recognizes both forms.
func (s *split) shardName() string {
	if s.maxTokens == 0 {
		return s.name + s.format.extension
	}
	return fmt.Sprintf("%s_%06d%s", s.name, len(s.Shards)+1, s.format.extension)
}

func maskPath(path string) string { return path[:len(path)-len(filepath.Ext(path))] + ".mask.bin" }

// openShard opens the files of the current shard if necessary, and truncates them to their sizes in
// the checkpoint.
func (s *split) openShard() error {
	if s.files[0] != nil {
		return nil
	}
	names := [3]string{s.shardName()}
	names[1] = s.format.endsFile(names[0])
	if s.masked {
		names[2] = maskPath(names[0])
	}
	sizes := [3]int64{int64(len(s.shardHeader())) + s.Tokens*int64(s.width), 8 * s.Documents, s.Tokens}
	for i, name := range names {
		if name == "" {
			continue
		}
		f, err := s.dir.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return err
		}
		s.files[i] = f
		size, err := f.Seek(0, io.SeekEnd)
		if err == nil && s.Tokens > 0 && size < sizes[i] {
			err = fmt.Errorf("%s: has %d bytes, but had %d: restore the file, or remove %s to start over", f.Name(), size, sizes[i], s.dir.Name())
		}
		if err == nil {
			err = f.Truncate(sizes[i])
		}
		if err == nil {
			_, err = f.Seek(sizes[i], io.SeekStart)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *split) shardHeader() []byte {
	if s.format.header == nil {
		return nil
	}
	return s.format.header(s.Tokens, s.width)
}

// write appends tokens, completes full shards, and reports whether it completed one.
func (s *split) write(e encodedTokens) (completed bool, err error) {
	s.EOTInside += e.eotInside
	for len(e.tokens) > 0 {
		all := int64(len(e.tokens) / s.width)
		n, full := all, false
		if room := s.maxTokens - s.Tokens; s.maxTokens > 0 {
			if !s.wholeDocuments {
				n, full = min(all, room), room <= all
			} else if i := slices.IndexFunc(e.ends, func(end int64) bool { return end >= room }); i >= 0 {
				n, full = e.ends[i], true
			}
		}
		documents := len(e.ends)
		if n < all {
			documents, _ = slices.BinarySearch(e.ends, n+1)
		}
		if s.format.maxTokens > 0 && s.Tokens+n > s.format.maxTokens {
			return false, fmt.Errorf("%s: the format cannot hold more than %d tokens in a shard: use --shard-tokens", s.shardName(), s.format.maxTokens)
		}
		if err := s.appendToShard(e, n, documents); err != nil {
			return false, err
		}
		e.tokens = e.tokens[n*int64(s.width):]
		if s.masked {
			e.mask = e.mask[n:]
		}
		e.ends = slices.Clone(e.ends[documents:])
		for i := range e.ends {
			e.ends[i] -= n
		}
		if full {
			completed = true
			if err := s.completeShard(); err != nil {
				return false, err
			}
		}
	}
	return completed, nil
}

// appendToShard appends the first n tokens, in which the given number of documents end, to the
// current shard.
func (s *split) appendToShard(e encodedTokens, n int64, documents int) error {
	if err := s.openShard(); err != nil {
		return err
	}
	var ends []byte
	for _, end := range e.ends[:documents] {
		ends = binary.LittleEndian.AppendUint64(ends, uint64(s.Tokens+end))
	}
	parts := [...][]byte{e.tokens[:n*int64(s.width)], ends, nil}
	if s.masked {
		parts[2] = e.mask[:n]
	}
	for i, raw := range parts {
		if s.files[i] == nil {
			continue
		}
		if _, err := s.files[i].Write(raw); err != nil {
			return err
		}
	}
	s.Tokens += n
	s.Documents += int64(documents)
	s.MaskOnes += int64(bytes.Count(parts[2], []byte{1}))
	return nil
}

func (s *split) sync() error {
	for _, f := range s.files {
		if f != nil {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
}

// completeShard ends the current shard, unless it is empty.
func (s *split) completeShard() error {
	if s.Tokens == 0 {
		return nil
	}
	if err := s.openShard(); err != nil { // after an interruption, the files may exist already
		return err
	}
	if _, err := s.files[0].WriteAt(s.shardHeader(), 0); err != nil {
		return err
	}
	if err := cmp.Or(s.endLastDocument(), s.sync()); err != nil {
		return err
	}
	name := s.shardName()
	if s.format.finish != nil {
		if err := s.format.finish(s.dir, name, shardInfo{s.Tokens, s.Documents, s.width, s.tokenizer}); err != nil {
			return err
		}
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(s.files[0], 0, 1<<62)); err != nil {
		return fmt.Errorf("%s: %w", s.files[0].Name(), err)
	}
	s.closeFiles()
	done := vocabulary.Shard{Name: name, Tokens: s.Tokens, Documents: s.Documents, SHA256: fmt.Sprintf("%x", hash.Sum(nil))}
	if s.masked {
		done.MaskOnes = s.MaskOnes
		done.Arrays = []vocabulary.ArrayFile{{Name: "mask", File: maskPath(name), DType: "uint8"}}
	}
	s.splitState = splitState{Shards: append(s.Shards, done), EOTInside: s.EOTInside}
	return nil
}

// total describes the complete shards.
func (s *split) total() vocabulary.Split {
	all := vocabulary.Split{Shards: s.Shards, EOTInside: s.EOTInside}
	for _, shard := range s.Shards {
		all.Tokens += shard.Tokens
		all.Documents += shard.Documents
	}
	return all
}

// endLastDocument ends a document at the end of the shard even if the next shard continues it,
// because readers treat each file separately.
func (s *split) endLastDocument() error {
	var last [8]byte
	if s.Documents > 0 {
		if _, err := s.files[1].ReadAt(last[:], 8*(s.Documents-1)); err != nil {
			return err
		}
	}
	if binary.LittleEndian.Uint64(last[:]) == uint64(s.Tokens) {
		return nil
	}
	_, err := s.files[1].WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(s.Tokens)), 8*s.Documents)
	return err
}

func (s *split) closeFiles() {
	for i, f := range s.files {
		if f != nil {
			f.Close()
			s.files[i] = nil
		}
	}
}
