package prepare

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"batchfs/cmd/batchfs/prepare/input"
	"batchfs/cmd/batchfs/prepare/units"
	"batchfs/cmd/batchfs/vocabulary"
)

// A writer appends encoded chunks to the shards of train and val in a working directory, and saves
// checkpoints. It belongs to one goroutine.
type writer struct {
	work      *workDir
	state     *checkpoint
	shards    [len(splits)]*splitWriter
	documents string    // what the documents are called, such as lines
	canResume bool      // whether the inputs can be read again from a position
	texts     hash.Hash // hash of all text; nil if nobody needs it
	progress  *progress

	began, nextSave time.Time
	tokens          int64 // number of tokens written since began
}

// newWriter returns a writer that continues from a checkpoint, which it keeps up to date. unit is
// the name of the unit to write, or empty.
func newWriter(p *plan, work *workDir, state *checkpoint, unit string, progress *progress) *writer {
	began := time.Now()
	_, documents := linesOrRows(p.inputs)
	w := &writer{work: work, state: state, documents: documents, canResume: !slices.ContainsFunc(p.inputs, (*input.File).ReadableOnce),
		progress: progress, began: began, nextSave: began.Add(time.Second)}
	out := &outputOptions{dir: work.dir, unit: unit, format: outputFormats[p.settings.Format], width: p.encoding.width,
		maxTokens: p.settings.ShardTokens, masked: p.encoding.masked, tokenizer: p.encoding.tokenizer.Name()}
	out.hasIDs = p.encoding.id != nil
	out.wholeDocuments = p.encoding.eotBegins || p.encoding.ids || out.hasIDs || out.format.finish != nil
	for i, name := range splits {
		w.shards[i] = &splitWriter{options: out, name: name, state: state.Splits[i]}
	}
	return w
}

// newUnitWriter returns a writer for the shards of a unit, which are named for it, in dir. It saves
// no checkpoints, because a unit that is interrupted begins again.
func newUnitWriter(p *plan, dir *os.Root, unit string, progress *progress) *writer {
	w := newWriter(p, &workDir{dir: dir}, new(checkpoint), unit, progress)
	w.canResume, w.texts = false, sha256.New()
	return w
}

// write appends a chunk. It saves a checkpoint after a second, then every ten seconds and when a
// shard ends.
func (w *writer) write(ch *chunk) error {
	due := time.Now().After(w.nextSave)
	w.state.Notes.add(&ch.notes)
	if err := w.state.Notes.checkUnusable(w.documents); err != nil {
		return err
	}
	if w.texts != nil {
		w.texts.Write(ch.text)
	}
	for i, split := range w.shards {
		ended, err := split.write(ch.encoded[i])
		if err != nil {
			return err
		}
		due = due || ended
	}
	w.tokens += ch.tokens(w.shards[trainSplit].options.width)
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
		w.state.Splits[i] = split.state
	}
	return w.work.save(w.state)
}

// end ends the last shards, and returns what was written in all.
func (w *writer) end() (made [len(splits)]vocabulary.Split, err error) {
	for i, split := range w.shards {
		if err := split.endShard(); err != nil {
			return made, err
		}
		made[i] = split.total()
	}
	return made, nil
}

func (w *writer) eotCounts() (counts [len(splits)]units.EOTCounts) {
	for i, split := range w.shards {
		counts[i] = split.state.EOTCounts
	}
	return counts
}

// idsEOTAt returns where each document has its only end-of-text token, with --ids.
func idsEOTAt(made [len(splits)]vocabulary.Split, counts [len(splits)]units.EOTCounts) string {
	begins, ends := true, true
	for i, split := range made {
		if counts[i].EOTTokens != split.Documents {
			return "none"
		}
		begins, ends = begins && counts[i].EOTBegins == split.Documents, ends && counts[i].EOTEnds == split.Documents
	}
	switch {
	case ends:
		return "end"
	case begins:
		return "begin"
	}
	return "none"
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
	maxTokens int64  // limit of a shard; 0 for a single shard
	unit      string // name of the unit that the single shard holds, or empty
	masked    bool
	tokenizer string

	hasIDs         bool // whether documents have ids
	wholeDocuments bool // whether each shard ends with a document
}

// A splitWriter writes the shards of train or val, one after the other. It belongs to one
// goroutine.
type splitWriter struct {
	options *outputOptions
	name    string
	state   splitState
	files   [numFiles]*os.File // files of the current shard; nil if it has none of the kind
}

// Indexes of the files of a shard.
const (
	tokensFile = iota
	endsFile   // ends of documents
	maskFile
	idsFile
	numFiles
)

type splitState struct {
	Shards    []vocabulary.Shard `json:"shards"`
	Tokens    int64              `json:"tokens"`    // tokens in the current shard
	Documents int64              `json:"documents"` // documents that end in the current shard
	MaskOnes  int64              `json:"mask_ones"` // tokens with mask 1 in the current shard
	// IsCut says whether the last shard ended in the middle of a document.
	IsCut bool `json:"is_cut,omitempty"`
	// IDBytes is the size of the file with the ids of the current shard's documents.
	IDBytes         int64 `json:"id_bytes,omitempty"`
	units.EOTCounts       // counts of all shards
}

// shardName returns the name of the current shard. mount --data recognizes all forms.
func (s *splitWriter) shardName() string {
	if s.options.unit != "" {
		return s.name + "_" + s.options.unit + s.options.format.extension
	}
	if s.options.maxTokens == 0 {
		return s.name + s.options.format.extension
	}
	return fmt.Sprintf("%s_%06d%s", s.name, len(s.state.Shards)+1, s.options.format.extension)
}

// smallerShards returns the option with which shards have fewer tokens.
func (o *outputOptions) smallerShards() string {
	if o.unit != "" {
		return "a smaller --unit-bytes in a new plan, or smaller inputs"
	}
	return "--shard-tokens"
}

func maskPath(path string) string { return path[:len(path)-len(filepath.Ext(path))] + ".mask.bin" }

// openShard opens the files of the current shard if necessary, and truncates them to their sizes in
// the checkpoint.
func (s *splitWriter) openShard() error {
	if s.files[tokensFile] != nil {
		return nil
	}
	name := s.shardName()
	names := [numFiles]string{tokensFile: name, endsFile: s.options.format.endsName(name)}
	if s.options.masked {
		names[maskFile] = maskPath(name)
	}
	if s.options.hasIDs {
		names[idsFile] = name + idsSuffix
	}
	sizes := [numFiles]int64{
		tokensFile: int64(len(s.shardHeader())) + s.state.Tokens*int64(s.options.width),
		endsFile:   8 * s.state.Documents,
		maskFile:   s.state.Tokens,
		idsFile:    s.state.IDBytes,
	}
	for i, name := range names {
		if name == "" {
			continue
		}
		f, err := s.options.dir.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return err
		}
		s.files[i] = f
		if err := s.truncate(f, sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

// truncate cuts a file of the current shard to its size in the checkpoint, and seeks to the end.
func (s *splitWriter) truncate(f *os.File, size int64) error {
	found, err := f.Seek(0, io.SeekEnd)
	switch {
	case err != nil:
		return err
	case s.state.Tokens > 0 && found < size:
		return fmt.Errorf("%s: has %d bytes, but had %d: restore the file, or remove %s to start over", f.Name(), found, size, s.options.dir.Name())
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	_, err = f.Seek(size, io.SeekStart)
	return err
}

func (s *splitWriter) shardHeader() []byte {
	if s.options.format.header == nil {
		return nil
	}
	return s.options.format.header(s.state.Tokens, s.options.width)
}

// write appends tokens, ends full shards, and reports whether it ended one.
func (s *splitWriter) write(e encodedTokens) (ended bool, err error) {
	s.state.Add(e.eot)
	if len(e.ends) > 0 && e.ends[0] == 0 { // the last piece of a document has no tokens
		switch isEnd, err := s.isDocumentEnd(); {
		case err != nil:
			return false, err
		case isEnd && s.state.Tokens == 0 && s.state.IsCut: // endShard has not counted it
			s.state.Shards[len(s.state.Shards)-1].Documents++
			s.state.IsCut = false
			e.ends = e.ends[1:]
		case isEnd: // no piece of the document has tokens
			e.ends = e.ends[1:]
		}
	}
	for len(e.tokens) > 0 || len(e.ends) > 0 {
		n, full := s.fit(e)
		documents, _ := slices.BinarySearch(e.ends, n+1)
		if s.options.format.maxTokens > 0 && s.state.Tokens+n > s.options.format.maxTokens {
			return false, fmt.Errorf("%s: the format cannot hold more than %d tokens in a shard: use %s", s.shardName(),
				s.options.format.maxTokens, s.options.smallerShards())
		}
		if err := s.appendToShard(e, n, documents); err != nil {
			return false, err
		}
		e.tokens = e.tokens[n*int64(s.options.width):]
		if s.options.masked {
			e.mask = e.mask[n:]
		}
		e.ids = e.ids[lenOfLines(e.ids, documents):]
		e.ends = slices.Clone(e.ends[documents:])
		for i := range e.ends {
			e.ends[i] -= n
		}
		if full {
			ended = true
			if err := s.endShard(); err != nil {
				return false, err
			}
		}
	}
	return ended, nil
}

// fit returns how many of the tokens go into the current shard, and whether they fill it.
func (s *splitWriter) fit(e encodedTokens) (n int64, full bool) {
	all, room := int64(len(e.tokens)/s.options.width), s.options.maxTokens-s.state.Tokens
	switch {
	case s.options.maxTokens == 0:
		return all, false
	case !s.options.wholeDocuments:
		return min(all, room), room <= all
	}
	i := slices.IndexFunc(e.ends, func(end int64) bool { return end >= room })
	if i < 0 {
		return all, false
	}
	return e.ends[i], true
}

// appendToShard appends the first n tokens, in which the given number of documents end, to the
// current shard.
func (s *splitWriter) appendToShard(e encodedTokens, n int64, documents int) error {
	if err := s.openShard(); err != nil {
		return err
	}
	parts := [numFiles][]byte{tokensFile: e.tokens[:n*int64(s.options.width)], idsFile: e.ids[:lenOfLines(e.ids, documents)]}
	for _, end := range e.ends[:documents] {
		parts[endsFile] = binary.LittleEndian.AppendUint64(parts[endsFile], uint64(s.state.Tokens+end))
	}
	if s.options.masked {
		parts[maskFile] = e.mask[:n]
	}
	for i, raw := range parts {
		if s.files[i] == nil {
			continue
		}
		if _, err := s.files[i].Write(raw); err != nil {
			return err
		}
	}
	s.state.Tokens += n
	s.state.Documents += int64(documents)
	s.state.MaskOnes += int64(bytes.Count(parts[maskFile], []byte{1}))
	s.state.IDBytes += int64(len(parts[idsFile]))
	return nil
}

// lenOfLines returns the length in bytes of the first n lines of a text, or of the whole text if it
// has fewer.
func lenOfLines(text []byte, n int) (length int) {
	for range n {
		length += bytes.IndexByte(text[length:], '\n') + 1
	}
	return length
}

func (s *splitWriter) sync() error {
	for _, f := range s.files {
		if f != nil {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
}

// endShard ends the current shard, unless it is empty.
func (s *splitWriter) endShard() error {
	if s.state.Tokens == 0 {
		return nil
	}
	// After a resume, the shard has tokens, but its files may not be open yet.
	if err := s.openShard(); err != nil {
		return err
	}
	if _, err := s.files[tokensFile].WriteAt(s.shardHeader(), 0); err != nil {
		return err
	}
	isCut, err := s.endLastDocument()
	if err := cmp.Or(err, s.sync()); err != nil {
		return err
	}
	name := s.shardName()
	if s.options.format.finish != nil {
		if err := s.options.format.finish(s.options.dir, name, shardInfo{s.state.Tokens, s.state.Documents, s.options.width, s.options.tokenizer}); err != nil {
			return err
		}
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, io.NewSectionReader(s.files[tokensFile], 0, 1<<62)); err != nil {
		return fmt.Errorf("%s: %w", s.files[tokensFile].Name(), err)
	}
	s.closeFiles()
	done := vocabulary.Shard{Name: name, Tokens: s.state.Tokens, Documents: s.state.Documents, SHA256: fmt.Sprintf("%x", hash.Sum(nil))}
	if s.options.masked {
		done.MaskOnes = s.state.MaskOnes
		done.Arrays = []vocabulary.ArrayFile{{Name: "mask", File: maskPath(name), DType: "uint8"}}
	}
	if s.options.hasIDs {
		done.IDs = name + idsSuffix
	}
	s.state = splitState{Shards: append(s.state.Shards, done), IsCut: isCut, EOTCounts: s.state.EOTCounts}
	return nil
}

// total describes the shards that have ended.
func (s *splitWriter) total() vocabulary.Split {
	all := vocabulary.Split{Shards: s.state.Shards, EOTInside: s.state.Inside()}
	for _, shard := range s.state.Shards {
		all.Tokens += shard.Tokens
		all.Documents += shard.Documents
	}
	return all
}

// endLastDocument ends a document at the end of the shard even if the next shard continues it,
// because readers treat each file separately. It reports whether that was necessary.
func (s *splitWriter) endLastDocument() (isCut bool, err error) {
	if isEnd, err := s.isDocumentEnd(); isEnd || err != nil {
		return false, err
	}
	_, err = s.files[endsFile].WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(s.state.Tokens)), 8*s.state.Documents)
	return true, err
}

// isDocumentEnd reports whether the tokens of the current shard end with a document, or there are
// none.
func (s *splitWriter) isDocumentEnd() (bool, error) {
	if s.state.Tokens == 0 {
		return true, nil
	}
	var last [8]byte
	if s.state.Documents > 0 {
		if err := s.openShard(); err != nil {
			return false, err
		}
		if _, err := s.files[endsFile].ReadAt(last[:], 8*(s.state.Documents-1)); err != nil {
			return false, err
		}
	}
	return binary.LittleEndian.Uint64(last[:]) == uint64(s.state.Tokens), nil
}

func (s *splitWriter) closeFiles() {
	for i, f := range s.files {
		if f != nil {
			f.Close()
			s.files[i] = nil
		}
	}
}
