package prepare

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	parquetgo "github.com/parquet-go/parquet-go"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// A testRow has what rows of chats have. Its JSON names the same members as its columns.
type testRow struct {
	Prompt   *string       `json:"prompt" parquet:"prompt,optional"`
	Messages []testMessage `json:"messages" parquet:"messages,list"`
	Dotted   string        `json:"a.b" parquet:"a.b"`
	Meta     struct {
		Tags  []string  `json:"tags" parquet:"tags,list"`
		Plain []string  `json:"plain" parquet:"plain"`
		Score []float64 `json:"score" parquet:"score,list"`
	} `json:"meta" parquet:"meta"`
}

type testMessage struct {
	Role    string     `json:"role" parquet:"role,dict"`
	Content *string    `json:"content" parquet:"content,optional"`
	Parts   []testPart `json:"parts" parquet:"parts,list"`
	Turn    int        `json:"turn" parquet:"turn"`
	Last    bool       `json:"last" parquet:"last"`
}

type testPart struct {
	Type string  `json:"type" parquet:"type"`
	Text *string `json:"text" parquet:"text,optional"`
}

func someRows(n int) (rows []testRow) {
	rng := rand.New(rand.NewPCG(5, 6))
	text := func() *string {
		s := strings.Repeat(words(rng, rng.IntN(40)), rng.IntN(3)) + []string{"", "\"q\"", "\\", "\x00\n\x1f", "é\u2028"}[rng.IntN(5)]
		if rng.IntN(8) == 0 {
			return nil
		}
		return &s
	}
	for i := range n {
		r := testRow{Prompt: text(), Dotted: fmt.Sprint("dotted ", i)}
		for turn := range rng.IntN(5) {
			m := testMessage{Role: []string{"user", "assistant", "tool"}[rng.IntN(3)], Content: text(), Turn: turn, Last: rng.IntN(2) == 0}
			for range rng.IntN(3) {
				m.Parts = append(m.Parts, testPart{[]string{"text", "image"}[rng.IntN(2)], text()})
			}
			r.Messages = append(r.Messages, m)
		}
		for range rng.IntN(3) {
			r.Meta.Tags = append(r.Meta.Tags, words(rng, 10))
			r.Meta.Plain = append(r.Meta.Plain, words(rng, 10))
			r.Meta.Score = append(r.Meta.Score, rng.Float64())
		}
		rows = append(rows, r)
	}
	return rows
}

// arrowOf returns an Arrow stream with the rows of JSON lines, in batches of 70, or an Arrow file
// with a single batch.
func arrowOf(t testing.TB, schema *arrow.Schema, rows string, asFile bool, options ...ipc.Option) string {
	t.Helper()
	var out bytes.Buffer
	var err error
	batchRows := 70
	options = append(options, ipc.WithSchema(schema))
	var w interface {
		Write(arrow.RecordBatch) error
		Close() error
	} = ipc.NewWriter(&out, options...)
	if asFile {
		out.Reset()
		batchRows = math.MaxInt
		w, err = ipc.NewFileWriter(&out, options...)
		testfiles.NoError(t, err)
	}
	for batch := range slices.Chunk(strings.Split(strings.TrimSpace(rows), "\n"), batchRows) {
		b, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader("["+strings.Join(batch, ",")+"]"))
		testfiles.NoError(t, cmp.Or(err, w.Write(b)))
	}
	testfiles.NoError(t, w.Close())
	return out.String()
}

func arrowOfTexts(t testing.TB, documents []string) string {
	t.Helper()
	return arrowOf(t, arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}}, nil), lines(documents), false)
}

// rowSchema is that of testRow.
var rowSchema = arrow.NewSchema([]arrow.Field{
	{Name: "prompt", Type: arrow.BinaryTypes.LargeString, Nullable: true},
	{Name: "messages", Type: arrow.LargeListOf(arrow.StructOf(
		arrow.Field{Name: "role", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}},
		arrow.Field{Name: "content", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "parts", Nullable: true, Type: arrow.ListOf(arrow.StructOf(
			arrow.Field{Name: "type", Type: arrow.BinaryTypes.String}, arrow.Field{Name: "text", Type: arrow.BinaryTypes.StringView, Nullable: true}))},
		arrow.Field{Name: "turn", Type: arrow.PrimitiveTypes.Uint16},
		arrow.Field{Name: "last", Type: arrow.FixedWidthTypes.Boolean},
	)), Nullable: true},
	{Name: "a.b", Type: arrow.BinaryTypes.String},
	{Name: "meta", Type: arrow.StructOf(
		arrow.Field{Name: "tags", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
		arrow.Field{Name: "plain", Type: arrow.ListViewOf(arrow.BinaryTypes.String), Nullable: true},
		arrow.Field{Name: "score", Type: arrow.ListOf(arrow.PrimitiveTypes.Float64), Nullable: true})},
}, nil)

// Rows of Arrow files and streams give the tokens and masks of the same values in JSON lines.
func TestPrepareArrowRecords(t *testing.T) {
	t.Chdir(t.TempDir())
	var lines bytes.Buffer
	for _, r := range someRows(200) {
		testfiles.NoError(t, json.NewEncoder(&lines).Encode(r))
	}
	rows := lines.String()
	stream := arrowOf(t, rowSchema, rows, false)
	testfiles.Write(t, map[string]string{
		"a.jsonl": rows, "a.arrow": stream, "a.feather": arrowOf(t, rowSchema, rows, true, ipc.WithLZ4()),
		"a.arrows": arrowOf(t, rowSchema, rows, false, ipc.WithZstd()), "a.arrow.gz": gzipped(stream),
	})
	for _, file := range []string{"a.arrow", "a.feather", "a.arrows", "a.arrow.gz"} {
		for _, args := range rowFieldArgs {
			t.Run(file+" "+args, func(t *testing.T) { wantSameRows(t, file, args) })
		}
	}
}

// An Arrow stream that is cut off or changed is refused, or at least never crashes prepare.
func TestPrepareBrokenArrow(t *testing.T) {
	t.Chdir(t.TempDir())
	stream := arrowOfTexts(t, someDocuments(200, 20))
	const args = "a.arrow --by byte --val 0 --force --out out"
	for cut := 0; cut < len(stream); cut += 1 + len(stream)/50 {
		testfiles.Write(t, map[string]string{"a.arrow": stream[:cut]})
		wantError(t, args, "a.arrow: is not a valid Arrow file or stream: ")
	}
	testfiles.Write(t, map[string]string{"a.arrow": strings.TrimSuffix(stream, "\xff\xff\xff\xff\x00\x00\x00\x00")})
	wantError(t, args, "a.arrow: is not a valid Arrow file or stream: it has no end")
	testfiles.Write(t, map[string]string{"a.arrow": stream + stream})
	wantError(t, args, "a.arrow: has bytes after the end of its Arrow stream")
	testfiles.Write(t, map[string]string{"a.arrow": "FEA1\x00\x00\x00\x00"})
	wantError(t, args, "a.arrow: is a Feather file of version 1")
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 8 + int(binary.LittleEndian.Uint32([]byte(stream[4:]))) { // the schema
		broken := []byte(stream)
		broken[i] ^= 0x30
		testfiles.Write(t, map[string]string{"a.arrow": string(broken)})
		runPrepare(t.Context(), strings.Fields(args)...)
	}
	for range 300 {
		broken := []byte(stream)
		broken[rng.IntN(min(len(broken), 2000))] ^= 1 << rng.IntN(8)
		testfiles.Write(t, map[string]string{"a.arrow": string(broken)})
		runPrepare(t.Context(), strings.Fields(args)...)
	}
	testfiles.Write(t, map[string]string{"a.arrow": stream})
	t.Cleanup(func() { maxArrowBuffer = 2 << 30 })
	maxArrowBuffer = 1000
	wantError(t, args, "bytes, but the limit is 1000: write the file in smaller batches")
	maxArrowBuffer = 2 << 30
	wantError(t, args+" --field id", "a.arrow: has no column id, only text")
}

// A record batch with a wrong number of buffers for strings in views is refused before memory is
// allocated for them.
func TestPrepareBrokenArrowViews(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.StringView}}, nil)
	long := strings.Repeat("text ", 10)
	stream := arrowOf(t, schema, lines([]string{long, long, long}), false)
	testfiles.WriteHere(t, map[string]string{"a.arrow": stream})
	const args = "a.arrow --by byte --val 0 --force --out out"
	prepared(t, args)
	count := "\x01\x00\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" // a list of one, which is 1
	if n := strings.Count(stream, count); n != 1 {
		t.Fatalf("the stream has %d lists that may be the one of buffers", n)
	}
	for _, wrong := range []string{"\x05\x00\x00\x00\x00", "\x00\x00\x00\x00\x10", "\x00\x00\x00\x00\xff"} {
		testfiles.Write(t, map[string]string{"a.arrow": strings.Replace(stream, count, count[:4]+wrong+count[9:], 1)})
		wantError(t, args, "a.arrow: is not a valid Arrow file or stream: ")
		wantError(t, args, "it has a column of ")
	}
}

// polars writes no length before the schema of an Arrow file, and dictionaries after the batches
// that need them. testdata/polars.arrow has the texts one, null, two and one, as a
// polars.Categorical.
func TestPrepareArrowOfPolars(t *testing.T) {
	raw, err := os.ReadFile("testdata/polars.arrow")
	if err != nil {
		t.Fatal(err)
	}
	whole := string(raw)
	t.Chdir(t.TempDir())
	const args = "a.arrow --by byte --val 0 --eot none --force --out out"
	for _, content := range []string{whole, gzipped(whole)} {
		testfiles.Write(t, map[string]string{"a.arrow": content})
		prepared(t, args)
		if got := filesOf(t, "out")["train.bin"]; got != "o\x00n\x00e\x00t\x00w\x00o\x00o\x00n\x00e\x00" {
			t.Errorf("tokens %q, want those of one, two and one", got)
		}
	}
	for cut := 0; cut < len(whole); cut += 31 {
		testfiles.Write(t, map[string]string{"a.arrow": whole[:cut]})
		wantError(t, args, "a.arrow: is not a valid Arrow file or stream: ")
	}
	schemaEnd := strings.Index(whole, "\xff\xff\xff\xff")
	footer := len(whole) - 10 - int(binary.LittleEndian.Uint32(raw[len(whole)-10:]))
	for i := 0; i < len(whole); i += 3 {
		if i >= schemaEnd && i < footer {
			continue
		}
		broken := []byte(whole)
		broken[i] ^= 0x30
		testfiles.Write(t, map[string]string{"a.arrow": string(broken)})
		runPrepare(t.Context(), strings.Fields(args)...)
	}
}

// --dry-run also counts the bytes of Arrow files that polars wrote, which are read at the offsets
// in their footer. The test file repeats the record batch of testdata/polars.arrow many times.
func TestPrepareDryRunOfPolars(t *testing.T) {
	useSmallChunks(t, 128, 1<<20)
	raw, err := os.ReadFile("testdata/polars.arrow")
	testfiles.NoError(t, err)
	end := len(raw) - 10
	old := raw[end-int(binary.LittleEndian.Uint32(raw[end:])) : end]
	footer := &flatbuffers.Table{Bytes: old, Pos: flatbuffers.GetUOffsetT(old)}
	file := slices.Clone(raw[:end-len(old)])
	const copies = 2000
	b := flatbuffers.NewBuilder(0)
	blocks := func(slot flatbuffers.VOffsetT, copies int) flatbuffers.UOffsetT {
		block := footer.Vector(flatbuffers.UOffsetT(footer.Offset(slot)))
		offset, metadata, body := footer.GetInt64(block), footer.GetInt32(block+8), footer.GetInt64(block+16)
		message := raw[offset:][:int64(metadata)+body]
		b.StartVector(24, copies, 8)
		for range copies {
			b.Prep(8, 24)
			b.PrependInt64(body)
			b.Pad(4)
			b.PrependInt32(metadata)
			b.PrependInt64(int64(len(file)))
			file = append(file, message...)
		}
		return b.EndVector(copies)
	}
	dictionaries, batches := blocks(8, 1), blocks(10, copies)
	b.StartObject(4)
	b.PrependUOffsetTSlot(2, dictionaries, 0)
	b.PrependUOffsetTSlot(3, batches, 0)
	b.Finish(b.EndObject())
	file = append(binary.LittleEndian.AppendUint32(append(file, b.FinishedBytes()...), uint32(len(b.FinishedBytes()))), "ARROW1"...)
	testfiles.WriteHere(t, map[string]string{"a.arrow": string(file), "a.arrow.gz": gzipped(string(file))})
	for _, name := range []string{"a.arrow", "a.arrow.gz"} {
		prepared(t, name+" --by byte --val 0 --eot none --force --out out")
		if n := readManifest(t).Splits["train"].Tokens; n != 9*copies {
			t.Fatalf("%s has %d tokens, want %d", name, n, 9*copies)
		}
		var got float64
		said := prepared(t, name+" --by byte --dry-run")
		_, about, _ := strings.Cut(said, "\nabout ")
		if fmt.Sscanf(about, "%g tokens", &got); got < 0.8*9*copies || got > 1.2*9*copies {
			t.Errorf("%s of %d bytes: said %q, want about %d tokens", name, len(file), said, 9*copies)
		}
	}
}

var rowFieldArgs = []string{
	"--field prompt", "--field a.b", "--field prompt --id a.b", "--field messages.*.content --id a.b", "--field messages.*.content", "--field messages[role=user].content", "--field meta.tags.*", "--field meta.plain.*",
	"--field messages[turn=1].content", "--field messages[last=true].parts", "--field messages.*.parts.*.text",
	"--mask prompt:0,a.b:1", "--mask prompt:0,messages[role=assistant].content:1,messages[role=user].content:0", "--mask messages[role=assistant].parts:1,meta.tags.*:0",
}

var unitPattern = regexp.MustCompile(`(line|row) (\d+ of )?a\.\w+(\.gz)?`)

// wantSameRows checks that prepare makes the same files and notes from the rows of a file as from
// the JSON lines in a.jsonl.
func wantSameRows(t *testing.T, file string, args string) {
	t.Helper()
	args += " --by byte --val 0.2 --force"
	prepared(t, "a.jsonl --out want "+args)
	prepared(t, file+" --out out "+args)
	want, got := filesOf(t, "want"), filesOf(t, "out")
	for _, files := range []map[string]string{want, got} {
		files["vocab.json"] = unitPattern.ReplaceAllString(files["vocab.json"], "")
	}
	wantSame(t, got, want)
}

// Rows of Parquet files give the tokens and masks of the same values in JSON lines, also if a row
// is in several pages.
func TestPrepareParquetRecords(t *testing.T) {
	rows := someRows(300)
	t.Chdir(t.TempDir())
	var lines, file bytes.Buffer
	w := parquetgo.NewGenericWriter[testRow](&file, parquetgo.PageBufferSize(300), parquetgo.DataPageVersion(1), parquetgo.Compression(&parquetgo.Zstd))
	for i, r := range rows {
		testfiles.NoError(t, json.NewEncoder(&lines).Encode(r))
		_, err := w.Write([]testRow{r})
		testfiles.NoError(t, err)
		if i%120 == 119 {
			testfiles.NoError(t, w.Flush())
		}
	}
	testfiles.NoError(t, w.Close())
	testfiles.Write(t, map[string]string{"a.jsonl": lines.String(), "a.parquet": file.String()})
	for _, args := range rowFieldArgs {
		t.Run(args, func(t *testing.T) { wantSameRows(t, "a.parquet", args) })
	}
}
