// Package stores tests mounts whose tokens are objects in a store, and the cache directory of their
// blocks.
package stores

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// Batches of objects equal those of the same local files: with every format, documents, aligned
// arrays and joined files, in every order and with every access, with and without a cache
// directory.
func TestStore(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b, dir := e2e.NewBucket(t), t.TempDir()
	put := func(name string, data []byte) {
		e2e.Write(t, filepath.Join(dir, name), data)
		b.Put(t, "corpus/"+name, data)
	}
	written := e2e.Must(filepath.Glob("../cache/testdata/[ab]*.*"))(t)
	for _, file := range written {
		data := e2e.Content(t, file)
		put(filepath.Base(file), data)
	}
	put("plain_0.bin", e2e.RandomBytes(700_000))
	put("plain_1.bin", e2e.RandomBytes(300_002))
	put("plain_0.mask", e2e.RandomBytes(350_000))
	put("plain_0.features", e2e.RandomBytes(2_100_000))
	splits := map[string]string{
		"headerless": "?.bin", "datatrove": "?.ds", "llmc": "?_llmc.bin", "llama3": "?_llama3.bin", "megatron": "?_text_document.bin",
		"npy1": "?1.npy", "npy2": "?2.npy", "npy3": "?3.npy", "safetensors": "?.safetensors", "joined": "plain_*.bin", "beside": "plain_0.bin",
	}
	settings := map[string]string{
		"safetensors": "tensor = 'tokens'\n", "datatrove": "documents = true\n", "megatron": "documents = true\n", "joined": "join = true\nblock_size = 1000\n",
		"beside": "block_size = 1000\n[[splits.beside.arrays]]\nname = 'mask'\nfiles = 'AT/plain_0.mask'\ndtype = 'uint8'\n" +
			"[[splits.beside.arrays]]\nname = 'features'\nfiles = 'AT/plain_0.features'\ndtype = 'uint16'\nshape = [3]\n",
	}
	config := func(dir string) string {
		text := ""
		for name, pattern := range splits {
			text += fmt.Sprintf("[splits.%s]\ntokens = 'AT/%s'\n%s", name, pattern, settings[name])
		}
		return b.Config(t, dir+"/?.bin", strings.ReplaceAll(text, "AT", dir))
	}
	modified := make(map[string]string) // times of batches in stores, keyed by path
	for _, access := range []string{"remap", "advise", "pread"} {
		t.Run(access, func(t *testing.T) {
			args := []string{"--set", "memory.access=" + access, "--set", "batch.batch_size=3", "--set", "batch.block_size=7"}
			local := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), append(args, "-c", config(dir))...)
			if access != "pread" {
				args = append(args, "--set", "store.cache_dir="+t.TempDir())
			}
			inStore := e2e.Mount(t, append(args, "-c", config("s3://bucket/corpus"))...)
			for split := range splits {
				for _, order := range []string{"random", "shuffle", "sequential"} {
					for _, name := range []string{"batches.bin", "batch/5.safetensors", "batch/1017.safetensors", "next.npy"} {
						name = split + "/order=" + order + "/" + name
						e2e.Run(t, "cmp", local.Path(name), inStore.Path(name))
					}
				}
				e2e.Run(t, "cmp", local.Path(split+"/tokens.bin"), inStore.Path(split+"/tokens.bin"))
				// It comes from the objects, so it is the same in the next mount.
				at := e2e.Run(t, "stat", "-c", "%Y", inStore.Path(split+"/batch/0"))
				e2e.Equal(t, "the time of batches of "+split, at, cmp.Or(modified[split], at))
				modified[split] = at
			}
		})
	}
}

// All workers, mounts and `cache fill` together fetch each block only once, even after a restart.
// No overwritten block is served, and a directory that others may write to is rejected. prune
// removes what no mount reads.
func TestStoreCache(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b := e2e.NewBucket(t)
	const size = 20 * e2e.StoreBlock
	data := e2e.RandomBytes(size)
	b.Put(t, "train.bin", data)
	cacheDir := filepath.Join(t.TempDir(), "absent", "blocks")
	args := []string{"-c", b.Config(t, "s3://bucket/train.bin", "order = \"shuffle\""), "--set", "store.cache_dir=" + cacheDir}
	cache := func(command string, more ...string) []string {
		return slices.Concat([]string{e2e.PlainBatchfs, "cache", command}, args, more)
	}
	e2e.CheckOutput(t, ": 0 bytes of", cache("status")...)
	e2e.CheckOutput(t, ": 0 bytes removed", cache("prune")...)
	blocks := func() []string {
		return e2e.Must(filepath.Glob(filepath.Join(cacheDir, strings.Repeat("?", 32), "[0-9]*")))(t)
	}
	batches := ""
	readAll := func(m *e2e.Mounted) { // reads two files, which the kernel caches separately
		t.Helper()
		e2e.CheckOutput(t, fmt.Sprintf("%x", sha256.Sum256(data)), "sha256sum", m.Path("train/tokens.bin"))
		sum, _, _ := strings.Cut(e2e.Run(t, "sha256sum", m.Path("train/batches.bin")), " ")
		e2e.Equal(t, "the checksum of the batches", sum, cmp.Or(batches, sum))
		batches = sum
	}
	m := e2e.Mount(t, args...)
	readAll(m)
	e2e.Await(t, "all blocks to be in the directory", func() (any, bool) { return blocks(), len(blocks()) >= size/e2e.StoreBlock })
	for range 3 {
		e2e.NoError(t, syscall.Kill(e2e.StatusOf(t, m).PID, syscall.SIGKILL))
		readAll(m)
	}
	other := e2e.Mount(t, args...)
	readAll(other)
	m.Stop(t)
	other.Stop(t)
	m = e2e.Mount(t, args...)
	readAll(m)
	e2e.Run(t, cache("fill")...)
	e2e.Equal(t, "bytes fetched in total", b.BlockBytes.Load(), size)
	needed := func(splits ...string) string {
		out, _, _ := strings.Cut(e2e.Run(t, cache("fill", splits...)...), " bytes needed")
		return out
	}
	e2e.Equal(t, "bytes needed by two readers of the same blocks", needed("train", "train/seed=7"), needed("train"))
	e2e.CheckOutput(t, "/bucket/train.bin: 20 blocks", cache("status")...)
	e2e.CheckOutput(t, "/train: ", cache("status")...)
	e2e.CheckOutput(t, " 0 bytes removed", cache("prune")...)
	for _, block := range blocks() {
		f := e2e.Must(os.OpenFile(block, os.O_WRONLY, 0))(t)
		e2e.Must(f.Write(make([]byte, e2e.StoreBlock/2)))(t)
		f.Close()
	}
	m.Stop(t)
	m = e2e.Mount(t, args...)
	readAll(m)
	m.Stop(t)
	if out := e2e.Run(t, cache("prune")...); strings.Contains(out, " 0 bytes removed") {
		t.Errorf("prune of what is not mounted printed %q, want some bytes removed", out)
	}
	e2e.CheckFails(t, "is full: the splits need", cache("fill", "--set", "store.cache_bytes=1000000")...)
	e2e.NoError(t, os.Chmod(cacheDir, 0o777))
	for _, command := range [][]string{slices.Concat([]string{e2e.PlainBatchfs, "mount", t.TempDir()}, args), cache("fill"), cache("status"), cache("prune")} {
		e2e.CheckFails(t, cacheDir+": others may write to it", command...)
	}
}

// A restart that adds a source samples the objects of the others again, and is rejected if one was
// replaced.
func TestStoreAddedSource(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b := e2e.NewBucket(t)
	keys := []string{"web.bin", "math.bin", "code.bin"}
	for i, key := range keys {
		b.Put(t, key, e2e.RandomBytes((i+3)*e2e.StoreBlock))
	}
	config := ""
	write := func(sources int) {
		t.Helper()
		text := ""
		for _, key := range keys[:sources] {
			text += fmt.Sprintf("[[splits.train.sources]]\nname = %q\ntokens = %q\n", strings.TrimSuffix(key, ".bin"), "s3://bucket/"+key)
		}
		fresh := b.Config(t, "", text+"[[splits.train.stages]]\nweights = {web = 1}\n")
		config = cmp.Or(config, fresh)
		e2e.Write(t, config, strings.Replace(string(e2e.Must(os.ReadFile(fresh))(t)), "tokens = \"\"\n", "", 1))
	}
	write(1)
	m := e2e.Mount(t, "-c", config)
	write(2)
	e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
	e2e.Equal(t, "the fingerprint", m.Info(t, "train").Fingerprint, e2e.JSON[e2e.Info](t, e2e.PlainBatchfs, "cat", "train", "-c", config, "--format", "info").Fingerprint)
	b.Put(t, "web.bin", e2e.RandomBytes(3*e2e.StoreBlock+2))
	write(3)
	e2e.CheckFails(t, "splits.train: s3://bucket/web.bin has changed since it was opened: ", e2e.PlainBatchfs, "restart", m.Dir)
}

// Reads of an object that was replaced fail with ESTALE until the old object is back. With
// on_change = "follow", the new object is served instead.
func TestStoreReplaced(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b := e2e.NewBucket(t)
	_, data, check := b.MountInOrder(t, t.TempDir())
	e2e.NoError(t, check(0))
	b.Put(t, "train.bin", e2e.RandomBytes(60*e2e.StoreBlock+2))
	if err := check(12); err == nil || !strings.Contains(err.Error(), "Stale file handle") {
		t.Errorf("a batch of a replaced object: error %v, want ESTALE", err)
	}
	b.Put(t, "train.bin", data)
	e2e.AwaitSuccess(t, "the old object to be served again", func() error { return check(12) })

	b.Put(t, "live.bin", bytes.Repeat([]byte{1, 0}, 10*e2e.StoreBlock))
	m := e2e.Mount(t, "-c", b.Config(t, "s3://bucket/live.bin", "on_change = \"follow\"\norder = \"shuffle\"\ntoken_dtype = \"uint16\""), "--set", "memory.ahead=0")
	first := func() string {
		return strings.Fields(e2e.Run(t, "od", "-A", "n", "-t", "u2", "-N", "2", m.Path("train/next")))[0]
	}
	e2e.Equal(t, "the first token", first(), "1")
	b.Put(t, "live.bin", bytes.Repeat([]byte{2, 0}, 10*e2e.StoreBlock))
	e2e.Await(t, "the new object to be served", func() (any, bool) {
		token := first()
		return token, token == "2"
	})
}

// Commands accept objects as well as files, or say why they do not.
func TestStoreCommands(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	b, dir := e2e.NewBucket(t), t.TempDir()
	data := e2e.RandomBytes(3*e2e.StoreBlock + 2)
	b.Put(t, "train.bin", data)
	e2e.Write(t, filepath.Join(dir, "train.bin"), data)
	e2e.Write(t, filepath.Join(dir, "text.txt"), []byte("text"))
	batchfs := []string{"env", "AWS_ENDPOINT_URL=" + b.URL, e2e.PlainBatchfs}
	remote := b.Config(t, "s3://bucket/train.bin", "order = \"shuffle\"")
	local := b.Config(t, filepath.Join(dir, "train.bin"), "order = \"shuffle\"")
	m := e2e.Mount(t, "-c", remote)
	for _, args := range [][]string{
		{"info", "--json", "FILE"},
		{"check", "train", "--overlap", "64", "-c", "CONFIG"},
		{"inspect", "train", "17", "-c", "CONFIG"},
		{"inspect", "train", "--find", "5000", "-c", "CONFIG"},
		{"cat", "train", "--from", "3", "--count", "20", "-c", "CONFIG"},
	} {
		printed := func(config, file string) string {
			stdout := e2e.Run(t, append(batchfs, strings.Fields(strings.NewReplacer("CONFIG", config, "FILE", file).Replace(strings.Join(args, " ")))...)...)
			return strings.ReplaceAll(stdout, file, "train.bin")
		}
		e2e.Equal(t, fmt.Sprintf("%s of an object", args), printed(remote, "s3://bucket/train.bin"), printed(local, filepath.Join(dir, "train.bin")))
	}
	e2e.Equal(t, "cat of a mounted split of objects", e2e.Run(t, e2e.PlainBatchfs, "cat", m.Path("train"), "--from", "3"), e2e.Run(t, "cat", m.Path("train/batch/3")))
	for _, test := range []struct{ args, says string }{
		{"doctor -c " + remote + " " + m.Dir, "mounted train: 196609 tokens in 1 file: s3://bucket/train.bin"},
		{"info s3://bucket/tr*.bin", "s3://bucket/train.bin"},
	} {
		e2e.CheckOutput(t, test.says, append(batchfs, strings.Fields(test.args)...)...)
	}
	e2e.Equal(t, "tokens.bin", e2e.FileDigest(t, m, "train/tokens.bin"), e2e.Digest(data))
	object := e2e.Must(b.Client.StatObject(context.Background(), "bucket", "train.bin", minio.StatObjectOptions{}))(t)
	// From now on, the reply to HEAD has a wrong length.
	b.FailWith(func(w http.ResponseWriter, r *http.Request) bool {
		if path.Base(r.URL.Path) != "train.bin" {
			return false
		}
		w.Header().Set("ETag", object.ETag)
		w.Header().Set("Last-Modified", object.LastModified.Format(http.TimeFormat))
		w.Header().Set("Content-Length", "1000")
		return r.Method == http.MethodHead
	})
	e2e.CheckFails(t, "has 393218 bytes, and said 1000 before", append(batchfs, "info", "s3://bucket/train.bin")...)
	b.FailWith(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	for _, test := range []struct{ args, says string }{
		{"info s3://bucket/train.bin", "s3://bucket/train.bin: look up: 403"},
		{"info s3://bucket/none*.bin", "s3://bucket/none*: list: 403"},
		{"index s3://bucket/train.bin --eot 0", "does not write to a store"},
		{"mount --data s3://bucket/dir " + t.TempDir(), "s3://bucket/dir/*: list: 403"},
		{"doctor -c " + remote, "403"},
		{"prepare " + filepath.Join(dir, "text.txt") + " --by byte --out s3://bucket/dir", "prepare writes to a store only with --plan"},
		{"prepare s3://bucket/text.txt --by byte --out " + dir, "prepare reads from a store only with --plan"},
	} {
		stdout, stderr, err := e2e.Try(t, append(batchfs, strings.Fields(test.args)...)...)
		if err == nil || !strings.Contains(stdout+stderr, test.says) || strings.Contains(stdout+stderr, e2e.StoreSecret) {
			t.Errorf("%s printed %q (error %v), want %q and not the secret", test.args, stdout+stderr, err, test.says)
		}
	}
}

// `cache fill` succeeds on a slow cache disk, which takes 20 ms for each write, and does not report
// a full cache.
func TestSlowCacheDisk(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	disk, b := e2e.NewSlowFS(t, t.TempDir()), e2e.NewBucket(t)
	const blocks = 200
	b.Put(t, "train.bin", e2e.RandomBytes(blocks*e2e.StoreBlock))
	// Writing all blocks in memory takes longer than a block may wait to be written.
	args := []string{"-c", b.Config(t, "s3://bucket/train.bin", `order = "shuffle"`), "--set", "store.cache_dir=" + filepath.Join(disk.Dir, "blocks"),
		"--set", "store.cache_bytes=1000000000", "--set", fmt.Sprintf("memory.ahead_bytes=%d", 2*100*e2e.StoreBlock)}
	disk.Delay(t, "write", 20*time.Millisecond)
	e2e.Run(t, append([]string{e2e.Batchfs, "cache", "fill"}, args...)...)
	status := e2e.Run(t, append([]string{e2e.PlainBatchfs, "cache", "status"}, args...)...)
	e2e.Contains(t, "cache status", status, fmt.Sprintf("/bucket/train.bin: %d blocks", blocks))
	if writes := disk.Count(t, "write"); writes < blocks {
		t.Errorf("the slow disk had %d writes, want at least one for each of %d blocks", writes, blocks)
	}
}
