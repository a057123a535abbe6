package test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const gateway = "github.com/versity/versitygw/cmd/versitygw" // of test/versitygw

// installGateway returns an S3 server that is kept in the user's cache directory.
func installGateway(t testing.TB) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	noError(t, err)
	program := filepath.Join(dir, "batchfs", "versitygw-v1.8.0")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	noError(t, os.MkdirAll(filepath.Dir(program), 0o755))
	building := fmt.Sprintf("%s.%d", program, os.Getpid())
	cmd := exec.Command("go", "build", "-o", building, gateway)
	cmd.Dir = "versitygw"
	if out, err := cmd.CombinedOutput(); err != nil {
		lack(t, "no S3 server: %v\n%s", err, out)
	}
	noError(t, os.Rename(building, program))
	return program
}

// A bucket is one of a real S3 server, which is reached with TLS through a proxy that can fail.
type bucket struct {
	url    string
	server *httptest.Server // the proxy
	client *minio.Client
	fault  atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool] // answers a request, or lets it pass
	large  atomic.Int64                                                      // bytes that were fetched of blocks
	rate   atomic.Int64                                                      // bytes a second of all answers; 0: no limit

	mu   sync.Mutex
	next time.Time // when the next byte of an answer may go; guarded by mu
}

const storeBlock = 128 << 10

const (
	storeKey    = "storekey"
	storeSecret = "storesecret"
)

func newBucket(t *testing.T) *bucket {
	t.Helper()
	program := installGateway(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	address := free.Addr().String()
	free.Close()
	data := t.TempDir()
	cmd := exec.Command(program, "--access", storeKey, "--secret", storeSecret, "--port", address, "--quiet", "posix", data)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	noError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	await(t, "the S3 server", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	b := &bucket{}
	b.client, err = minio.New(address, &minio.Options{Creds: credentials.NewStaticV4(storeKey, storeSecret, ""), Region: "us-east-1"})
	noError(t, err)
	noError(t, b.client.MakeBucket(context.Background(), "bucket", minio.MakeBucketOptions{}))
	target, _ := url.Parse("http://" + address)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && r.ContentLength > 64<<10 {
				b.large.Add(r.ContentLength)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	b.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := b.fault.Load(); fault == nil || !(*fault)(w, r) {
			if b.rate.Load() > 0 {
				w = &slowWriter{w, b}
			}
			proxy.ServeHTTP(w, r)
		}
	}))
	b.server.EnableHTTP2 = true
	b.server.StartTLS()
	t.Cleanup(func() { b.server.Close() })
	b.url = b.server.URL
	authorities := filepath.Join(t.TempDir(), "authorities.pem")
	write(t, authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.server.Certificate().Raw}))
	t.Setenv("SSL_CERT_FILE", authorities)
	t.Setenv("AWS_ACCESS_KEY_ID", storeKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", storeSecret)
	return b
}

// A slowWriter is an answer that keeps to the rate of its bucket.
type slowWriter struct {
	http.ResponseWriter
	b *bucket
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.b.mu.Lock()
	if now := time.Now(); w.b.next.Before(now) {
		w.b.next = now
	}
	at := w.b.next
	w.b.next = at.Add(time.Duration(len(p)) * time.Second / time.Duration(w.b.rate.Load()))
	w.b.mu.Unlock()
	time.Sleep(time.Until(at))
	return w.ResponseWriter.Write(p)
}

func (b *bucket) put(t *testing.T, key string, data []byte) {
	t.Helper()
	_, err := b.client.PutObject(context.Background(), "bucket", key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{})
	noError(t, err)
}

func (b *bucket) fails(fault func(w http.ResponseWriter, r *http.Request) bool) {
	b.fault.Store(&fault)
}

func (b *bucket) works() { b.fault.Store(nil) }

// refuses refuses connections, until accepts accepts them again.
func (b *bucket) refuses() {
	b.server.CloseClientConnections()
	b.server.Close()
}

func (b *bucket) accepts(t *testing.T) {
	t.Helper()
	again := httptest.NewUnstartedServer(b.server.Config.Handler)
	again.Listener.Close()
	var err error
	again.Listener, err = net.Listen("tcp", b.server.Listener.Addr().String())
	noError(t, err)
	again.StartTLS()
	b.server = again
}

// config is that of a split of tokens; the tables [batch] and [store] may be continued.
func (b *bucket) config(t *testing.T, tokens, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	write(t, path, fmt.Appendf(nil, `
[batch]
block_size = 100
[splits.train]
tokens = %q
%s
[store]
endpoint = %q
path_style = true
block_bytes = %d
`, tokens, more, b.url, storeBlock))
	return path
}

func randomBytes(n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	raw := make([]byte, n)
	for i := range raw {
		raw[i] = byte(r.Uint32())
	}
	return raw
}

func sameFiles(t *testing.T, a, b *mounted, names ...string) {
	t.Helper()
	for _, name := range names {
		run(t, "cmp", a.path(name), b.path(name))
	}
}

// Batches of objects are those of the same files on a local disk: all orders, accesses and formats, arrays beside and indexes.
func TestStore(t *testing.T) {
	long(t)
	b, dir := newBucket(t), t.TempDir()
	put := func(name string, data []byte) {
		write(t, filepath.Join(dir, name), data)
		b.put(t, "corpus/"+name, data)
	}
	put("plain_0.bin", randomBytes(700_000))
	put("plain_1.bin", randomBytes(300_002))
	npy := func(dtype string, shape string, data []byte) []byte {
		header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", dtype, shape)
		header += strings.Repeat(" ", 117-len(header)) + "\n"
		return append(append([]byte("\x93NUMPY\x01\x00\x76\x00"), header...), data...)
	}
	put("tokens.npy", npy("<u4", "(100000,)", randomBytes(400_000)))
	put("mask.npy", npy("|u1", "(100000,)", randomBytes(100_000)))
	put("features.npy", npy("<f4", "(100000, 3)", randomBytes(1_200_000)))
	beside := func(at string) string {
		return fmt.Sprintf("[[splits.train.arrays]]\nname = \"mask\"\nfiles = %q\n[[splits.train.arrays]]\nname = \"features\"\nfiles = %q\n",
			at+"/mask.npy", at+"/features.npy")
	}
	const remote = "s3://bucket/corpus"
	for _, test := range []struct {
		name, files string
		more        func(at string) string
	}{
		{"headerless", "plain_*.bin", func(string) string { return "join = true\ntoken_dtype = \"uint16\"\n" }},
		{"npy", "tokens.npy", beside},
	} {
		for i, access := range []string{"remap", "advise", "pread", "map"} {
			if raceEnabled && i > 1 {
				continue
			}
			t.Run(test.name+"/"+access, func(t *testing.T) {
				args := []string{"--set", "memory.access=" + access}
				local := mount(t, append([]string{"-c", b.config(t, filepath.Join(dir, test.files), test.more(dir))}, args...)...)
				cacheDir := t.TempDir()
				if access == "pread" {
					cacheDir = ""
				} else {
					args = append(args, "--set", "store.cache_dir="+cacheDir)
				}
				inStore := mount(t, append([]string{"-c", b.config(t, remote+"/"+test.files, test.more(remote))}, args...)...)
				for round := range 2 {
					for _, order := range []string{"random", "shuffle", "sequential"} {
						for k := range 5 {
							sameFiles(t, local, inStore, fmt.Sprintf("train/order=%s/batch/%d.safetensors", order, 1000*round+17*k))
						}
						sameFiles(t, local, inStore, "train/order="+order+"/batches.bin", "train/order="+order+"/next.npy")
					}
				}
				sameFiles(t, local, inStore, "train/tokens.bin")
			})
		}
	}
}

// Files of every format, as their own libraries wrote them, and their documents are the same from a store, in every order.
func TestStoreFormats(t *testing.T) {
	long(t)
	b, dir := newBucket(t), t.TempDir()
	written, err := filepath.Glob("../cache/testdata/[ab]*.*")
	noError(t, err)
	for _, file := range written {
		data, err := os.ReadFile(file)
		noError(t, err)
		write(t, filepath.Join(dir, filepath.Base(file)), data)
		b.put(t, "corpus/"+filepath.Base(file), data)
	}
	splits := map[string]string{"headerless": "?.bin", "datatrove": "?.ds", "llmc": "?_llmc.bin", "llama3": "?_llama3.bin", "megatron": "?_text_document.bin",
		"npy1": "?1.npy", "npy2": "?2.npy", "npy3": "?3.npy", "safetensors": "?.safetensors"}
	config := func(at string) string {
		text := ""
		for name, pattern := range splits {
			text += fmt.Sprintf("[splits.%s]\ntokens = %q\n", name, at+"/"+pattern)
			if name == "safetensors" {
				text += "tensor = \"tokens\"\n"
			}
			if name == "datatrove" || name == "megatron" {
				text += fmt.Sprintf("[splits.%s-documents]\ntokens = %q\ndocuments = true\n", name, at+"/"+pattern)
			}
		}
		path := b.config(t, at+"/?.bin", text)
		raw, err := os.ReadFile(path)
		noError(t, err)
		write(t, path, bytes.Replace(raw, []byte("block_size = 100"), []byte("block_size = 7\nbatch_size = 3"), 1))
		return path
	}
	local, inStore := mount(t, "-c", config(dir)), mount(t, "-c", config("s3://bucket/corpus"))
	list, err := os.ReadDir(local.dir)
	noError(t, err)
	for _, split := range list {
		if !split.IsDir() {
			continue
		}
		for _, order := range []string{"random", "shuffle", "sequential"} {
			at := split.Name() + "/order=" + order
			sameFiles(t, local, inStore, at+"/batches.bin", at+"/batch/5.safetensors", at+"/next.npy", at+"/layout=tokens,dtype=int64/batch/3")
		}
		sameFiles(t, local, inStore, split.Name()+"/tokens.bin")
	}
}

// What was fetched is fetched no more: by another worker, after a restart of everything, by another mount.
func TestStoreCache(t *testing.T) {
	long(t)
	b := newBucket(t)
	const size = 16 * storeBlock
	b.put(t, "train.bin", randomBytes(size))
	cacheDir := t.TempDir()
	args := []string{"-c", b.config(t, "s3://bucket/train.bin", "order = \"shuffle\""), "--set", "store.cache_dir=" + cacheDir}
	m := mount(t, args...)
	want := run(t, "sha256sum", m.path("train/batches.bin"))
	want, _, _ = strings.Cut(want, " ")
	sum := func(m *mounted) string { // of more than the page cache of one file
		t.Helper()
		run(t, "cat", m.path("train/tokens.bin"))
		out, _, _ := strings.Cut(run(t, "sha256sum", m.path("train/batches.bin")), " ")
		return out
	}
	await(t, "all blocks in the directory", func() bool {
		kept, _ := filepath.Glob(filepath.Join(cacheDir, "*", "[0-9]*"))
		return len(kept) >= (size+storeBlock-1)/storeBlock
	})
	for range 3 {
		noError(t, syscall.Kill(statusOf(t, m).PID, syscall.SIGKILL))
		if got := sum(m); got != want {
			t.Errorf("after a worker died, the batches have the sum %s, want %s", got, want)
		}
	}
	other := mount(t, args...)
	if got := sum(other); got != want {
		t.Errorf("another mount has the sum %s, want %s", got, want)
	}
	m.stop(t)
	other.stop(t)
	if got := sum(mount(t, args...)); got != want {
		t.Errorf("after a new mount, the batches have the sum %s, want %s", got, want)
	}
	if n := b.large.Load(); n != size {
		t.Errorf("%d bytes were fetched of %d in all, want each once", n, size)
	}
	status := run(t, append([]string{plainBatchfs, "cache", "status"}, args...)...)
	if !strings.Contains(status, "/bucket/train.bin: 16 blocks") || !strings.Contains(status, "/train: ") {
		t.Errorf("cache status says:\n%s", status)
	}
}

// batchfs cache fills the directory, as far as there is room, and removes what no mount reads. Blocks that somebody overwrites are not served,
// and neither is a directory of somebody else.
func TestCacheCommand(t *testing.T) {
	long(t)
	b := newBucket(t)
	data := randomBytes(20 * storeBlock)
	b.put(t, "train.bin", data)
	cacheDir := filepath.Join(t.TempDir(), "absent", "blocks")
	args := []string{"-c", b.config(t, "s3://bucket/train.bin", ""), "--set", "store.cache_dir=" + cacheDir}
	for command, want := range map[string]string{"status": ": 0 bytes of", "prune": ": 0 bytes removed"} {
		if out := run(t, append([]string{plainBatchfs, "cache", command}, args...)...); !strings.Contains(out, want) {
			t.Errorf("cache %s of no directory says %q", command, out)
		}
	}
	run(t, append([]string{plainBatchfs, "cache", "fill"}, args...)...)
	fetched := b.large.Load()
	m := mount(t, args...)
	run(t, "cat", m.path("train/batches.bin"))
	if fetched != 20*storeBlock || b.large.Load() != fetched {
		t.Errorf("%d bytes were fetched, and %d after that, want %d and none", fetched, b.large.Load()-fetched, 20*storeBlock)
	}
	if out := run(t, append([]string{plainBatchfs, "cache", "prune"}, args...)...); !strings.Contains(out, " 0 bytes removed") {
		t.Errorf("prune of what is mounted says %q", out)
	}
	kept, _ := filepath.Glob(filepath.Join(cacheDir, strings.Repeat("?", 32), "[0-9]*"))
	for _, block := range kept {
		f, err := os.OpenFile(block, os.O_WRONLY, 0)
		noError(t, err)
		_, err = f.Write(make([]byte, storeBlock/2))
		noError(t, err)
		f.Close()
	}
	if out := run(t, "sha256sum", m.path("train/tokens.bin")); !strings.HasPrefix(out, fmt.Sprintf("%x", sha256.Sum256(data))) {
		t.Error("blocks that were overwritten are served")
	}
	m.stop(t)
	if out := run(t, append([]string{plainBatchfs, "cache", "prune"}, args...)...); strings.Contains(out, " 0 bytes removed") {
		t.Errorf("prune of what is not mounted says %q", out)
	}
	_, said, err := try(t, append([]string{plainBatchfs, "cache", "fill", "--set", "store.cache_bytes=1000000"}, args...)...)
	if err == nil || !strings.Contains(said, "is full, or fails") {
		t.Errorf("fill of a small cache says %q (%v)", said, err)
	}
	noError(t, os.Chmod(cacheDir, 0o777))
	for _, command := range [][]string{{"mount", t.TempDir()}, {"cache", "fill"}, {"cache", "status"}, {"cache", "prune"}} {
		if _, said, err := try(t, slices.Concat([]string{plainBatchfs}, command, args)...); err == nil || !strings.Contains(said, cacheDir+": others may write to it") {
			t.Errorf("%s says %q (%v) of a directory that everybody may write to", command, said, err)
		}
	}
}

// inOrder mounts 60 blocks of an object, in rows of 200,000 bytes and one, of which nothing is fetched ahead. check reads a batch, and
// compares its bytes.
func (b *bucket) inOrder(t *testing.T, cacheDir string) (m *mounted, data []byte, check func(k int) error) {
	t.Helper()
	data = randomBytes(60 * storeBlock)
	b.put(t, "train.bin", data)
	m = mount(t, "-c", b.config(t, "s3://bucket/train.bin", "order = \"sequential\"\nlayout = \"tokens\"\nblock_size = 100000\nbatch_size = 1"), "--set",
		"store.cache_dir="+cacheDir, "--set", "mount.timeout=4s", "--set", "memory.ahead=0", "--set", "memory.ahead_bytes=0")
	check = func(k int) error {
		out, said, err := try(t, "sha256sum", m.path(fmt.Sprintf("train/batch/%d", k)))
		if err != nil {
			return fmt.Errorf("%w: %s", err, said)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256(data[k*200_000:k*200_000+200_002])); !strings.HasPrefix(out, want) {
			t.Errorf("batch %d has other bytes", k)
		}
		return nil
	}
	return m, data, check
}

// Faults of the store are errors at once that say what is wrong, or nobody notices them; what is kept is served on, and all is well afterwards.
func TestStoreFaults(t *testing.T) {
	long(t)
	b := newBucket(t)
	cacheDir := t.TempDir()
	m, data, check := b.inOrder(t, cacheDir)
	noError(t, check(0))
	k := 3
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"throttled": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		},
		"cut": func(w http.ResponseWriter, _ *http.Request) bool {
			conn, _, _ := http.NewResponseController(w).Hijack()
			conn.Close()
			return true
		},
		"slow": func(http.ResponseWriter, *http.Request) bool {
			time.Sleep(200 * time.Millisecond)
			return false
		},
	} {
		var seen sync.Map // the first request for each block fails
		b.fails(func(w http.ResponseWriter, r *http.Request) bool {
			_, again := seen.LoadOrStore(r.Header.Get("Range"), true)
			return !again && fault(w, r)
		})
		if err := check(k); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		k += 3
	}

	// the store is away
	b.fails(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if err := check(k + 6); err == nil {
		t.Error("a batch that nobody has was read while the store is away")
	}
	last := statusOf(t, m).Splits["train"].LastError
	for _, word := range []string{"s3://bucket/train.bin", "bytes ", "503"} {
		if !strings.Contains(last, word) {
			t.Errorf("the error %q does not say %q", last, word)
		}
	}
	if strings.Contains(last+m.out.String(), storeSecret) {
		t.Error("the log, or status.json, has the secret")
	}
	noError(t, check(0))
	b.works()
	await(t, "a batch after the store is back", func() bool { return check(k+6) == nil })

	// other bytes under the same name
	b.put(t, "train.bin", randomBytes(60*storeBlock+2))
	if err := check(k + 12); err == nil || !strings.Contains(err.Error(), "Stale file handle") {
		t.Errorf("a batch of an object that was replaced: %v, want ESTALE", err)
	}
	b.put(t, "train.bin", data)
	await(t, "the old object is served again", func() bool { return check(k+12) == nil })
}

// Commands take objects as they take files, or say why not.
func TestStoreCommands(t *testing.T) {
	long(t)
	b, dir := newBucket(t), t.TempDir()
	data := randomBytes(3*storeBlock + 2)
	b.put(t, "train.bin", data)
	write(t, filepath.Join(dir, "train.bin"), data)
	write(t, filepath.Join(dir, "text.txt"), []byte("text"))
	t.Setenv("AWS_ENDPOINT_URL", b.url)
	remote := b.config(t, "s3://bucket/train.bin", "order = \"shuffle\"")
	local := b.config(t, filepath.Join(dir, "train.bin"), "order = \"shuffle\"")
	m := mount(t, "-c", remote)
	for _, args := range [][]string{
		{"info", "--json", "FILE"},
		{"check", "train", "--overlap", "16", "-c", "CONFIG"},
		{"inspect", "train", "17", "-c", "CONFIG"},
		{"inspect", "train", "--find", "5000", "-c", "CONFIG"},
		{"cat", "train", "--from", "3", "--count", "20", "-c", "CONFIG"},
	} {
		said := func(config, file string) string {
			stdout := run(t, append([]string{plainBatchfs}, strings.Fields(strings.NewReplacer("CONFIG", config, "FILE", file).Replace(strings.Join(args, " ")))...)...)
			return strings.ReplaceAll(stdout, file, "train.bin")
		}
		if got, want := said(remote, "s3://bucket/train.bin"), said(local, filepath.Join(dir, "train.bin")); got != want {
			t.Errorf("%s of an object says\n%s\nwant\n%s", args, got, want)
		}
	}
	if got, want := run(t, plainBatchfs, "cat", m.path("train"), "--from", "3"), run(t, "cat", m.path("train/batch/3")); got != want {
		t.Error("cat of a mounted split of objects has other bytes")
	}
	for _, test := range []struct{ args, says string }{
		{"doctor -c " + remote + " " + m.dir, "mounted train: 196609 tokens in 1 file: s3://bucket/train.bin"},
		{"info s3://bucket/tr*.bin", "s3://bucket/train.bin"},
	} {
		if said := run(t, append([]string{plainBatchfs}, strings.Fields(test.args)...)...); !strings.Contains(said, test.says) {
			t.Errorf("%s says\n%s\nwant %q", test.args, said, test.says)
		}
	}
	if run(t, "cat", m.path("train/tokens.bin")) != string(data) {
		t.Error("tokens.bin has other bytes than the object")
	}
	kept, err := b.client.StatObject(context.Background(), "bucket", "train.bin", minio.StatObjectOptions{})
	noError(t, err)
	b.fails(func(w http.ResponseWriter, r *http.Request) bool { // a HEAD that is short
		w.Header().Set("ETag", kept.ETag)
		w.Header().Set("Last-Modified", kept.LastModified.Format(http.TimeFormat))
		w.Header().Set("Content-Length", "1000")
		return r.Method == http.MethodHead
	})
	if _, said, err := try(t, plainBatchfs, "info", "s3://bucket/train.bin"); err == nil || !strings.Contains(said, "has 393218 bytes, and said 1000 before") {
		t.Errorf("info of an object whose HEAD is short says %q (%v)", said, err)
	}
	b.fails(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	for _, test := range []struct{ args, says string }{
		{"info s3://bucket/train.bin", "s3://bucket/train.bin: look: 403"},
		{"info s3://bucket/none*.bin", "s3://bucket/none*: list: 403"},
		{"index s3://bucket/train.bin --eot 0", "writes nothing to a store"},
		{"mount --data s3://bucket/dir " + t.TempDir(), "--set splits.train.tokens=s3://bucket/dir/train*.bin"},
		{"doctor -c " + remote, "403"},
		{"prepare " + filepath.Join(dir, "text.txt") + " --by byte --out s3://bucket/dir", "writes nothing to a store"},
		{"prepare s3://bucket/text.txt --by byte --out " + dir, "reads nothing from a store"},
	} {
		stdout, stderr, err := try(t, append([]string{plainBatchfs}, strings.Fields(test.args)...)...)
		if err == nil || !strings.Contains(stdout+stderr, test.says) || strings.Contains(stdout+stderr, storeSecret) {
			t.Errorf("%s says %q (%v), want %q", test.args, stdout+stderr, err, test.says)
		}
	}
}

// While the store is away, what is kept is served on, and other reads fail, all but the first at once. All is well when it is back.
func TestStoreOutage(t *testing.T) {
	long(t)
	b := newBucket(t)
	m, _, check := b.inOrder(t, t.TempDir())
	await(t, "the first batch", func() bool { return check(0) == nil })
	worker := statusOf(t, m).PID
	for i, kind := range []string{"refuses", "silent"} {
		k := 5 + 15*i
		if kind == "refuses" {
			b.refuses()
		} else {
			b.fails(func(_ http.ResponseWriter, r *http.Request) bool {
				<-r.Context().Done()
				return true
			})
		}
		if check(k) == nil {
			t.Errorf("%s: a batch that nobody has was read while the store is away", kind)
		}
		slowest := time.Duration(0)
		for n, end := 0, time.Now().Add(lasting(0, time.Minute)); n < 10 || time.Now().Before(end); n++ {
			began := time.Now()
			if check(k+3*(n%3)) == nil {
				t.Errorf("%s: a batch that nobody has was read while the store is away", kind)
			}
			slowest = max(slowest, time.Since(began))
			if err := check(0); err != nil {
				t.Errorf("%s: a batch that is kept: %v", kind, err)
			}
		}
		inTime(t, kind+": an error while it is known that the store is away", slowest, time.Second)
		last := statusOf(t, m).Splits["train"].LastError
		for _, word := range []string{"s3://bucket/train.bin", "bytes ", "does not answer"} {
			if !strings.Contains(last, word) {
				t.Errorf("%s: the error %q does not say %q", kind, last, word)
			}
		}
		if strings.Contains(last+m.out.String(), storeSecret) {
			t.Errorf("%s: the log, or status.json, has the secret", kind)
		}
		if kind == "refuses" {
			b.accepts(t)
		} else {
			b.works()
		}
		await(t, "a batch after the store is back", func() bool { return check(k) == nil })
		noError(t, check(k+6))
	}
	if now := statusOf(t, m).PID; now != worker {
		t.Errorf("worker %d serves, was %d", now, worker)
	}
}

// With on_change = "follow", an object that was replaced is served from the next batch on.
func TestStoreFollows(t *testing.T) {
	long(t)
	b := newBucket(t)
	b.put(t, "train.bin", bytes.Repeat([]byte{1, 0}, 10*storeBlock))
	m := mount(t, "-c", b.config(t, "s3://bucket/train.bin", "on_change = \"follow\"\norder = \"shuffle\"\ntoken_dtype = \"uint16\""), "--set", "memory.ahead=0")
	first := func() string {
		return strings.Fields(run(t, "od", "-A", "n", "-t", "u2", "-N", "2", m.path("train/next")))[0]
	}
	if got := first(); got != "1" {
		t.Fatalf("the first token is %s, want 1", got)
	}
	b.put(t, "train.bin", bytes.Repeat([]byte{2, 0}, 10*storeBlock))
	await(t, "the new object is served", func() bool { return first() == "2" })
}

// kill -9 of workers, and of all, while the directory fills: no wrong byte, and it stays within its bound.
func TestStoreKilled(t *testing.T) {
	long(t)
	b := newBucket(t)
	const tokens = 3_000_000
	data := randomBytes(2 * tokens)
	b.put(t, "train.bin", data)
	cacheDir := t.TempDir()
	const limit = 20 * storeBlock
	config := b.config(t, "s3://bucket/train.bin", "order = \"sequential\"\nlayout = \"tokens\"\nbatch_size = 10")
	args := []string{"-c", config, "--set", "store.cache_dir=" + cacheDir, "--set", "store.cache_bytes=" + strconv.Itoa(limit)}
	rounds := 6
	if inSoak() {
		rounds = 50
	}
	wantOf := func(k int) string { // batch k: rows of 101 tokens that overlap in one
		var all []byte
		for j := range 10 {
			at := 2 * 100 * (10*k + j)
			all = append(all, data[at:at+202]...)
		}
		return fmt.Sprintf("%x", sha256.Sum256(all))
	}
	r := rand.New(rand.NewPCG(1, 1))
	for round := range rounds {
		m := mount(t, args...)
		pid := statusOf(t, m).PID
		killed, moment := make(chan struct{}), time.Duration(r.IntN(300))*time.Millisecond
		go func() {
			defer close(killed)
			time.Sleep(moment)
			syscall.Kill(pid, syscall.SIGKILL)
		}()
		for range 20 {
			k := r.IntN(tokens / 1000)
			got, _, err := try(t, "sha256sum", m.path(fmt.Sprintf("train/batch/%d", k)))
			if err == nil && !strings.HasPrefix(got, wantOf(k)) {
				t.Fatalf("round %d: batch %d has other bytes", round, k)
			}
		}
		<-killed
		if round%2 == 1 { // all of it
			m.cmd.Process.Kill()
			m.awaitEnd(t)
			try(t, plainBatchfs, "unmount", "--force", m.dir)
		}
		m.stop(t)
		used := int64(0)
		files, _ := filepath.Glob(filepath.Join(cacheDir, "*", "[0-9]*"))
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && !strings.Contains(file, "/mounted/") {
				used += info.Size()
			}
		}
		if used > limit {
			t.Errorf("round %d: the directory has %d bytes, may have %d", round, used, limit)
		}
	}
	// What is kept is read, not fetched.
	m := mount(t, args...)
	b.fails(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	files, _ := filepath.Glob(filepath.Join(cacheDir, "*", "[0-9]*"))
	for _, file := range files {
		block, err := strconv.Atoi(filepath.Base(file))
		if err != nil || block == 2*tokens/storeBlock { // a list of what is mounted, or the end
			continue
		}
		k := block*storeBlock/2000 + 1
		if got := run(t, "sha256sum", m.path(fmt.Sprintf("train/batch/%d", k))); !strings.HasPrefix(got, wantOf(k)) {
			t.Errorf("batch %d of block %d has other bytes", k, block)
		}
	}
	if len(files) < 10 {
		t.Errorf("the directory has %d blocks after all", len(files))
	}
}

// turns reads batches from two mounts, in turn, and prints how many times longer the second one takes.
const turns = `
import os, sys, time
from statistics import median
files = [os.open(f"{mount}/train/next", os.O_RDONLY) for mount in sys.argv[1:3]]
size = os.fstat(files[0]).st_size
ratios = []
for turn in range(int(sys.argv[3])):
    took = []
    for file in files:
        begin = time.perf_counter()
        for _ in range(50):
            assert len(os.pread(file, size, 0)) == size
        took.append(time.perf_counter() - begin)
    if turn > 0:
        ratios.append(took[1] / took[0])
print(median(ratios))
`

// A cache that has everything is about as fast as local files.
func TestStoreWarm(t *testing.T) {
	long(t)
	b, dir, cacheDir := newBucket(t), t.TempDir(), t.TempDir()
	data := randomBytes(64 << 20)
	b.put(t, "train.bin", data)
	write(t, filepath.Join(dir, "train.bin"), data)
	args := []string{"--set", "store.cache_dir=" + cacheDir, "--set", "store.block_bytes=4194304", "--set", "batch.block_size=1024", "--set", "memory.ahead=0"}
	remote, local := b.config(t, "s3://bucket/train.bin", ""), b.config(t, filepath.Join(dir, "train.bin"), "")
	run(t, append([]string{plainBatchfs, "cache", "fill", "-c", remote}, args...)...)
	n, most := 10, 1e9
	if inSoak() {
		n, most = 200, 1.2
	}
	for _, access := range []string{"remap", "advise", "pread"} {
		with := append(args, "--set", "memory.access="+access)
		from, to := mount(t, append(with, "-c", local)...), mount(t, append(with, "-c", remote)...)
		run(t, "cat", to.path("train/tokens.bin")) // each block is verified once
		ratio, err := strconv.ParseFloat(strings.TrimSpace(run(t, python, "-c", turns, from.dir, to.dir, fmt.Sprint(n))), 64)
		noError(t, err)
		t.Logf("%s: a warm cache takes %.2f times as long as local files", access, ratio)
		if ratio > most {
			t.Errorf("%s: a warm cache takes %.2f times as long as local files, may take %.2f times", access, ratio, most)
		}
		from.stop(t)
		to.stop(t)
	}
}

// Reading in order for the first time takes about as long as a plain download with the same library, with as many requests at a time.
func TestStoreCold(t *testing.T) {
	long(t)
	b := newBucket(t)
	const size, block, atOnce = 32 << 20, 1 << 20, 16
	b.put(t, "train.bin", randomBytes(size))
	b.fails(func(http.ResponseWriter, *http.Request) bool {
		time.Sleep(10 * time.Millisecond)
		return false
	})
	b.rate.Store(40 << 20)
	plain, err := minio.New(b.server.Listener.Addr().String(), &minio.Options{Secure: true, Transport: b.server.Client().Transport,
		Creds: credentials.NewStaticV4(storeKey, storeSecret, ""), Region: "us-east-1"})
	noError(t, err)
	download := func() time.Duration {
		began := time.Now()
		var all sync.WaitGroup
		var next atomic.Int64
		for range atOnce {
			all.Go(func() {
				for at := next.Add(block) - block; at < size; at = next.Add(block) - block {
					var options minio.GetObjectOptions
					options.SetRange(at, at+block-1)
					body, err := plain.GetObject(context.Background(), "bucket", "train.bin", options)
					if err == nil {
						_, err = io.Copy(io.Discard, body)
						body.Close()
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		return time.Since(began)
	}
	read := func() time.Duration {
		m := mount(t, "-c", b.config(t, "s3://bucket/train.bin", "order = \"sequential\""), "--set", "store.block_bytes=1048576", "--set", "store.cache_dir="+t.TempDir(),
			"--set", "memory.ahead_bytes=33554432", "--set", "batch.block_size=1024") // half of it for blocks
		defer m.stop(t)
		began := time.Now()
		run(t, "dd", "if="+m.path("train/batches.bin"), "of=/dev/null", "bs=1M")
		return time.Since(began)
	}
	rounds := 1
	if inSoak() {
		rounds = 9
	}
	var ratios []float64
	for range rounds {
		ratios = append(ratios, download().Seconds()/read().Seconds())
	}
	slices.Sort(ratios)
	t.Logf("reading in order has %.2f of the speed of a download (%.2f)", ratios[rounds/2], ratios)
	if inSoak() && ratios[rounds/2] < 0.8 {
		t.Error("want 0.8")
	}
}

// steps reads batches in order with a pause between, and prints the milliseconds that the first one took.
const steps = `
import sys, time
for k in range(200):
    begin = time.monotonic()
    with open(f"{sys.argv[1]}/batch/{k}", "rb") as f:
        f.read()
    if k == 0:
        print(int(1000 * (time.monotonic() - begin)))
    time.sleep(0.02)
`

// A store that is 10 ms away keeps a trainer with steps of 20 ms waiting for less than a twentieth of the time.
func TestStoreLatency(t *testing.T) {
	long(t)
	b := newBucket(t)
	const size = 20_000_000
	b.put(t, "train.bin", randomBytes(size))
	b.fails(func(http.ResponseWriter, *http.Request) bool {
		time.Sleep(10 * time.Millisecond)
		return false
	})
	m := mount(t, "-c", b.config(t, "s3://bucket/train.bin", "order = \"sequential\"\nblock_size = 2000"))
	fetched := b.large.Load() // to try whether a batch can be read
	first, err := strconv.Atoi(strings.TrimSpace(run(t, python, "-c", steps, m.path("train"))))
	noError(t, err)
	var status struct {
		Store struct {
			Waited int `json:"waited_ms"`
		}
	}
	noError(t, json.Unmarshal([]byte(run(t, "cat", m.path("status.json"))), &status))
	inTime(t, "the first batch", time.Duration(first)*time.Millisecond, time.Second)
	inTime(t, "waiting for blocks", time.Duration(status.Store.Waited)*time.Millisecond, 200*20*time.Millisecond/20)
	if n := b.large.Load() - fetched; n < 200*12*2000*2 || n > size {
		t.Errorf("%d bytes were fetched, want all that was read, and each once", n)
	}
}
