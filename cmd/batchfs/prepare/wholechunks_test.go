package prepare

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// A forgetfulTokenizer is a pairTokenizer without tokens for " " and "ж".
type forgetfulTokenizer struct{ pairTokenizer }

func init() {
	tokenizers["forgetful"] = func() (tokenizer, error) { return forgetfulTokenizer{pairTokenizer{size: 1000}}, nil }
}

func (f forgetfulTokenizer) NewEncoder() encoder { return f }

func (f forgetfulTokenizer) Append(tokens []uint32, text []byte) []uint32 {
	for part := range strings.FieldsFuncSeq(string(text), func(r rune) bool { return r == ' ' || r == 'ж' }) {
		tokens = f.pairTokenizer.Append(tokens, []byte(part))
	}
	return tokens
}

// A document ends where its text does, even if its last piece ends with a chunk or has no tokens.
func TestPrepareWholeChunks(t *testing.T) {
	useSmallChunks(t, 1<<10, 1<<20)
	documents := map[string]string{}
	for i, size := range []int{1024, 1023, 1025, 2048, 3073, 5, 2048, 1024, 1000} {
		documents[fmt.Sprintf("%c%d", "tv"[i%2], i)] = strings.Repeat(fmt.Sprintf("text%d\n", i), size)[:size-1] + "x"
	}
	files := map[string]string{}
	for name, text := range documents {
		files["plain/"+name], files["gzip/"+name+".gz"], files["zstd/"+name+".zst"] = text, gzipped(text), zstandard(text)
		files["forgotten/"+name] = text + " " + strings.Repeat("ж", 1024)
	}
	testfiles.WriteHere(t, files)
	for dir, tokenizers := range map[string][]string{"plain": {"byte", "char", "pairs"}, "gzip": {"byte"}, "zstd": {"char"}, "forgotten": {"forgetful"}} {
		for _, by := range tokenizers {
			for format := range outputFormats {
				args := fmt.Sprintf("%s --by %s --eot none --val-files v* --as text --format %s --out ", dir, by, format)
				t.Run(args, func(t *testing.T) {
					testfiles.NoError(t, cmp.Or(os.RemoveAll("continued"), os.RemoveAll("out")))
					prepared(t, args+"out")
					for i, split := range splits {
						var texts []string
						for _, name := range slices.Sorted(maps.Keys(documents)) {
							if name[0] == "tv"[i] {
								texts = append(texts, documents[name])
							}
						}
						checkDocuments(t, split, by, texts)
					}
					for chunks := 1; format == "megatron" && stopAfter(t, chunks, args+"continued"); chunks++ {
						prepared(t, args+"continued")
						wantSame(t, filesOf(t, "continued"), filesOf(t, "out"))
						testfiles.NoError(t, os.RemoveAll("continued"))
					}
				})
			}
		}
	}
	prepared(t, "plain/t6 --by byte --eot none --val 0 --force --out out")
	checkDocuments(t, "train", "byte", []string{documents["t6"]})
	prepared(t, "plain --by byte --eot none --val 0 --shard-tokens 1024 --force --out out")
	if got := readManifest(t).Splits["train"].Documents; got != int64(len(documents)) {
		t.Errorf("%d documents in shards as long as a chunk, want %d", got, len(documents))
	}
	for name, index := range filesOf(t, "out") {
		if strings.HasSuffix(name, ".index") && strings.HasPrefix(index, strings.Repeat("\x00", 8)) {
			t.Errorf("%s begins with an empty document", name)
		}
	}
	// A document ends in a piece without tokens: its tokens have filled a shard, or it has none.
	none := strings.Repeat(" ж", 600)
	testfiles.WriteHere(t, map[string]string{"cut/t1": "x y z", "cut/t2": none, "full/t1": "x" + none, "full/t2": "yz", "none/t1": none, "none/t2": "x" + none, "none/t3": none, "none/t4": none + "x" + none})
	for args, want := range map[string]int64{"full --shard-tokens 1": 2, "cut --shard-tokens 2": 1, "none": 2, "none --shard-tokens 1": 2} {
		prepared(t, args+" --by forgetful --eot none --val 0 --as text --force --out ends")
		if got := readManifestOf(t, "ends").Splits["train"].Documents; got != want {
			t.Errorf("%s: %d documents, want %d", args, got, want)
		}
		for name, index := range filesOf(t, "ends") {
			for end := uint64(0); strings.HasSuffix(name, ".index") && index != ""; index = index[8:] {
				next := binary.LittleEndian.Uint64([]byte(index))
				if next <= end {
					t.Errorf("%s: %s has an empty document", args, name)
				}
				end = next
			}
		}
	}
}

// checkDocuments checks the documents of a split in its only shard.
func checkDocuments(t *testing.T, split, by string, texts []string) {
	t.Helper()
	m := readManifest(t)
	shards := m.Splits[split].Shards
	if len(shards) != 1 || m.Splits[split].Documents != int64(len(texts)) {
		t.Fatalf("%s: %d documents in %d shards, want %d in 1", split, m.Splits[split].Documents, len(shards), len(texts))
	}
	var ends []int
	n := 0
	for _, text := range texts {
		if by == "byte" || by == "char" {
			n += len(text)
		} else {
			n += len(pairTokenizer{}.Append(nil, []byte(text)))
		}
		ends = append(ends, n)
	}
	files := filesOf(t, "out")
	raw := files[shards[0].Name]
	var tokens []uint16
	for raw := []byte(raw[len(raw)-2*n:]); len(raw) > 0; raw = raw[2:] {
		tokens = append(tokens, binary.LittleEndian.Uint16(raw))
	}
	if got, want := decoded(m, tokens), strings.Join(texts, ""); got != want {
		t.Errorf("%s: %d bytes of text, want %d", split, len(got), len(want))
	}
	number := binary.LittleEndian.AppendUint64
	var want []byte
	for _, end := range ends {
		want = number(want, uint64(end))
	}
	index := files[shards[0].Name+".index"]
	if m.Format == "megatron" {
		index = files[strings.TrimSuffix(shards[0].Name, ".bin")+".idx"]
		starts := append([]int{0}, ends...)
		want = append(number([]byte("MMIDIDX\x00\x00"), 1), 8)
		want = number(number(want, uint64(len(ends))), uint64(len(starts)))
		for i, end := range ends {
			want = binary.LittleEndian.AppendUint32(want, uint32(end-starts[i]))
		}
		for i := range ends {
			want = number(want, uint64(2*starts[i]))
		}
		for i := range starts {
			want = number(want, uint64(i))
		}
	}
	if index != string(want) {
		t.Errorf("%s: an index of %d bytes %x, want %d bytes %x", split, len(index), index, len(want), want)
	}
}

var errStopped = errors.New("stopped")

// stopAfter begins a run and stops it with a checkpoint after a number of chunks. It reports
// whether there are that many.
func stopAfter(t *testing.T, chunks int, args string) bool {
	t.Helper()
	var o options
	cmd := new(cobra.Command)
	o.register(cmd)
	testfiles.NoError(t, cmd.ParseFlags(strings.Fields(args)))
	o.stdout, o.stderr = io.Discard, io.Discard
	p, err := o.makePlan(t.Context(), cmd.Flags().Args())
	testfiles.NoError(t, err)
	work, err := openWorkDir(o.dir)
	testfiles.NoError(t, err)
	defer work.close()
	s, err := o.startCheckpoint(work, p)
	testfiles.NoError(t, err)
	p, err = o.count(t.Context(), p, filepath.Join(o.dir, workDirName))
	testfiles.NoError(t, err)
	progress := o.newProgress("encoding", p.inputs, s.Position)
	defer progress.Finish()
	w := newWriter(p, work, s, "", progress)
	defer w.close()
	err = encodeInputs(t.Context(), p, s.Position, "", func(ch *chunk) error {
		if chunks--; chunks > 0 {
			return w.write(ch)
		}
		return cmp.Or(w.write(ch), w.save(ch.end), errStopped)
	})
	pipelineGoroutines.Wait()
	if err == errStopped {
		return true
	}
	testfiles.NoError(t, err)
	return false
}
