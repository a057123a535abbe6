package bench

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/prepare/bpe"
)

//go:embed tokenize.py
var tokenizePy string

// An encoding is the tokens of all texts by one library.
type encoding struct {
	Vocabulary string  `json:"vocabulary"`
	Library    string  `json:"library"`
	Bytes      int     `json:"bytes"`
	Seconds    float64 `json:"seconds"` // of one processor, in the fastest round
	Tokens     int     `json:"tokens"`
	Checksum   uint32  `json:"checksum"`
	Cores      float64 `json:"cores,omitzero"` // how many times as fast all cores are as one, by the clock
}

// runTokenize measures how fast one core encodes texts, next to the libraries that Python has.
func (o *options) runTokenize(ctx context.Context, out, progress io.Writer) (err error) {
	s, err := newStage(o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	fmt.Fprintf(progress, "reading texts below %s\n", o.tokenize)
	texts, size, err := readTexts(o.tokenize)
	if err != nil {
		return err
	}
	list := filepath.Join(s.dir, "texts.json")
	words := make([]string, len(texts))
	for i, text := range texts {
		words[i] = string(text)
	}
	raw, err := json.Marshal(words)
	if err == nil {
		err = os.WriteFile(list, raw, 0o600)
	}
	if err != nil {
		return err
	}
	python, err := s.trainer(ctx, o.python, "-c", tokenizePy, list)
	if err != nil {
		return fmt.Errorf("--python: %w", err)
	}
	versions := map[string]string{}
	if err := python.read(&versions); err != nil {
		return fmt.Errorf("%w; does the Python that --python names have tiktoken and NumPy?", err)
	}
	var all []*encoding
	for _, name := range []string{"gpt2", "cl100k", "o200k"} {
		tokenizer, err := bpe.Named(name)
		if err != nil {
			return err
		}
		path := filepath.Join(s.dir, strings.Replace(name, "gpt2", "r50k", 1)+"_base.tiktoken")
		var ranks bytes.Buffer
		tokenizer.WriteRanks(&ranks)
		if err := os.WriteFile(path, ranks.Bytes(), 0o600); err != nil {
			return err
		}
		ours := &encoding{Vocabulary: name, Library: "batchfs", Bytes: size, Seconds: math.Inf(1)}
		theirs := []*encoding{}
		for _, library := range []string{"tiktoken", "gigatoken"} {
			if versions[library] != "" {
				theirs = append(theirs, &encoding{Vocabulary: name, Library: library, Bytes: size, Seconds: math.Inf(1)})
			}
		}
		one, every := math.Inf(1), math.Inf(1)
		for round := range cmp.Or(o.rounds, 3) {
			fmt.Fprintf(progress, "%s: round %d\n", name, round+1)
			if err := ctx.Err(); err != nil {
				return err
			}
			ours.encode(tokenizer, texts)
			for _, e := range theirs {
				python.write(command{Kind: e.Library, Path: path})
				answer := *e
				if err := python.read(&answer); err != nil {
					return err
				}
				answer.Seconds = min(answer.Seconds, e.Seconds)
				*e = answer
			}
			one, every = min(one, encodeOn(1, tokenizer, texts)), min(every, encodeOn(runtime.NumCPU(), tokenizer, texts))
		}
		ours.Cores = one / every
		if tiktoken := theirs[0]; tiktoken.Checksum != ours.Checksum {
			return fmt.Errorf("%s: %d tokens, and tiktoken has %d or others: please report it, with the texts", name, ours.Tokens, tiktoken.Tokens)
		}
		all = append(append(all, ours), theirs...)
	}
	printEncodings(out, all, versions)
	if o.json != "" {
		raw, err := json.MarshalIndent(all, "", "  ")
		if err == nil {
			err = os.WriteFile(o.json, append(raw, '\n'), 0o644)
		}
		return err
	}
	return nil
}

func printEncodings(out io.Writer, all []*encoding, versions map[string]string) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%.1f MB on one core\t\tMB/s\tMtokens/s\tbatchfs is\t\n", float64(all[0].Bytes)/1e6)
	var ours *encoding
	slowest := math.Inf(1)
	for _, e := range all {
		ratio := ""
		switch e.Library {
		case "batchfs":
			ours = e
		case "tiktoken":
			slowest = min(slowest, e.Seconds/ours.Seconds)
			fallthrough
		default:
			ratio = fmt.Sprintf("%.1f times as fast", e.Seconds/ours.Seconds)
		}
		fmt.Fprintf(w, "%s\t%s %s\t%.1f\t%.1f\t%s\t\n", e.Vocabulary, e.Library, versions[e.Library], float64(e.Bytes)/e.Seconds/1e6, float64(e.Tokens)/e.Seconds/1e6, ratio)
	}
	w.Flush()
	for _, e := range all {
		if e.Library == "batchfs" {
			fmt.Fprintf(out, "%s: %d cores encode %.2f times as fast as one\n", e.Vocabulary, runtime.NumCPU(), e.Cores)
		}
	}
	fmt.Fprintf(out, "at least 3 times as fast as tiktoken: %v (%.1f)\n", slowest >= 3, slowest)
	if versions["gigatoken"] == "" {
		fmt.Fprintln(out, "not measured: gigatoken, which this Python does not have")
	}
}

// readTexts returns texts of a directory, enough of them to measure with.
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

// encode encodes all texts with an encoder that knows nothing yet, as tiktoken begins, on one core.
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

// encodeOn returns how many seconds so many goroutines take for all texts.
func encodeOn(n int, t *bpe.Tokenizer, texts [][]byte) float64 {
	var next atomic.Int64
	began := time.Now()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			encoder := t.NewEncoder()
			var tokens []uint32
			for i := next.Add(1) - 1; i < int64(len(texts)); i = next.Add(1) - 1 {
				tokens = encoder.Append(tokens[:0], texts[i])
			}
		})
	}
	all.Wait()
	return time.Since(began).Seconds()
}

// processorTime is what this process has used of all processors.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // it has no reason to fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
