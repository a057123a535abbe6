package bench

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/prepare/bpe"
)

//go:embed tokenize.py
var tokenizePy string

// An encoding is the result of encoding all texts with one library.
type encoding struct {
	Vocabulary string  `json:"vocabulary"`
	Library    string  `json:"library"`
	Bytes      int     `json:"bytes"`
	Seconds    float64 `json:"seconds"` // processor time of the fastest round
	Tokens     int     `json:"tokens"`
	Checksum   uint32  `json:"checksum"`
}

func (o *options) runTokenize(s *stage, out io.Writer) (any, error) {
	fmt.Fprintf(s.stderr, "reading texts below %s\n", o.tokenize)
	texts, size, err := readTexts(o.tokenize)
	if err != nil {
		return nil, err
	}
	list := filepath.Join(s.dir, "texts.json")
	raw, err := json.Marshal(texts)
	if err == nil {
		err = os.WriteFile(list, raw, 0o600)
	}
	if err != nil {
		return nil, err
	}
	python, err := s.startTrainer(o.python, tokenizePy, list)
	if err != nil {
		return nil, err
	}
	versions := map[string]string{}
	if err := python.read(&versions); err != nil {
		return nil, fmt.Errorf("%w; does the Python that --python names have tiktoken and NumPy?", err)
	}
	fmt.Fprintf(out, "%.1f MB on one core:\n", float64(size)/1e6)
	var encodings []*encoding
	for _, name := range []string{"gpt2", "cl100k", "o200k"} {
		ours := &encoding{Vocabulary: name, Library: "batchfs", Bytes: size, Seconds: math.Inf(1)}
		theirs := &encoding{Vocabulary: name, Library: "tiktoken", Bytes: size, Seconds: math.Inf(1)}
		if err := o.compareEncodings(s, python, texts, ours, theirs); err != nil {
			return nil, err
		}
		encodings = append(encodings, ours, theirs)
		for _, e := range []*encoding{ours, theirs} {
			fmt.Fprintf(out, "%-7s %-8s %-7s %6.1f MB/s %6.1f Mtokens/s\n", name, e.Library, versions[e.Library],
				float64(size)/e.Seconds/1e6, float64(e.Tokens)/e.Seconds/1e6)
		}
		fmt.Fprintf(out, "batchfs is %.1f times as fast\n", theirs.Seconds/ours.Seconds)
	}
	return encodings, nil
}

// compareEncodings encodes the texts with both libraries in turn. It fails if their tokens differ.
func (o *options) compareEncodings(s *stage, python *trainer, texts [][]byte, ours, theirs *encoding) error {
	tokenizer, err := bpe.Named(ours.Vocabulary)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, strings.Replace(ours.Vocabulary, "gpt2", "r50k", 1)+"_base.tiktoken")
	var ranks bytes.Buffer
	tokenizer.WriteRanks(&ranks)
	if err := os.WriteFile(path, ranks.Bytes(), 0o600); err != nil {
		return err
	}
	for round := range cmp.Or(o.rounds, 3) {
		fmt.Fprintf(s.stderr, "%s: round %d\n", ours.Vocabulary, round+1)
		if err := s.ctx.Err(); err != nil {
			return err
		}
		ours.encode(tokenizer, texts)
		fastest := theirs.Seconds
		python.write(trainerCommand{Path: path})
		if err := python.read(theirs); err != nil {
			return err
		}
		theirs.Seconds = min(theirs.Seconds, fastest)
	}
	if theirs.Checksum != ours.Checksum {
		return fmt.Errorf("%s: %d tokens, and tiktoken has %d or others: please report it, with the texts", ours.Vocabulary, ours.Tokens, theirs.Tokens)
	}
	return nil
}

// readTexts returns UTF-8 texts below a directory, about 16 MiB if there are so many. It fails if
// there is less than 1 MiB.
func readTexts(dir string) (texts [][]byte, size int, err error) {
	const least, most = 1 << 20, 16 << 20
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil && path == dir {
			return fmt.Errorf("--tokenize: %w", err)
		}
		if err != nil || !entry.Type().IsRegular() {
			return nil
		}
		if info, err := entry.Info(); err != nil || info.Size() > most/8 {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || len(text) == 0 || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
			return nil
		}
		texts = append(texts, text)
		if size += len(text); size >= most {
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && size < least {
		err = fmt.Errorf("--tokenize: %s has %d bytes of text, too few to measure: name another directory, as in --tokenize=DIR", dir, size)
	}
	return texts, size, err
}

// encode encodes all texts on one core, beginning with an empty cache.
func (e *encoding) encode(t *bpe.Tokenizer, texts [][]byte) {
	runtime.GC()
	var tokens []uint32
	began := processorTime()
	encoder := t.NewEncoder()
	for _, text := range texts {
		tokens = encoder.Append(tokens, text)
	}
	e.Seconds = min(e.Seconds, (processorTime() - began).Seconds())
	var raw []byte
	e.Tokens, e.Checksum = len(tokens), 0
	for _, token := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, token)
	}
	e.Checksum = crc32.ChecksumIEEE(raw)
}

func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
