package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Install builds the package pkg in the module in a directory below test, and returns the path of
// the program. It caches the program under a name with the version of module in go.mod.
func Install(t testing.TB, dir, module, pkg string) string {
	t.Helper()
	version := regexp.MustCompile(`(?m)^\t` + module + ` (\S+)`).FindSubmatch(Content(t, filepath.Join(dir, "go.mod")))[1]
	program := filepath.Join(Must(os.UserCacheDir())(t), "batchfs", dir+"-"+string(version))
	NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
	defer lockFile(program + ".lock")() // other tests may need it now too
	if _, err := os.Stat(program); err == nil {
		return program
	}
	building := program + ".new"
	cmd := Job(t, "go", "build", "-o", building, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		SkipOrFail(t, "no %s: %v\n%s", dir, err, out)
	}
	NoError(t, os.Rename(building, program))
	return program
}

// A Bucket is a bucket on a real S3 server, behind a proxy with TLS that can inject faults. It is
// safe for concurrent use.
type Bucket struct {
	URL        string
	Client     *minio.Client
	fault      atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	BlockBytes atomic.Int64 // bytes of blocks sent
}

// StoreBlock is the block size of the cache, in bytes.
const StoreBlock = 128 << 10

const (
	StoreKey    = "storekey"
	StoreSecret = "storesecret"
)

// NewBucket starts an S3 server and its proxy. Both end with the test.
func NewBucket(t testing.TB) *Bucket {
	t.Helper()
	program := Install(t, "versitygw", "github.com/versity/versitygw", "github.com/versity/versitygw/cmd/versitygw")
	address, data := freeAddress(t), t.TempDir()
	cmd := exec.Command(program, "--access", StoreKey, "--secret", StoreSecret, "--port", address, "--quiet", "posix", data)
	cmd.Stderr = os.Stderr
	ended := Begin(t, cmd)
	AwaitSuccess(t, "the S3 server", func() error {
		if isClosed(ended) {
			t.Fatalf("the S3 server ended: %v", cmd.ProcessState)
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	b := new(Bucket)
	b.Client = Must(minio.New(address, &minio.Options{Creds: credentials.NewStaticV4(StoreKey, StoreSecret, ""), Region: "us-east-1"}))(t)
	NoError(t, b.Client.MakeBucket(context.Background(), "bucket", minio.MakeBucketOptions{}))
	target, _ := url.Parse("http://" + address)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && r.ContentLength > 64<<10 {
				b.BlockBytes.Add(r.ContentLength)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := b.fault.Load(); fault == nil || !(*fault)(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	b.URL = server.URL
	trust(t, server.Certificate().Raw)
	return b
}

// freeAddress returns an address on which nothing listens. Its port is below those that the kernel
// assigns to connections, so no connection takes it first. Until the test ends, it listens on the
// same port of another address, so that no other test gets the port, in this process or another
// one.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := 10_000 + rand.IntN(20_000)
		reserved, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port))
		if err != nil {
			continue
		}
		t.Cleanup(func() { reserved.Close() })
		if free, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			free.Close()
			return free.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

var trustOnce sync.Once

// trust passes the credentials of the store to all programs that are started later, and makes them
// trust the certificate that all httptest servers share.
func trust(t testing.TB, certificate []byte) {
	t.Helper()
	trustOnce.Do(func() {
		authorities := filepath.Join(filepath.Dir(Batchfs), "authorities.pem")
		known, _ := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
		Write(t, authorities, append(known, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})...))
		os.Setenv("SSL_CERT_FILE", authorities)
		os.Setenv("AWS_ACCESS_KEY_ID", StoreKey)
		os.Setenv("AWS_SECRET_ACCESS_KEY", StoreSecret)
	})
}

// Put stores an object in the bucket.
func (b *Bucket) Put(t testing.TB, key string, data []byte) {
	t.Helper()
	Must(b.Client.PutObject(context.Background(), "bucket", key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{}))(t)
}

// FailWith makes the proxy call fault for each request, from several goroutines. fault returns true
// if it has replied to the request, or false to let it pass.
func (b *Bucket) FailWith(fault func(w http.ResponseWriter, r *http.Request) bool) {
	b.fault.Store(&fault)
}

// Cut is a fault that closes the connection without a reply.
func Cut(w http.ResponseWriter, _ *http.Request) bool {
	panic(http.ErrAbortHandler)
}

// Recover makes the proxy pass all requests again.
func (b *Bucket) Recover() { b.fault.Store(nil) }

// Config writes a configuration with the split train, and returns its path. more holds further
// lines of [splits.train].
func (b *Bucket) Config(t testing.TB, tokens, more string) string {
	t.Helper()
	return Write(t, filepath.Join(t.TempDir(), "config.toml"), fmt.Sprintf(`
[batch]
block_size = 100
[splits.train]
tokens = %q
%s
[store]
endpoint = %q
path_style = true
block_bytes = %d
`, tokens, more, b.URL, StoreBlock))
}

// RandomBytes returns n bytes that depend on n only.
func RandomBytes(n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	raw := make([]byte, n)
	for i := range raw {
		raw[i] = byte(r.Uint32())
	}
	return raw
}

// MountInOrder mounts an object of 60 blocks, in sequential order and without prefetching. Each
// batch is a row of 100,001 tokens. check compares batch k with the object.
func (b *Bucket) MountInOrder(t testing.TB, cacheDir string) (m *Mounted, data []byte, check func(k int) error) {
	t.Helper()
	data = RandomBytes(60 * StoreBlock)
	b.Put(t, "train.bin", data)
	m = Mount(t, "-c", b.Config(t, "s3://bucket/train.bin", "order = \"sequential\"\nlayout = \"tokens\"\nblock_size = 100000\nbatch_size = 1"), "--set",
		"store.cache_dir="+cacheDir, "--set", "memory.ahead=0", "--set", "memory.ahead_bytes=0")
	check = func(k int) error {
		out, stderr, err := Try(t, "sha256sum", m.Path(fmt.Sprintf("train/batch/%d", k)))
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256(data[k*200_000:k*200_000+200_002])); !strings.HasPrefix(out, want) {
			t.Errorf("batch %d has the checksum %s, want %s", k, out, want)
		}
		return nil
	}
	return m, data, check
}
