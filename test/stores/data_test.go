package stores

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"

	"batchfs/test/e2e"
)

// --data serves token files in a store as it does those in a directory: with the end-of-text token,
// vocabulary, masks and ids of vocab.json, the same batches, identity and fingerprint, and the same
// refusals.
func TestDataInAStore(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b, dir := e2e.NewBucket(t), t.TempDir()
	var lines bytes.Buffer
	for i := range 3000 {
		fmt.Fprintf(&lines, "{\"prompt\": \"line %d\", \"completion\": \" is %x\", \"url\": \"u%d\"}\n", i, i*i, i)
	}
	e2e.Write(t, filepath.Join(dir, "in.jsonl"), lines.Bytes())
	store := []string{"-c", e2e.Write(t, filepath.Join(dir, "store.toml"), fmt.Sprintf("[store]\nendpoint = %q\npath_style = true\nblock_bytes = %d\n", b.URL, e2e.StoreBlock))}
	const remote = "s3://bucket/to[kens"
	plan, local := filepath.Join(dir, "plan.json"), filepath.Join(dir, "to[kens")
	prepare := func(args ...string) string {
		t.Helper()
		return e2e.Run(t, append(append([]string{e2e.PlainBatchfs, "prepare", "--plan", plan}, args...), store...)...)
	}
	cat := func(data string) []string {
		return append([]string{e2e.PlainBatchfs, "cat", "train", "--count", "3", "--data", data}, store...)
	}
	// get copies the folder to the directory.
	get := func() {
		e2e.NoError(t, os.RemoveAll(local))
		e2e.NoError(t, os.MkdirAll(filepath.Join(local, ".units"), 0o755))
		for name, data := range objects(t, b, "to[kens/") {
			e2e.Write(t, filepath.Join(local, name), data)
		}
	}
	e2e.CheckFails(t, "--data "+remote+": no object is in this folder", cat(remote)...)
	prepare(filepath.Join(dir, "in.jsonl"), "--by", "byte", "--val", "0.1", "--unit-bytes", "50000", "--mask", "prompt:0,completion:1", "--id", "url")
	prepare("--task", "0/1", "--out", remote)
	get()
	for _, data := range []string{remote, local} {
		e2e.CheckFails(t, "/train_000000.bin: vocab.json does not list it, so the tasks of batchfs prepare", cat(data)...)
	}
	if said := prepare("--finish", "--out", remote); !strings.Contains(said, "next: batchfs mount --data '"+remote+"'") {
		t.Errorf("--finish said %s", said)
	}
	get()

	settings := append([]string{"--set", "batch.block_size=100", "--set", "batch.rows=packed", "--set", "batch.document_numbers=true"}, store...)
	inStore := e2e.Mount(t, append(settings, "--data", remote+"/")...)
	inFiles := e2e.Mount(t, append(settings, "--data", local)...)
	for _, split := range []string{"train", "val"} {
		got, want := inStore.Info(t, split), inFiles.Info(t, split)
		e2e.Equal(t, "identity", got.Identity, want.Identity)
		e2e.Equal(t, "fingerprint", got.Fingerprint, want.Fingerprint)
		for _, name := range []string{"batches.bin", "batch/1.safetensors", "order=shuffle/batch/2.safetensors"} {
			e2e.Run(t, "cmp", inStore.Path(split+"/"+name), inFiles.Path(split+"/"+name))
		}
		e2e.Contains(t, "a batch", e2e.Run(t, "head", "-c", "1000", inStore.Path(split+"/batch/1.safetensors")), `"mask"`)
		inspected := e2e.Run(t, e2e.PlainBatchfs, "inspect", inFiles.Path(split), "1")
		e2e.Contains(t, "inspect", inspected, ", id u")
		e2e.Contains(t, "inspect", inspected, "    line ")
		e2e.Equal(t, "inspect", strings.ReplaceAll(e2e.Run(t, e2e.PlainBatchfs, "inspect", inStore.Path(split), "1"), remote, local), strings.ReplaceAll(inspected, inFiles.Dir, inStore.Dir))
	}
	inStore.Stop(t)
	e2e.NoError(t, b.Client.RemoveObject(t.Context(), "bucket", "to[kens/train_000001.bin", minio.RemoveObjectOptions{}))
	e2e.NoError(t, os.Remove(filepath.Join(local, "train_000001.bin")))
	for _, data := range []string{remote, local} {
		e2e.CheckFails(t, "train_000001.bin is missing, but vocab.json lists it", cat(data)...)
	}
	b.FailWith(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/vocab.json") {
			w.WriteHeader(http.StatusNotImplemented)
			return true
		}
		return false
	})
	// Without the masks, the batches would be others.
	named := []string{e2e.PlainBatchfs, "cat", "train", "--set", "splits.train.tokens=s3://bucket/to?kens/train_*[0-9].bin", "--set", "batch.vocab_size=257"}
	for _, args := range [][]string{cat(remote), append(named, store...)} {
		e2e.CheckFails(t, "vocab.json: look up: 501", args...)
	}
}

// Without the permission to list, S3 says that a missing object is forbidden. vocab.json then
// counts as absent.
func TestForbiddenVocabulary(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b := e2e.NewBucket(t)
	data := e2e.RandomBytes(3 * e2e.StoreBlock)
	b.Put(t, "dir/train.bin", data)
	b.FailWith(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/vocab.json") || r.URL.Query().Has("list-type") {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	m := e2e.Mount(t, "-c", b.Config(t, "s3://bucket/dir/train.bin", ""))
	e2e.Equal(t, "tokens.bin", e2e.FileDigest(t, m, "train/tokens.bin"), e2e.Digest(data))
	e2e.AwaitText(t, m.Out, "s3://bucket/dir/vocab.json: counts as absent")
}

// The files that vocab.json lists are looked up by a listing: however many they are, a mount sends
// hardly more requests than without vocab.json.
func TestRequestsForListedShards(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b := e2e.NewBucket(t)
	const shards = 500
	var list []string
	for i := range shards {
		name := fmt.Sprintf("train_%06d.bin", i)
		var raw []byte
		for range 40 {
			raw = binary.LittleEndian.AppendUint16(raw, uint16(i))
		}
		b.Put(t, "many/"+name, raw)
		list = append(list, fmt.Sprintf(`{"name": %q, "tokens": 40}`, name))
	}
	var lookups atomic.Int64
	b.FailWith(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead || r.URL.Query().Has("list-type") {
			lookups.Add(1)
		}
		return false
	})
	config := b.Config(t, "s3://bucket/many/train_000007.bin", "block_size = 16")
	mount := func(args ...string) int64 {
		before := lookups.Load()
		e2e.Mount(t, args...).Stop(t)
		return lookups.Load() - before
	}
	all := []string{"-c", config, "--data", "s3://bucket/many"}
	without, oneWithout := mount(all...), mount("-c", config)
	b.Put(t, "many/vocab.json", fmt.Appendf(nil, `{"kind": "ids", "vocab_size": %d, "token_dtype": "uint16", "splits": {"train": {"shards": [%s]}}}`,
		shards, strings.Join(list, ", ")))
	with, oneWith := mount(all...), mount("-c", config)
	if without < shards || with > without+10 {
		t.Errorf("a mount sent %d lookups, and %d with vocab.json, want hardly more", without, with)
	}
	if oneWith > oneWithout+10 {
		t.Errorf("a mount of one object sent %d lookups, and %d with a vocab.json that lists %d, want hardly more", oneWithout, oneWith, shards)
	}
}
