package prepare

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	parquetgo "github.com/parquet-go/parquet-go"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// linesWithIDs returns JSON lines of documents. The id of document i is a text for even i, and
// otherwise a number.
func linesWithIDs(documents []string) string {
	var b strings.Builder
	for i, d := range documents {
		text, _ := json.Marshal(d)
		fmt.Fprintf(&b, "{\"text\": %s, \"meta\": {\"id\": %s, \"n\": [1]}}\n", text, idOf(i))
	}
	return b.String()
}

func idOf(i int) string {
	if i%2 == 0 {
		return fmt.Sprintf(`"doc \u00e9\n%d"`, i)
	}
	return fmt.Sprint(i)
}

// Line n of FILE.ids is the id of document n of FILE, in each shard of train and val, in every
// format, however many processors there are.
func TestPrepareDocumentIDs(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	documents := someDocuments(400, 300)
	documents = slices.DeleteFunc(documents, func(d string) bool { return d == "" })
	for i := range documents {
		documents[i] = fmt.Sprintf("%d: %s", i, documents[i]) // to tell them apart
	}
	documents[7] = "" // is left out, and so is its id
	testfiles.WriteHere(t, map[string]string{"a.jsonl": linesWithIDs(documents)})
	for format, endsOf := range map[string]string{"headerless": ".index", "npy": ".index", "datatrove": ".index"} {
		runtime.GOMAXPROCS(1 + len(format)%3)
		prepared(t, "a.jsonl --by byte --id meta.id --val 0.2 --shard-tokens 9000 --force --out out --format "+format)
		seen, shards := 0, 0
		for _, split := range readManifest(t).Splits {
			for _, shard := range split.Shards {
				shards++
				if shard.IDs != shard.Name+".ids" {
					t.Errorf("%s: vocab.json names the ids %q", shard.Name, shard.IDs)
				}
				raw, err := os.ReadFile(filepath.Join("out", shard.IDs))
				if err != nil {
					t.Fatal(err)
				}
				ids := strings.SplitAfter(string(raw), "\n")
				tokens := readTokens(t, filepath.Join("out", shard.Name))
				tokens = tokens[len(tokens)-int(shard.Tokens):] // without a header
				ends, err := os.ReadFile(filepath.Join("out", shard.Name+endsOf))
				if err != nil || len(ends) != 8*(len(ids)-1) || int(shard.Documents) != len(ids)-1 {
					t.Fatalf("%s: %d ids for %d documents, and an index of %d bytes: %v", shard.Name, len(ids)-1, shard.Documents, len(ends), err)
				}
				begin := uint64(0)
				for n := range len(ids) - 1 {
					end := binary.LittleEndian.Uint64(ends[8*n:])
					text := make([]byte, 0, end-begin)
					for _, token := range tokens[begin:end] {
						text = append(text, byte(token))
					}
					i := slices.Index(documents, string(text))
					if i < 0 || ids[n] != idOf(i)+"\n" {
						t.Fatalf("%s: document %d has the id %q, but is document %d, %q", shard.Name, n, ids[n], i, text)
					}
					begin = end
					seen++
				}
			}
		}
		if seen != len(documents)-1 || shards < 6 {
			t.Errorf("%s: %d documents in %d shards, want %d in several", format, seen, shards, len(documents)-1)
		}
	}
	prepared(t, "a.jsonl --by byte --val 0 --force --out out")
	wantOnlyFiles(t, "train.bin", "train.bin.index", "vocab.json")
}

// Rows have the ids and tokens of the same values in JSON lines, and ids go along with --mask and
// --ids.
func TestPrepareDocumentIDsOfRows(t *testing.T) {
	documents := []string{"one", "", "three", "\x00\n\u00e9\""}
	var b strings.Builder
	for i, d := range documents {
		text, _ := json.Marshal(d)
		fmt.Fprintf(&b, "{\"id\": %d, \"text\": %s, \"list\": [%[1]d]}\n", i, text)
	}
	testfiles.WriteHere(t, map[string]string{"a.jsonl": b.String(), "a.parquet": parquetOf(t, documents)})
	for _, test := range []struct{ args, want string }{
		{"a.jsonl --by byte", "0\n2\n3\n"},
		{"a.parquet --by byte", "0\n2\n3\n"},
		{"a.jsonl --by char --mask text:1", "0\n2\n3\n"},
		{"a.jsonl --ids list --vocab-size 4", "0\n1\n2\n3\n"},
	} {
		prepared(t, test.args+" --id id --val 0 --force --out out")
		if got, err := os.ReadFile("out/train.bin.ids"); err != nil || string(got) != test.want {
			t.Errorf("%s: ids %q, want %q: %v", test.args, got, test.want, err)
		}
	}
	prepared(t, "a.jsonl --by byte --val 0 --id id --force --out want")
	prepared(t, "a.parquet --by byte --val 0 --id id --force --out out")
	for _, name := range []string{"train.bin", "train.bin.index", "train.bin.ids"} {
		if filesOf(t, "out")[name] != filesOf(t, "want")[name] {
			t.Errorf("%s of a.parquet differs from that of a.jsonl", name)
		}
	}
}

// Numbers that JSON lacks become null, because 0 could be the id of another document.
func TestPrepareDocumentIDsWithoutNumber(t *testing.T) {
	type row struct {
		Text string  `parquet:"text"`
		ID   float64 `parquet:"id"`
	}
	var file bytes.Buffer
	testfiles.NoError(t, parquetgo.Write(&file, []row{{"a", 0}, {"b", math.NaN()}, {"c", math.Inf(-1)}, {"d", 1.5}}))
	testfiles.WriteHere(t, map[string]string{"a.parquet": file.String(),
		"a.jsonl": `{"text":"a","id":0}` + "\n" + `{"text":"b","id":NaN}` + "\n" + `{"text":"c","id":-Infinity}` + "\n" + `{"id": 1.5 ,"text":"d"}`})
	for _, name := range []string{"a.parquet", "a.jsonl"} {
		prepared(t, name+" --by byte --id id --val 0 --force --out out")
		if got := filesOf(t, "out")["train.bin.ids"]; got != "0\nnull\nnull\n1.5\n" {
			t.Errorf("%s: ids %q", name, got)
		}
	}
}

// If a struct is null, its members are null, also with --id and --mask.
func TestPrepareNullStructs(t *testing.T) {
	type meta struct {
		ID   int64  `parquet:"id"`
		Body string `parquet:"body"`
	}
	type row struct {
		Text string `parquet:"text"`
		Meta *meta  `parquet:"meta,optional"`
	}
	var file bytes.Buffer
	testfiles.NoError(t, parquetgo.Write(&file, []row{{"a", &meta{7, "x"}}, {"b", nil}}))
	schema := arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}, {Name: "meta", Nullable: true, Type: arrow.StructOf(
		arrow.Field{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, arrow.Field{Name: "body", Type: arrow.BinaryTypes.String, Nullable: true})}}, nil)
	testfiles.WriteHere(t, map[string]string{"a.parquet": file.String(),
		"a.arrow": arrowOf(t, schema, `{"text":"a","meta":{"id":7,"body":"x"}}`+"\n"+`{"text":"b","meta":null}`, false)})
	for _, name := range []string{"a.parquet", "a.arrow"} {
		prepared(t, name+" --by byte --mask text:0,meta.body:1 --id meta.id --val 0 --force --out out")
		got := filesOf(t, "out")
		if text := decoded(readManifest(t), readTokens(t, "out/train.bin")); text != "axb" || got["train.mask.bin"] != "\x00\x01\x00" || got["train.bin.ids"] != "7\nnull\n" {
			t.Errorf("%s: text %q, mask %q, ids %q", name, text, got["train.mask.bin"], got["train.bin.ids"])
		}
		prepared(t, name+" --by byte --field meta.body --id text --val 0 --force --out out")
		if got := filesOf(t, "out"); got["train.bin.ids"] != `"a"`+"\n" {
			t.Errorf("%s: ids %q", name, got["train.bin.ids"])
		}
	}
	// In a list, it is as empty as in JSON lines, and does not count as dropped.
	text := arrow.Field{Name: "content", Type: arrow.BinaryTypes.String}
	message := arrow.StructOf(text, arrow.Field{Name: "call", Nullable: true, Type: arrow.StructOf(text)})
	chats := arrow.NewSchema([]arrow.Field{{Name: "messages", Type: arrow.ListOf(message)}}, nil)
	testfiles.WriteHere(t, map[string]string{"a.arrow": arrowOf(t, chats, `{"messages":[{"content":"x","call":null}]}`, false)})
	if said := prepared(t, "a.arrow --by byte --mask messages.*.content:1 --val 0 --out out"); strings.Contains(said, "dropped") {
		t.Errorf("said %q", said)
	}
}

// Unsigned integers of Parquet, which stores them as signed ones, do not become negative.
func TestPrepareUnsignedIDs(t *testing.T) {
	type row struct {
		Hash uint64   `parquet:"hash"`
		Sum  uint32   `parquet:"sum"`
		IDs  []uint32 `parquet:"ids,list"`
	}
	var file bytes.Buffer
	testfiles.NoError(t, parquetgo.Write(&file, []row{{1, 2, []uint32{3}}, {1<<64 - 1, 1<<32 - 1, []uint32{1<<32 - 2}}}))
	testfiles.WriteHere(t, map[string]string{"a.parquet": file.String()})
	for id, want := range map[string]string{"hash": "1\n18446744073709551615\n", "sum": "2\n4294967295\n"} {
		prepared(t, "a.parquet --ids ids --vocab-size 4294967295 --val 0 --force --out out --id "+id)
		if got := filesOf(t, "out"); got["train.bin.ids"] != want || got["train.bin"] != "\x03\x00\x00\x00\xfe\xff\xff\xff" {
			t.Errorf("%s: ids %q, tokens %x", id, got["train.bin.ids"], got["train.bin"])
		}
	}
}

// Types whose values --id could not write as they are, are refused.
func TestPrepareUnreadableIDs(t *testing.T) {
	type row struct {
		Text  string   `parquet:"text"`
		UUID  [16]byte `parquet:"uuid,uuid"`
		Price int64    `parquet:"price,decimal(2:18)"`
		Whole int64    `parquet:"whole,decimal(0:18)"`
	}
	var file bytes.Buffer
	testfiles.NoError(t, parquetgo.Write(&file, []row{{"a", [16]byte{}, 1234, 1234}}))
	testfiles.WriteHere(t, map[string]string{"a.parquet": file.String()})
	wantError(t, "a.parquet --by byte --val 0 --out out --id uuid", "a.parquet: column uuid has UUIDs, which --id does not read from Parquet: write it as text, or choose another one")
	wantError(t, "a.parquet --by byte --val 0 --out out --id price", "a.parquet: column price has decimals, which --id does not read")
	prepared(t, "a.parquet --by byte --val 0 --out out --id whole")
	if got := filesOf(t, "out")["train.bin.ids"]; got != "1234\n" {
		t.Errorf("ids %q", got)
	}
}

func TestPrepareDocumentIDErrors(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a.jsonl": `{"text": "a", "id": 1}` + "\n" + `{"text": "b", "id": {"n": 1}}` + "\n" + `{"text": "c"}` + "\n",
		"a.txt": "text", "a.parquet": parquetOf(t, []string{"a"})})
	for args, want := range map[string]string{
		"a.jsonl --id id":           "line 2: field id is not a single value but an object; to leave such lines out, use --invalid skip",
		"a.jsonl --id text.id":      "line 1: text is not a JSON object",
		"a.jsonl --id no":           `line 1: has no field no: choose one with --id; there are ["text" "id"]`,
		"a.jsonl --id messages.*.a": "--id: must lead to one value in each line or row, and not through a list",
		"a.txt --id id":             "a.txt: is read as text, which has no fields for --id",
		"a.parquet --id no":         "a.parquet: has no column no, only id, text, ",
		"a.parquet --id meta.tags":  "a.parquet: column meta.tags does not have a single value for each row: choose another one with --id",
	} {
		wantError(t, args+" --by byte --val 0 --out out", want)
	}
	prepared(t, "a.jsonl --by byte --val 0 --id id --invalid skip --out out")
	if got := filesOf(t, "out"); got["train.bin.ids"] != "1\n" || len(got["train.bin.index"]) != 8 {
		t.Errorf("ids %q", got["train.bin.ids"])
	}
}
