package soak

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/prepare/bpe"
	"batchfs/test/e2e"
)

// BenchmarkEncode measures the processor time of encoding new text: in MB/s, and as a multiple of
// the speeds of tiktoken and gigatoken. To include gigatoken, install it next to tiktoken:
// $(.ci/tokenizers)/bin/pip install gigatoken==0.10.0
func BenchmarkEncode(b *testing.B) {
	dir := tokenizers(b)
	var texts []string
	var size int
	var in bytes.Buffer
	for text := range textsHere(b, 80<<20) {
		texts = append(texts, text)
		size += len(text)
		binary.Write(&in, binary.LittleEndian, uint32(len(text)))
		in.WriteString(text)
	}
	for _, name := range []string{"gpt2", "cl100k", "o200k"} {
		b.Run(name, func(b *testing.B) {
			tokenizer := e2e.Must(bpe.Named(name))(b)
			path := writeRanks(b, tokenizer)
			var tokens []uint32
			var ours []float64
			theirs := map[string][]float64{}
			for b.Loop() {
				encoder, began := tokenizer.NewEncoder(bpe.NewCache()), processorTime(b)
				for _, text := range texts {
					tokens = encoder.Append(tokens[:0], []byte(text))
				}
				ours = append(ours, processorTime(b)-began)
				for _, library := range []string{"tiktoken", "gigatoken"} {
					cmd := e2e.Job(b, filepath.Join(dir, "bin/python"), "clients/speed.py", library, path)
					cmd.Stdin = bytes.NewReader(in.Bytes())
					out, err := cmd.Output()
					if err != nil {
						b.Logf("%s: %v", library, err)
						continue
					}
					theirs[library] = append(theirs[library], e2e.Must(strconv.ParseFloat(strings.TrimSpace(string(out)), 64))(b))
				}
			}
			b.ReportMetric(float64(size)/1e6/median(ours), "MB/s")
			for library, seconds := range theirs {
				b.ReportMetric(median(seconds)/median(ours), "x-"+library)
			}
		})
	}
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// processorTime returns the processor time that this process has used, in seconds.
func processorTime(t testing.TB) float64 {
	var used unix.Rusage
	e2e.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
