package tokenfiles

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	parquetgo "github.com/parquet-go/parquet-go"

	"batchfs/test/e2e"
)

// A tokenizedRow is a row of a tokenized dataset, as libraries of Hugging Face make it.
type tokenizedRow struct {
	IDs       []int `json:"input_ids"`
	Attention []int `json:"attention_mask,omitempty"`
	Labels    []int `json:"labels,omitempty"`
}

// An idsJob is what clients/ids.py reads.
type idsJob struct {
	Dir         string         `json:"dir"`
	VocabSize   int            `json:"vocab_size"` // 0 for the tokenizer
	Val         float64        `json:"val"`
	ShardTokens int            `json:"shard_tokens"`
	Rows        []tokenizedRow `json:"rows"`
}

const rowLength = 24 // of padded rows

// tokenizedRows returns rows with ids below size. Some are empty, unless they are padded. If eot is
// "end" or "begin", each row has one end-of-text token, there.
func tokenizedRows(rng *rand.Rand, size int, eot string, hasLabels, padded bool) (rows []tokenizedRow) {
	for range 300 {
		row := tokenizedRow{IDs: []int{}}
		for range rng.IntN(rowLength) {
			row.IDs = append(row.IDs, rng.IntN(size))
		}
		switch {
		case len(row.IDs) == 0:
		case eot == "end":
			row.IDs[len(row.IDs)-1] = size
		case eot == "begin":
			row.IDs[0] = size
		}
		if hasLabels {
			row.Labels = slices.Clone(row.IDs)
			for i := range rng.IntN(len(row.IDs) + 1) {
				row.Labels[i] = -100
			}
		}
		if padded {
			row.Attention = slices.Repeat([]int{1}, len(row.IDs))
			for len(row.IDs) < rowLength {
				row.IDs, row.Attention = append(row.IDs, 0), append(row.Attention, 0)
				if hasLabels {
					row.Labels = append(row.Labels, 7)
				}
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func jsonLines(t testing.TB, rows []tokenizedRow) (all []string) {
	for _, row := range rows {
		all = append(all, string(e2e.Must(json.Marshal(row))(t)))
	}
	return all
}

// parquetOf returns a Parquet file with the rows. Each column is a list of T.
func parquetOf[T int32 | int64](t testing.TB, rows []tokenizedRow, tag string, options ...parquetgo.WriterOption) []byte {
	var fields []reflect.StructField
	add := func(field, name string) {
		fields = append(fields, reflect.StructField{Name: field, Type: reflect.TypeFor[[]T](), Tag: reflect.StructTag(fmt.Sprintf(`json:%q parquet:%q`, name, name+tag))})
	}
	add("Labels", "labels")
	add("IDs", "input_ids")
	add("Attention", "attention_mask")
	fields = slices.DeleteFunc(fields, func(f reflect.StructField) bool {
		return !slices.ContainsFunc(rows, func(row tokenizedRow) bool { return !reflect.ValueOf(row).FieldByName(f.Name).IsNil() })
	})
	kind := reflect.StructOf(fields)
	var file bytes.Buffer
	w := parquetgo.NewWriter(&file, append(options, parquetgo.SchemaOf(reflect.New(kind).Interface()))...)
	for i, row := range rows {
		value := reflect.New(kind)
		e2e.NoError(t, json.Unmarshal(e2e.Must(json.Marshal(row))(t), value.Interface()))
		e2e.NoError(t, w.Write(value.Interface()))
		if i%100 == 99 {
			e2e.NoError(t, w.Flush())
		}
	}
	e2e.NoError(t, w.Close())
	return file.Bytes()
}

// arrowOf returns an Arrow stream, or a file, with the rows. Each column has lists of this type.
func arrowOf(t testing.TB, rows []tokenizedRow, list arrow.DataType, asFile bool) []byte {
	var fields []arrow.Field
	for name, has := range map[string]func(tokenizedRow) bool{
		"input_ids":      func(row tokenizedRow) bool { return true },
		"labels":         func(row tokenizedRow) bool { return row.Labels != nil },
		"attention_mask": func(row tokenizedRow) bool { return row.Attention != nil },
	} {
		if slices.ContainsFunc(rows, has) {
			fields = append(fields, arrow.Field{Name: name, Type: list, Nullable: true})
		}
	}
	schema := arrow.NewSchema(fields, nil)
	var file bytes.Buffer
	var w interface {
		Write(arrow.RecordBatch) error
		Close() error
	} = ipc.NewWriter(&file, ipc.WithSchema(schema))
	if asFile {
		file.Reset()
		w = e2e.Must(ipc.NewFileWriter(&file, ipc.WithSchema(schema)))(t)
	}
	for batch := range slices.Chunk(rows, 70) {
		raw := e2e.Must(json.Marshal(batch))(t)
		record, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, bytes.NewReader(raw))
		e2e.NoError(t, err)
		e2e.NoError(t, w.Write(record))
	}
	e2e.NoError(t, w.Close())
	return file.Bytes()
}

// prepare --ids writes the same files as the writer, in whatever format the rows come.
func TestIDs(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	x := newTexts(t, 4)
	tokenizer := filepath.Join(x.dir, "tokenizer.json")
	list := func(t arrow.DataType) arrow.DataType { return arrow.ListOf(t) }
	kinds := map[string]func(rows []tokenizedRow) []byte{
		"jsonl": func(rows []tokenizedRow) []byte { return []byte(strings.Join(jsonLines(t, rows), "\n")) },
		"parquet": func(rows []tokenizedRow) []byte {
			return parquetOf[int32](t, rows, ",list", parquetgo.Compression(&parquetgo.Zstd))
		},
		"long.parquet": func(rows []tokenizedRow) []byte { return parquetOf[int64](t, rows, ",optional,list") },
		"old.parquet":  func(rows []tokenizedRow) []byte { return parquetOf[int64](t, rows, "", parquetgo.PageBufferSize(500)) },
		"arrow":        func(rows []tokenizedRow) []byte { return arrowOf(t, rows, list(arrow.PrimitiveTypes.Int32), false) },
		"file.arrow":   func(rows []tokenizedRow) []byte { return arrowOf(t, rows, list(arrow.PrimitiveTypes.Int64), true) },
		"short.arrow":  func(rows []tokenizedRow) []byte { return arrowOf(t, rows, list(arrow.PrimitiveTypes.Int16), true) },
		"large.arrow": func(rows []tokenizedRow) []byte {
			return arrowOf(t, rows, arrow.LargeListOf(arrow.PrimitiveTypes.Int32), false)
		},
		"fixed.arrow": func(rows []tokenizedRow) []byte {
			return arrowOf(t, rows, arrow.FixedSizeListOf(rowLength, arrow.PrimitiveTypes.Int64), false)
		},
		"view.arrow": func(rows []tokenizedRow) []byte {
			return arrowOf(t, rows, arrow.ListViewOf(arrow.PrimitiveTypes.Int64), true)
		},
		"unsigned.arrow": func(rows []tokenizedRow) []byte { return arrowOf(t, rows, list(arrow.PrimitiveTypes.Uint32), true) },
	}
	var input bytes.Buffer
	var jobs []idsJob
	for n, kind := range slices.Concat(slices.Sorted(maps.Keys(kinds)), slices.Sorted(maps.Keys(kinds))) {
		job := idsJob{Dir: filepath.Join(x.dir, fmt.Sprint("writer", n)), VocabSize: []int{0, 257, 70_000}[rng.IntN(3)],
			Val: []float64{0, 0.1, 0.37}[rng.IntN(3)], ShardTokens: []int{0, 700}[rng.IntN(2)]}
		if job.VocabSize > 1<<16 && kind == "short.arrow" {
			job.VocabSize = 257
		}
		ids, eot := max(job.VocabSize, 256), []string{"end", "begin", ""}[rng.IntN(3)]
		if eot == "" || job.VocabSize > 0 {
			ids, eot = max(job.VocabSize, 257), ""
		}
		hasLabels, padded := rng.IntN(2) == 0 && kind != "unsigned.arrow", rng.IntN(2) == 0 || kind == "fixed.arrow"
		job.Rows = tokenizedRows(rng, ids, eot, hasLabels, padded)
		dir := filepath.Join(x.dir, fmt.Sprint("dataset", n))
		e2e.NoError(t, os.Mkdir(dir, 0o777))
		for i, part := range [][]tokenizedRow{job.Rows[:90], job.Rows[90:]} {
			e2e.Write(t, filepath.Join(dir, fmt.Sprintf("data-%d-of-2.%s", i, kind)), kinds[kind](part))
		}
		e2e.NoError(t, json.NewEncoder(&input).Encode(job))
		jobs = append(jobs, job)
	}
	cmd := exec.Command(e2e.Python, "clients/ids.py", tokenizer)
	cmd.Stdin = &input
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the writer: %v: %s", err, said)
	}
	for n, job := range jobs {
		dir := filepath.Join(x.dir, fmt.Sprint("prepare", n))
		args := []string{e2e.PlainBatchfs, "prepare", filepath.Join(x.dir, fmt.Sprint("dataset", n)), "--ids", "input_ids", "--out", dir,
			"--val", fmt.Sprint(job.Val), "--shard-tokens", fmt.Sprint(job.ShardTokens)}
		if job.VocabSize > 0 {
			args = append(args, "--vocab-size", fmt.Sprint(job.VocabSize))
		} else {
			args = append(args, "--by", tokenizer)
		}
		e2e.Run(t, args...)
		got, want := files(t, dir), files(t, job.Dir)
		var manifests []map[string]any
		for _, all := range []map[string]string{got, want} {
			var m map[string]any
			e2e.NoError(t, json.Unmarshal([]byte(all["vocab.json"]), &m))
			delete(all, "vocab.json")
			for _, key := range []string{"run", "writer", "notes"} { // notes count empty rows
				delete(m, key)
			}
			manifests = append(manifests, m)
		}
		if !maps.Equal(got, want) {
			t.Errorf("%q: the files %q and those of the writer, %q, differ", args, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
		if !reflect.DeepEqual(manifests[0], manifests[1]) {
			t.Errorf("%q: the manifest is %v\nthat of the writer is %v", args, manifests[0], manifests[1])
		}
	}
}
