package prepare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

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

var rowFieldArgs = []string{
	"--field prompt", "--field a.b", "--field messages.*.content", "--field messages[role=user].content", "--field meta.tags.*", "--field meta.plain.*",
	"--field messages[turn=1].content", "--field messages[last=true].parts", "--field messages.*.parts.*.text",
	"--mask prompt:0,a.b:1", "--mask prompt:0,messages[role=assistant].content:1,messages[role=user].content:0", "--mask messages[role=assistant].parts:1,meta.tags.*:0",
}

var unitPattern = regexp.MustCompile(`(line|row) (\d+ of )?a\.\w+`)

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
