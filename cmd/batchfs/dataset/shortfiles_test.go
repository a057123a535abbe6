package dataset

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/format"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
)

// A shardFormat writes files of uint16 tokens.
type shardFormat struct {
	extension string
	files     func(tokens []uint16) map[string]string // contents by extension
}

var shardFormats = map[string]shardFormat{
	"headerless": {".bin", func(tokens []uint16) map[string]string { return map[string]string{".bin": rawTokens(tokens)} }},
	"llm.c": {".bin", func(tokens []uint16) map[string]string {
		return map[string]string{".bin": string(format.LLMCHeader(int64(len(tokens)), 2)) + rawTokens(tokens)}
	}},
	"npy": {".npy", func(tokens []uint16) map[string]string {
		return map[string]string{".npy": string(format.NpyTokensHeader(int64(len(tokens)), 2)) + rawTokens(tokens)}
	}},
	"safetensors": {".safetensors", func(tokens []uint16) map[string]string {
		header := fmt.Sprintf(`{"ids":{"dtype":"U16","shape":[%d],"data_offsets":[0,%d]}}`, len(tokens), 2*len(tokens))
		return map[string]string{".safetensors": string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + rawTokens(tokens)}
	}},
	"datatrove": {".ds", func(tokens []uint16) map[string]string {
		return map[string]string{".ds": rawTokens(tokens), ".ds.metadata": format.DatatroveMetadata("gpt2", 2, int64(len(tokens)))}
	}},
	"megatron": {".bin", func(tokens []uint16) map[string]string {
		index := "MMIDIDX\x00\x00" + string(binary.LittleEndian.AppendUint64(nil, 1)) + "\x08"
		if len(tokens) == 0 {
			return map[string]string{".bin": "", ".idx": index + strings.Repeat("\x00", 8) + "\x01" + strings.Repeat("\x00", 7+8)}
		}
		// the number of sequences, then the number of documents plus one
		index += "\x01" + strings.Repeat("\x00", 7) + "\x02" + strings.Repeat("\x00", 7)
		index += string(binary.LittleEndian.AppendUint32(nil, uint32(len(tokens)))) + strings.Repeat("\x00", 8+8) + "\x01" + strings.Repeat("\x00", 7)
		return map[string]string{".bin": rawTokens(tokens), ".idx": index}
	}},
}

func rawTokens(tokens []uint16) string {
	var raw []byte
	for _, v := range tokens {
		raw = binary.LittleEndian.AppendUint16(raw, v)
	}
	return string(raw)
}

// writeShards writes a file for each of counts, with that many tokens, and returns the names of the
// files. The files that have more than 8 tokens, enough for a row, contain 0, 1, 2, ... in order.
func (f shardFormat) writeShards(t *testing.T, dir string, counts []int) (names []string) {
	next := uint16(0)
	for i, n := range counts {
		tokens, name := make([]uint16, n), fmt.Sprintf("train_%06d", i)
		for j := range tokens {
			if tokens[j] = 7; n > 8 {
				tokens[j], next = next, next+1
			}
		}
		for suffix, content := range f.files(tokens) {
			testfiles.Write(t, map[string]string{dir + "/" + name + suffix: content})
		}
		names = append(names, name+f.extension)
	}
	return names
}

func shortFiles(t *testing.T, d *Dataset) (n int) {
	t.Helper()
	var info struct {
		Short *int `json:"short_files"`
	}
	must(t, json.Unmarshal(d.Info(), &info))
	return *info.Short
}

// A glob or --data ignores files without tokens: a split is the same with and without them. A file
// that is too short for a row contributes no rows, but changes the fingerprint. A file that is
// named without a glob must have a row.
func TestFilesWithoutRows(t *testing.T) {
	const small = "[batch]\nbatch_size = 3\nblock_size = 8\ntoken_dtype = 'uint16'\n"
	for name, f := range shardFormats {
		for _, counts := range [][]int{{0, 50, 60}, {50, 0, 60}, {50, 60, 0}, {0, 0, 50, 0, 0, 60, 0}, {3, 50, 60}, {50, 8, 60}, {50, 60, 1}, {0, 2, 50, 0, 8, 60, 1, 0}} {
			t.Chdir(t.TempDir())
			names := f.writeShards(t, "all", counts)
			full, empty, short := []string{}, 0, 0
			for i, n := range counts {
				switch {
				case n == 0:
					empty++
				case n <= 8:
					short++
				default:
					full = append(full, "'all/"+names[i]+"'")
				}
			}
			what := fmt.Sprintf("%s of %v tokens", name, counts)
			globs := map[string]config.Flags{"glob": {Config: "glob.toml"}, "--data": {Config: "data.toml", Data: "all"}}
			if name == "safetensors" {
				delete(globs, "--data")
			}
			testfiles.Write(t, map[string]string{"glob.toml": small + "[splits.train]\ntokens = 'all/*" + f.extension + "'", "data.toml": small})
			want := mustOpen(t, small+"[splits.train]\ntokens = ["+strings.Join(full, ",")+"]")[0]
			for how, flags := range globs {
				d := openFlags(t, flags)[0]
				for _, settings := range []string{"order=random", "order=shuffle", "order=sequential", "order=sequential,layout=tokens"} {
					got, want := mustWith(t, d, settings), mustWith(t, want, settings)
					checkSameBatches(t, what+", "+how+", "+settings, got, want, want.Sequence.Batch().Bytes())
				}
				if len(d.Files()) != len(counts)-empty || (d.fingerprint == want.fingerprint) != (short == 0) || shortFiles(t, d) != short {
					t.Errorf("%s, %s: %d files, %d of them short, fingerprint %s; without the others it is %s", what, how, len(d.Files()), shortFiles(t, d), d.fingerprint, want.fingerprint)
				}
				if text := fmt.Sprintf(" (%d too short for a row)", short); strings.Contains(d.Summary(), text) != (short > 0) {
					t.Errorf("%s, %s: %s", what, how, d.Summary())
				}
				if n := shortFiles(t, mustWith(t, d, "block_size=55")); n != len(counts)-empty-1 {
					t.Errorf("%s, %s: %d files are too short for rows of 55", what, how, n)
				}
				if _, err := d.With("block_size=60"); err == nil || !strings.Contains(err.Error(), names[slices.Index(counts, 60)]+": 60 tokens, need at least block_size+1 = 61") {
					t.Errorf("%s, %s: rows of 60: error %v", what, how, err)
				}
			}
			for i, n := range counts {
				text := small + "[splits.train]\ntokens = ['all/*" + f.extension + "', 'all/" + names[i] + "']"
				if _, err := openHere(t, text); (err == nil) != (n > 8) || err != nil && !strings.Contains(err.Error(), names[i]) {
					t.Errorf("%s: %s by name: error %v", what, names[i], err)
				}
			}
		}
		for _, counts := range [][]int{{0}, {0, 0}, {8}, {0, 3, 8}} {
			t.Chdir(t.TempDir())
			f.writeShards(t, "all", counts)
			if _, err := openHere(t, small+"[splits.train]\ntokens = 'all/*"+f.extension+"'"); err == nil ||
				!strings.Contains(err.Error(), "is empty") && !strings.Contains(err.Error(), "no elements") && !strings.Contains(err.Error(), ": 8 tokens, need at least block_size+1 = 9") {
				t.Errorf("%s of %v tokens: error %v", name, counts, err)
			}
		}
	}
}

// A glob ignores the empty files that Spark and Hadoop write as markers, and the empty files of
// aligned arrays.
func TestMarkersAreNotTokens(t *testing.T) {
	t.Chdir(t.TempDir())
	const mask = "[[splits.train.arrays]]\nname = 'mask'\ndtype = 'uint8'\nfiles = "
	testfiles.Positions(t, map[string]int{"data/part-0.bin": 50, "data/part-1.bin": 0, "data/part-2.bin": 33, "data/_SUCCESS": 0, "data/x_$folder$": 0})
	testfiles.Write(t, map[string]string{"masks/0": strings.Repeat("\x01", 50), "masks/1": "", "masks/2": strings.Repeat("\x00", 33)})
	must(t, os.Mkdir("data/folder", 0o755))
	want := mustOpen(t, testfiles.Small+"[splits.train]\ntokens = ['data/part-0.bin', 'data/part-2.bin']\n"+mask+"['masks/0', 'masks/2']")[0]
	got := mustOpen(t, testfiles.Small+"[splits.train]\ntokens = 'data/*'\n"+mask+"'masks/*'")[0]
	if checkSameBatches(t, "with markers", got, want, want.Sequence.Batch().Bytes()); got.Identity() != want.Identity() {
		t.Error("the identity is another with markers")
	}
	testfiles.Write(t, map[string]string{"data/folder/train.bin": "abcd"})
	if _, err := openHere(t, testfiles.Small+"[splits.train]\ntokens = 'data/*'"); err == nil || !strings.Contains(err.Error(), abs(t, "data/folder")+" is a directory") {
		t.Errorf("a folder with a file: error %v", err)
	}
}

// An empty file is an error if vocab.json or an index says that it should have tokens. It is
// ignored if its index has only empty documents.
func TestFilesThatWereEmptied(t *testing.T) {
	const listed = `{"kind": "ids", "vocab_size": 65536, "splits": {"train": {"shards": [{"name": "train_000000.bin"}, {"name": "train_000001.bin", "tokens": 50}]}}}`
	for _, test := range []struct{ format, file, content, want string }{
		{"headerless", "", "", ""},
		{"npy", "", "", ""},
		{"headerless", "vocab.json", listed, "vocab.json lists it with 50 tokens"},
		{"headerless", "train_000001.bin.index", "\x32" + strings.Repeat("\x00", 7), "train_000001.bin.index says where its documents end"},
		{"headerless", "train_000001.bin.index", strings.Repeat("\x00", 16), ""},
		{"megatron", "", "", "train_000001.bin"},
		{"datatrove", "", "", "train_000001.ds.metadata"},
	} {
		t.Chdir(t.TempDir())
		f := shardFormats[test.format]
		names := f.writeShards(t, "all", []int{50, 50})
		must(t, os.Truncate("all/"+names[1], 0))
		if test.file != "" {
			testfiles.Write(t, map[string]string{"all/" + test.file: test.content})
		}
		_, err := openHere(t, "[batch]\nbatch_size = 1\nblock_size = 8\ntoken_dtype = 'uint16'\n[splits.train]\ntokens = 'all/*"+f.extension+"'")
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %s: error %v, want %s", test.format, test.file, err, test.want)
		}
	}
}

// A copy that is cut off is an error if vocab.json says how many tokens it should have.
func TestFilesThatWereCutOff(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"data/train_1.bin": 50, "data/train_2.bin": 50})
	const listed = `{"kind": "ids", "vocab_size": 65536, "token_dtype": "uint16", "splits": {"train": {"shards": [{"name": "train_1.bin", "tokens": 50}, {"name": "train_2.bin", "tokens": 50}]}}}`
	testfiles.Write(t, map[string]string{"data/vocab.json": listed})
	const c = testfiles.Small + "[splits.train]\ntokens = 'data/*.bin'"
	mustOpen(t, c)
	must(t, os.Truncate("data/train_2.bin", 98))
	if _, err := openHere(t, c); err == nil || !strings.Contains(err.Error(), "train_2.bin has 98 bytes, but vocab.json lists it with 50 tokens of 2 bytes: copy the file again") {
		t.Errorf("error %v", err)
	}
	mustOpen(t, c+"\ntoken_dtype = 'uint8'\nvocab_size = 256") // the files may have been rewritten
}

// If a file of a split that follows changes becomes empty, reads fail instead of ignoring the file:
// it may be about to be rewritten.
func TestFollowedFileThatBecomesEmpty(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 50, "b.bin": 50})
	served := onlyMountedSequence(t, testfiles.Small+"[splits.train]\ntokens = '*.bin'\non_change = 'follow'")
	replace(t, "b.bin", "")
	if _, err := checkAll(served); err == nil || !strings.Contains(err.Error(), "b.bin is empty") {
		t.Errorf("error %v", err)
	}
}
