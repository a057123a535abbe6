package stores

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/parquet-go/parquet-go"

	"batchfs/test/e2e"
)

// objects returns the content of the objects below a prefix, by name, but not of sidecars.
func objects(t testing.TB, b *e2e.Bucket, prefix string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for info := range b.Client.ListObjectsIter(context.Background(), "bucket", minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		e2e.NoError(t, info.Err)
		if name := strings.TrimPrefix(info.Key, prefix); !strings.HasPrefix(name, ".units/") {
			o := e2e.Must(b.Client.GetObject(context.Background(), "bucket", info.Key, minio.GetObjectOptions{}))(t)
			found[name] = string(e2e.Must(io.ReadAll(o))(t))
		}
	}
	return found
}

// taskInputs writes inputs to a directory and to the bucket, below in/: JSON lines and Parquet that
// are divided, a compressed file, and side files and hidden names that are left out.
func taskInputs(t testing.TB, b *e2e.Bucket) (dir string) {
	t.Helper()
	dir = t.TempDir()
	e2e.NoError(t, os.MkdirAll(filepath.Join(dir, "in/sub"), 0o755))
	var lines bytes.Buffer
	for i := range 30_000 {
		fmt.Fprintf(&lines, "{\"text\": \"line %d %x\"}\n", i, i*i)
	}
	e2e.Write(t, filepath.Join(dir, "in/a.jsonl"), lines.Bytes())
	e2e.WriteCompressedLines(t, filepath.Join(dir, "in/sub/b.jsonl.zst"), 300_000)
	e2e.Write(t, filepath.Join(dir, "in/README.md"), "a side file")
	e2e.Write(t, filepath.Join(dir, "in/.hidden.jsonl"), "hidden")
	type row struct {
		Text string `parquet:"text"`
		ID   int64  `parquet:"id"`
	}
	rows := make([]row, 20_000)
	for i := range rows {
		rows[i] = row{fmt.Sprintf("row %d %x", i, i*i), int64(i)}
	}
	var table bytes.Buffer
	w := parquet.NewGenericWriter[row](&table, parquet.MaxRowsPerRowGroup(1500))
	e2e.Must(w.Write(rows))(t)
	e2e.NoError(t, w.Close())
	e2e.Write(t, filepath.Join(dir, "in/c.parquet"), table.Bytes())
	for _, file := range strings.Fields(e2e.Run(t, "sh", "-c", "cd $0 && find in -type f", dir)) {
		b.Put(t, file, e2e.Content(t, filepath.Join(dir, file)))
	}
	return dir
}

// Tasks that read from a store and write to it make the objects that local ones make of the same
// files, in any number, and although requests and uploads fail on the way.
func TestTasksInAStore(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b := e2e.NewBucket(t)
	dir := taskInputs(t, b)
	store := []string{"-c", e2e.Write(t, filepath.Join(dir, "store.toml"), fmt.Sprintf("[store]\nendpoint = %q\npath_style = true\n", b.URL))}
	prepare := func(args ...string) string {
		t.Helper()
		return e2e.Run(t, slices.Concat([]string{"env", "-C", dir, e2e.PlainBatchfs, "prepare"}, args, store)...)
	}
	options := []string{"--by", "gpt2", "--val", "0.1", "--unit-bytes", "200000"}
	local := func(args ...string) { prepare(args...) }
	prepare(append([]string{"--plan", "local.json", "in"}, options...)...)
	local("--plan", "local.json", "--task", "0/1", "--out", "want")
	local("--plan", "local.json", "--finish", "--out", "want")
	want := map[string]string{}
	for _, path := range e2e.Must(filepath.Glob(filepath.Join(dir, "want", "[^.]*")))(t) {
		want[filepath.Base(path)] = string(e2e.Content(t, path))
	}
	delete(want, "vocab.json") // has a digest of the names

	for name, inputs := range map[string][]string{"prefix": {"s3://bucket/in"}, "glob": {"s3://bucket/in/**/*.*"}} {
		plan := "s3://bucket/plans/" + name + ".json"
		prepare(slices.Concat([]string{"--plan", plan}, inputs, options)...)
		if said := prepare(slices.Concat([]string{"--plan", plan}, inputs, options)...); !strings.Contains(said, "; 0 inputs and 0 units are new") {
			t.Errorf("planned again: %s", said)
		}
		for _, n := range []int{1, 3} {
			out := fmt.Sprintf("s3://bucket/%s%d", name, n)
			var requests atomic.Int64
			b.FailWith(func(w http.ResponseWriter, r *http.Request) bool {
				if n := requests.Add(1); n%7 == 3 {
					return e2e.Cut(w, r)
				}
				return false
			})
			for i := range n {
				prepare("--plan", plan, "--task", fmt.Sprintf("%d/%d", n-1-i, n), "--out", out)
			}
			if said := prepare("--plan", plan, "--task", fmt.Sprintf("0/%d", n), "--out", out); strings.Contains(said, " units done, ") {
				t.Errorf("a task that is done did a unit: %s", said)
			}
			b.Recover()
			prepare("--plan", plan, "--status", "--out", out)
			prepare("--plan", plan, "--finish", "--verify", "--out", out)
			got := objects(t, b, fmt.Sprintf("%s%d/", name, n))
			if manifest := got["vocab.json"]; !strings.Contains(manifest, "train_000001.bin") {
				t.Errorf("vocab.json: %s", manifest)
			}
			if n == 1 {
				want["vocab.json"] = got["vocab.json"]
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s with %d tasks: objects %q differ from files %q", name, n, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
			}
		}
		delete(want, "vocab.json")
	}
	said := prepare("--plan", "s3://bucket/plans/prefix.json", "--finish", "--out", "s3://bucket/prefix1")
	_, mountOptions, ok := strings.Cut(said, "next: batchfs mount ")
	mountOptions, _, _ = strings.Cut(mountOptions, " MOUNTPOINT")
	if !ok {
		t.Errorf("--finish said %s", said)
	}
	inStore := e2e.Run(t, "sh", "-c", `exec "$@" `+mountOptions+` | sha256sum`, "sh", e2e.PlainBatchfs, "cat", "train", "--count", "50", "-c", store[1])
	inFiles := e2e.Run(t, "sh", "-c", `"$0" cat train --count 50 --data "$1" | sha256sum`, e2e.PlainBatchfs, filepath.Join(dir, "want"))
	e2e.Equal(t, "the batches from the store", inStore, inFiles)
	b.Put(t, "in/a.jsonl", append(e2e.Content(t, filepath.Join(dir, "in/a.jsonl")), '\n'))
	e2e.CheckFails(t, "the object has been replaced", slices.Concat([]string{e2e.PlainBatchfs, "prepare", "--plan", "s3://bucket/plans/prefix.json", "--task", "0/1", "--out", "s3://bucket/new"}, store)...)
	b.Put(t, "prefix1/train_000001.bin", []byte("ab"))
	e2e.CheckFails(t, "unit 000001: s3://bucket/prefix1/train_000001.bin has 2 bytes, but had",
		slices.Concat([]string{e2e.PlainBatchfs, "prepare", "--plan", "s3://bucket/plans/prefix.json", "--finish", "--out", "s3://bucket/prefix1"}, store)...)
}

// A plan of ids in a store decides by their first row whether there are labels, as for local files.
func TestTasksOfIDsInAStore(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b := e2e.NewBucket(t)
	dir := t.TempDir()
	type row struct {
		IDs    []int64 `parquet:"input_ids,list"`
		Labels []int64 `parquet:"labels,list"`
	}
	var lines, table bytes.Buffer
	w := parquet.NewGenericWriter[row](&table, parquet.MaxRowsPerRowGroup(500))
	for i := range int64(2000) {
		fmt.Fprintf(&lines, "{\"input_ids\": [%d, 1, 0], \"labels\": [-100, 1, 0]}\n", i)
		e2e.Must(w.Write([]row{{[]int64{i, 2, 0}, []int64{-100, 2, 0}}}))(t)
	}
	e2e.NoError(t, w.Close())
	e2e.NoError(t, os.Mkdir(filepath.Join(dir, "in"), 0o755))
	for name, content := range map[string][]byte{"in/a.parquet": table.Bytes(), "in/b.jsonl": lines.Bytes()} {
		e2e.Write(t, filepath.Join(dir, name), content)
		b.Put(t, name, content)
	}
	prepare := func(args ...string) {
		t.Helper()
		store := []string{"--set", "store.endpoint=" + b.URL, "--set", "store.path_style=true"}
		e2e.Run(t, slices.Concat([]string{"env", "-C", dir, e2e.PlainBatchfs, "prepare"}, args, store)...)
	}
	for plan, place := range map[string]string{"local.json": "", "s3://bucket/plan.json": "s3://bucket/"} {
		prepare("--plan", plan, place+"in", "--ids", "input_ids", "--vocab-size", "2000", "--val", "0.1", "--unit-bytes", "20000")
		prepare("--plan", plan, "--task", "0/1", "--out", place+"out")
		prepare("--plan", plan, "--finish", "--out", place+"out")
	}
	got, want := objects(t, b, "out/"), map[string]string{}
	for _, path := range e2e.Must(filepath.Glob(filepath.Join(dir, "out", "[^.]*")))(t) {
		want[filepath.Base(path)] = string(e2e.Content(t, path))
	}
	delete(got, "vocab.json") // has a digest of the names
	delete(want, "vocab.json")
	if !maps.Equal(got, want) || want["train_000001.mask.bin"] == "" {
		t.Errorf("objects %q differ from files %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}
