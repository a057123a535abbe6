package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"batchfs/internal/wait"
)

const (
	content = "the bytes of an object, which come in one piece, or do not"
	secret  = "wJalrXUtnFEMIK7MDENG"
	etag    = "0123456789abcdef"
)

// serve answers as a store does that has one object, s3://bucket/a/key, unless fault answers the n-th request, from 1 on.
func serve(t *testing.T, timeout time.Duration, fault func(n int, w http.ResponseWriter, r *http.Request) bool) (*Client, Object) {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	return serveWith(t, timeout, fault)
}

func serveWith(t *testing.T, timeout time.Duration, fault func(n int, w http.ResponseWriter, r *http.Request) bool) (*Client, Object) {
	t.Helper()
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault(int(requests.Add(1)), w, r) {
			return
		}
		if r.URL.Path != "/bucket/a/key" {
			answer(w, 404, "NoSuchKey")
			return
		}
		w.Header().Set("ETag", `"`+etag+`"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), strings.NewReader(content))
	}))
	t.Cleanup(server.Close)
	c, err := New("s3", Options{Endpoint: server.URL, PathStyle: true, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return c, Object{"s3", "bucket", "a/key", etag, int64(len(content))}
}

// answer is an error of a store.
func answer(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>because</Message><AWSAccessKeyId>key</AWSAccessKeyId></Error>", code)
}

func read(c *Client, o Object) error {
	dst := make([]byte, 20)
	err := c.ReadRange(context.Background(), o, 10, dst)
	if err == nil && string(dst) != content[10:30] {
		return fmt.Errorf("read %q", dst)
	}
	return err
}

// cut ends the connection.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		conn.Close()
	}
}

// What passes is tried again until the bytes are right.
func TestRetries(t *testing.T) {
	part := func(n int) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, r *http.Request) {
			var from int
			fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
			w.Header().Set("ETag", etag)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, len(content)))
			w.Header().Set("Content-Length", fmt.Sprint(n))
			w.WriteHeader(206)
			fmt.Fprint(w, content[from:from+n])
		}
	}
	for name, fault := range map[string]func(n int, w http.ResponseWriter, r *http.Request){
		"503":   func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w, 503, "SlowDown") },
		"429":   func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w, 429, "TooManyRequests") },
		"500":   func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w, 500, "InternalError") },
		"reset": func(_ int, w http.ResponseWriter, _ *http.Request) { cut(w) },
		"short": part(5),
		"truncated": func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Header().Set("ETag", etag)
		},
		"html": func(_ int, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>please log in</html>") },
		"all of it": func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", etag)
			fmt.Fprint(w, content)
		},
		"broken": func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", etag)
			w.Header().Set("Content-Range", "bytes 10-29/58")
			w.Header().Set("Content-Length", "20")
			w.WriteHeader(206)
			fmt.Fprint(w, content[10:15])
			w.(http.Flusher).Flush()
			cut(w)
		},
		"wrong range": func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", etag)
			w.Header().Set("Content-Range", "bytes 0-19/58")
			w.WriteHeader(206)
			fmt.Fprint(w, content[:20])
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, o := serve(t, time.Minute, func(n int, w http.ResponseWriter, r *http.Request) bool {
				if name == "broken" && n > 1 || n > 3 {
					return false
				}
				fault(n, w, r)
				return true
			})
			if err := read(c, o); err != nil {
				t.Error(err)
			}
		})
	}
}

// The store says how long to wait.
func TestRetryAfter(t *testing.T) {
	var first, second time.Time
	c, o := serve(t, time.Minute, func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n == 1 {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			answer(w, 503, "SlowDown")
			return true
		}
		second = time.Now()
		return false
	})
	if err := read(c, o); err != nil {
		t.Fatal(err)
	}
	if second.Sub(first) < time.Second {
		t.Errorf("tried again after %v, although the store asked for a second", second.Sub(first))
	}
}

// What stays is an error at once, and what passes is one when the time is over. It names the object and the range, and no secret.
func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name     string
		requests int // 0: as many as the time allows
		is       error
		says     string
		fault    func(w http.ResponseWriter)
	}{
		{"denied", 1, nil, "403 AccessDenied", func(w http.ResponseWriter) { answer(w, 403, "AccessDenied") }},
		{"expired", 2, nil, "400 ExpiredToken", func(w http.ResponseWriter) { answer(w, 400, "ExpiredToken") }},
		{"no object", 1, fs.ErrNotExist, "404 NoSuchKey", func(w http.ResponseWriter) { answer(w, 404, "NoSuchKey") }},
		{"replaced", 1, ErrChanged, "replaced", func(w http.ResponseWriter) { answer(w, 412, "PreconditionFailed") }},
		{"shorter", 1, ErrChanged, "416", func(w http.ResponseWriter) { answer(w, 416, "InvalidRange") }},
		{"another ETag", 1, ErrChanged, "replaced", func(w http.ResponseWriter) {
			w.Header().Set("ETag", "another")
			w.Header().Set("Last-Modified", time.Unix(1e9, 0).UTC().Format(http.TimeFormat))
			w.Header().Set("Content-Range", "bytes 10-29/58")
			w.WriteHeader(206)
			fmt.Fprint(w, content[10:30])
		}},
		{"throttled", 0, nil, "503 SlowDown", func(w http.ResponseWriter) { answer(w, 503, "SlowDown") }},
		{"silent", 0, nil, "nothing came", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			sent := 0
			timeout := time.Minute
			if test.requests == 0 {
				timeout = time.Second
			}
			c, o := serve(t, timeout, func(n int, w http.ResponseWriter, r *http.Request) bool {
				sent = n
				if test.fault == nil {
					<-r.Context().Done()
					return true
				}
				test.fault(w)
				return true
			})
			err := read(c, o)
			if err == nil || test.is != nil && !errors.Is(err, test.is) {
				t.Fatalf("error %v, want %v", err, test.is)
			}
			for _, word := range []string{"s3://bucket/a/key", "bytes 10 to 29", test.says} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("error %q does not say %q", err, word)
				}
			}
			for _, word := range []string{secret, "Signature", "Credential"} {
				if strings.Contains(err.Error(), word) {
					t.Errorf("error %q says %q", err, word)
				}
			}
			if test.requests > 0 && sent != test.requests {
				t.Errorf("%d requests were sent, want %d", sent, test.requests)
			}
		})
	}
}

// Once a store has not answered a read, others fail at once, until it answers again.
func TestOutage(t *testing.T) {
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request){
		"refuses": func(w http.ResponseWriter, _ *http.Request) { cut(w) },
		"silent":  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"busy": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			answer(w, 503, "SlowDown")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var away atomic.Bool
			c, o := serve(t, time.Second, func(n int, w http.ResponseWriter, r *http.Request) bool {
				if !away.Load() {
					return false
				}
				fault(w, r)
				return true
			})
			away.Store(true)
			if read(c, o) == nil {
				t.Fatal("no error of a store that is away")
			}
			for range 100 {
				var failed *Error
				if err := read(c, o); !errors.As(err, &failed) || failed.Attempts != 0 || !strings.Contains(err.Error(), "does not answer") {
					t.Fatalf("error %v, want one at once", err)
				}
			}
			away.Store(false)
			wait.Until(t, "a read from a store that answers again", func() bool { return read(c, o) == nil })
		})
	}
}

// A store that answers other reads is not away.
func TestOneObjectFails(t *testing.T) {
	came, others := make(chan struct{}), make(chan struct{})
	c, o := serve(t, time.Minute, func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/bucket/bad" {
			return false
		}
		close(came)
		<-others
		w.Header().Set("Retry-After", "3600") // which is too long for any read
		answer(w, 500, "InternalError")
		return true
	})
	bad, failed := o, make(chan error, 1)
	bad.Key = "bad"
	go func() { failed <- read(c, bad) }()
	wait.For(t, "a request for the bad object", came)
	err := read(c, o)
	close(others)
	if err != nil {
		t.Fatal(err)
	}
	if wait.For(t, "the read of the bad object", failed) == nil {
		t.Error("no error of an object that cannot be read")
	}
	if err := read(c, o); err != nil {
		t.Error(err)
	}
}

// A name that is not known for a while is an error that says so, and is found later.
func TestNames(t *testing.T) {
	namesAreKnown.Store(false) // of an earlier run
	c, o := serve(t, time.Second, func(int, http.ResponseWriter, *http.Request) bool { return false })
	_, port, _ := strings.Cut(strings.TrimPrefix(c.Endpoint(), "http://"), ":")
	c, err := New("s3", Options{Endpoint: "http://store.example:" + port, PathStyle: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := read(c, o); err == nil || !strings.Contains(err.Error(), "lookup store.example") {
		t.Errorf("error %v, want one that says which name is not known", err)
	}
	namesAreKnown.Store(true)
	wait.Until(t, "a read once the name is known", func() bool { return read(c, o) == nil })
}

// namesAreKnown says whether there is a name server.
var namesAreKnown atomic.Bool

func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		if !namesAreKnown.Load() {
			return nil, errors.New("no name server")
		}
		ours, theirs := net.Pipe()
		go nameServer(ours)
		return theirs, nil
	}}
}

// nameServer answers queries over TCP: every name has the address 127.0.0.1.
func nameServer(conn net.Conn) {
	defer conn.Close()
	query := make([]byte, 2)
	if _, err := io.ReadFull(conn, query); err != nil {
		return
	}
	query = make([]byte, binary.BigEndian.Uint16(query))
	if _, err := io.ReadFull(conn, query); err != nil {
		return
	}
	end := 12 + bytes.IndexByte(query[12:], 0) + 5 // of the question
	reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
	if query[end-3] == 1 { // for an address of IPv4
		reply[7] = 1
		reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1)
	}
	conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
}

// Credentials that expired are read again.
func TestNewCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(key string) {
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = "+key+"\naws_secret_access_key = "+secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	c, o := serveWith(t, time.Minute, func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n > 1 && !strings.Contains(r.Header.Get("Authorization"), "Credential=new/") {
			answer(w, 403, "ExpiredToken")
			return true
		}
		return false
	})
	if err := read(c, o); err != nil {
		t.Fatal(err)
	}
	write("new")
	if err := read(c, o); err != nil {
		t.Fatal(err)
	}
}

// Without credentials nothing is sent, and the error says how to give some.
func TestNoCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	metadata := httptest.NewServer(http.NotFoundHandler())
	defer metadata.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", metadata.URL)
	c, o := serveWith(t, time.Minute, func(int, http.ResponseWriter, *http.Request) bool {
		t.Error("a request was sent")
		return false
	})
	if err := read(c, o); err == nil || !strings.Contains(err.Error(), "store.anonymous") {
		t.Errorf("error %v, want one that says store.anonymous", err)
	}
}

func TestEndpoints(t *testing.T) {
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"} {
		t.Setenv(name, "")
	}
	for _, test := range []struct{ scheme, endpoint, want string }{
		{"s3", "", "https://s3.amazonaws.com"},
		{"gs", "", "https://storage.googleapis.com"},
		{"s3", "minio:9000", "https://minio:9000"},
		{"s3", "http://minio:9000/", "http://minio:9000"},
		{"s3", "ftp://minio", ""},
		{"s3", "https://minio/path", ""},
		{"s3", "https://user:" + secret + "@minio", ""},
	} {
		c, err := New(test.scheme, Options{Endpoint: test.endpoint})
		switch {
		case err != nil && (test.want != "" || strings.Contains(err.Error(), secret)):
			t.Errorf("%q: %v", test.endpoint, err)
		case err == nil && c.Endpoint() != test.want:
			t.Errorf("%q is %s, want %q", test.endpoint, c.Endpoint(), test.want)
		}
	}
}
