package store

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"batchfs/internal/require"
)

var must = require.NoError

const (
	content = "the bytes of an object, which come in one piece, or do not"
	secret  = "wJalrXUtnFEMIK7MDENG"
	etag    = "0123456789abcdef"
)

// A fault responds to the n-th request, counted from 1, or returns false.
type fault func(n int, w http.ResponseWriter, r *http.Request) bool

// storeHandler acts as a store in which all objects have the same content. fault may respond first.
func storeHandler(fault fault) http.Handler {
	var requests atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault(int(requests.Add(1)), w, r) {
			return
		}
		if strings.HasSuffix(r.URL.Path, "/") {
			answerError(w, 404, "NoSuchKey")
			return
		}
		w.Header().Set("ETag", `"`+etag+`"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), strings.NewReader(content))
	})
}

var object = Object{"s3", "bucket", "a/key", etag, int64(len(content))}

func setAWSKey(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
}

// serve runs a store that speaks TLS and both versions of HTTP.
func serve(t *testing.T, fault fault) *Client {
	t.Helper()
	server := httptest.NewUnstartedServer(storeHandler(fault))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	trust(t, server)
	c, err := New("s3", Options{Endpoint: server.URL, PathStyle: true, Timeout: time.Minute})
	must(t, err)
	return c
}

// trust makes this process trust the certificate that all servers of httptest share.
func trust(t *testing.T, server *httptest.Server) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "authorities.pem")
	must(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	t.Setenv("SSL_CERT_FILE", file)
}

// simulate calls do with the client of a store without TLS, in simulated time (see synctest).
func simulate(t *testing.T, timeout time.Duration, fault fault, do func(t *testing.T, c *Client)) {
	t.Helper()
	setAWSKey(t)
	synctest.Test(t, func(t *testing.T) {
		c, err := New("s3", Options{Endpoint: "http://store", PathStyle: true, Timeout: timeout})
		must(t, err)
		connections := make(pipes)
		c.http.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			connections <- theirs
			return ours, nil
		}
		server := &http.Server{Handler: storeHandler(fault)}
		go server.Serve(connections)
		defer server.Close()
		defer c.http.CloseIdleConnections()
		defer time.Sleep(time.Hour) // lets the last probe end
		do(t, c)
	})
}

// A pipes is a listener that accepts the connections sent to it.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error { close(p); return nil }

func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

func answerError(w http.ResponseWriter, status int, code string) {
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

func cutConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		conn.Close()
	}
}

// answerRange responds to a request for a range with text. contentRange may be empty. The caller
// may have set a wrong Content-Length.
func answerRange(w http.ResponseWriter, tag, contentRange, text string) {
	w.Header().Set("ETag", tag)
	w.Header().Set("Last-Modified", time.Unix(1e9, 0).UTC().Format(http.TimeFormat))
	if w.Header().Get("Content-Length") == "" {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	}
	if contentRange != "" {
		w.Header().Set("Content-Range", contentRange)
		w.WriteHeader(206)
	}
	fmt.Fprint(w, text)
}

// Temporary errors are retried until the bytes are right.
func TestRetries(t *testing.T) {
	for name, fault := range map[string]func(w http.ResponseWriter){
		"503":   func(w http.ResponseWriter) { answerError(w, 503, "SlowDown") },
		"429":   func(w http.ResponseWriter) { answerError(w, 429, "TooManyRequests") },
		"500":   func(w http.ResponseWriter) { answerError(w, 500, "InternalError") },
		"reset": cutConnection,
		"broken off": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "20")
			answerRange(w, etag, "bytes 10-29/58", content[10:15])
		},
		"short":       func(w http.ResponseWriter) { answerRange(w, etag, "bytes 10-14/58", content[10:15]) },
		"html":        func(w http.ResponseWriter) { fmt.Fprint(w, "<html>please log in</html>") },
		"all of it":   func(w http.ResponseWriter) { answerRange(w, etag, "", content) },
		"wrong range": func(w http.ResponseWriter) { answerRange(w, etag, "bytes 0-19/58", content[:20]) },
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, time.Minute, func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n > 3 {
					return false
				}
				fault(w)
				return true
			}, func(t *testing.T, c *Client) {
				if err := read(c, object); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The store says how long to wait, up to a quarter of the timeout.
func TestRetryAfter(t *testing.T) {
	for asked, want := range map[string]time.Duration{"1": time.Second, "3600": 15 * time.Second} {
		t.Run(asked, func(t *testing.T) {
			simulate(t, time.Minute, func(n int, w http.ResponseWriter, _ *http.Request) bool {
				if n > 1 {
					return false
				}
				w.Header().Set("Retry-After", asked)
				answerError(w, 503, "SlowDown")
				return true
			}, func(t *testing.T, c *Client) {
				began := time.Now()
				must(t, read(c, object))
				// minio-go adds up to 200 ms
				if waited := time.Since(began).Truncate(time.Second); waited != want {
					t.Errorf("tried again after %v, want %v", waited, want)
				}
			})
		})
	}
}

// A permanent error is returned immediately, and a temporary one when the time is over. Errors name
// the object and the range, and contain no secret.
func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name     string
		requests int // 0: as many as the time allows
		is       error
		says     string
		fault    func(w http.ResponseWriter)
	}{
		{"archived", 1, nil, "403 InvalidObjectState: because; it is in an archive: restore it", func(w http.ResponseWriter) { answerError(w, 403, "InvalidObjectState") }},
		{"denied", 1, nil, "403 AccessDenied", func(w http.ResponseWriter) { answerError(w, 403, "AccessDenied") }},
		{"expired", 2, nil, "400 ExpiredToken", func(w http.ResponseWriter) { answerError(w, 400, "ExpiredToken") }},
		{"no object", 1, fs.ErrNotExist, "404 NoSuchKey", func(w http.ResponseWriter) { answerError(w, 404, "NoSuchKey") }},
		{"replaced", 1, ErrChanged, "replaced", func(w http.ResponseWriter) { answerError(w, 412, "PreconditionFailed") }},
		{"shorter", 1, ErrChanged, "416", func(w http.ResponseWriter) { answerError(w, 416, "InvalidRange") }},
		{"another ETag", 1, ErrChanged, "replaced", func(w http.ResponseWriter) { answerRange(w, "another", "bytes 10-29/58", content[10:30]) }},
		{"throttled", 0, nil, "503 SlowDown", func(w http.ResponseWriter) { answerError(w, 503, "SlowDown") }},
		{"silent", 0, nil, "nothing came for 15s", nil},
		{"another size", 1, ErrChanged, "has 1000 bytes, and said 58 before", func(w http.ResponseWriter) { answerRange(w, etag, "bytes 10-29/1000", content[10:30]) }},
		{"another range", 0, nil, `"bytes 0-19/58" and Content-Length 20, want "bytes 10-29/58" and 20`, func(w http.ResponseWriter) { answerRange(w, etag, "bytes 0-19/58", content[:20]) }},
		{"too long", 0, nil, `Content-Length 21, want "bytes 10-29/58" and 20`, func(w http.ResponseWriter) { answerRange(w, etag, "bytes 10-29/58", content[10:31]) }},
		{"all of it", 0, nil, `Content-Range "" and Content-Length 58`, func(w http.ResponseWriter) { answerRange(w, etag, "", content) }},
		{"encoded", 1, nil, `Content-Encoding is "gzip"`, func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			answerRange(w, etag, "bytes 10-29/58", content[10:30])
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var sent, well atomic.Int64
			simulate(t, time.Minute, func(n int, w http.ResponseWriter, r *http.Request) bool {
				switch {
				case well.Load() > 0:
					return false
				case test.fault == nil:
					<-r.Context().Done()
				default:
					test.fault(w)
				}
				sent.Add(1)
				return true
			}, func(t *testing.T, c *Client) {
				err := read(c, object)
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
				if n := int(sent.Load()); test.requests > 0 && n != test.requests {
					t.Errorf("%d requests were sent, want %d", n, test.requests)
				}
				well.Store(1)
				time.Sleep(2 * maxWait) // long enough for a probe
				if err := read(c, object); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Stat says why an object cannot be read.
func TestStat(t *testing.T) {
	setAWSKey(t)
	for _, test := range []struct{ header, value, says string }{
		{"Content-Encoding", "gzip", `Content-Encoding is "gzip"`},
		{"Content-Encoding", "aws-chunked", ""},
		{"Content-Length", "", "no Content-Length"},
		{"ETag", "", "no ETag"},
	} {
		c := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) bool {
			header := map[string]string{"ETag": etag, "Content-Length": "58", "Last-Modified": time.Unix(1e9, 0).UTC().Format(http.TimeFormat)}
			header[test.header] = test.value
			for name, value := range header {
				if value != "" {
					w.Header().Set(name, value)
				}
			}
			w.(http.Flusher).Flush() // prevents a Content-Length
			return true
		})
		found, _, err := c.Stat(context.Background(), Object{Scheme: "s3", Bucket: "bucket", Key: "a/key"})
		if test.says == "" && (err != nil || found != object) || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s %q: %v (%v), want %q", test.header, test.value, found, err, test.says)
		}
	}
}

// Objects are read over HTTP or TLS, from any server whose certificate the user trusts.
func TestProtocols(t *testing.T) {
	setAWSKey(t)
	for _, test := range []struct {
		name, host string
		start      func(*httptest.Server)
		says       string
	}{
		{"HTTP", "127.0.0.1", (*httptest.Server).Start, ""},
		{"TLS, HTTP/1.1", "127.0.0.1", (*httptest.Server).StartTLS, ""},
		{"TLS, HTTP/1.1 and HTTP/2", "127.0.0.1", func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() }, ""},
		{"a host without a certificate", "localhost", (*httptest.Server).StartTLS, "SSL_CERT_FILE"},
	} {
		server := httptest.NewUnstartedServer(storeHandler(func(int, http.ResponseWriter, *http.Request) bool { return false }))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		test.start(server)
		defer server.Close()
		if server.TLS != nil {
			trust(t, server)
		}
		c, err := New("s3", Options{Endpoint: strings.Replace(server.URL, "127.0.0.1", test.host, 1), PathStyle: true, Timeout: time.Minute})
		must(t, err)
		if err := read(c, object); test.says == "" && err != nil || !strings.Contains(fmt.Sprint(err), test.says) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.says)
		}
	}
}

// A list has all keys, however long it takes while pages arrive, whatever fails in between, and
// whatever the order of the store is.
func TestList(t *testing.T) {
	const pages = 100
	sorted := func(perPage int) (keys []string) {
		for i := range pages * perPage {
			keys = append(keys, fmt.Sprintf("key%06d", i))
		}
		return keys
	}
	backwards := sorted(10)
	slices.Reverse(backwards)
	for _, test := range []struct {
		name string
		keys []string
		// fault responds to a request for a page, or returns false.
		fault func(page, try int, w http.ResponseWriter) bool
		says  string
	}{
		{"slow", sorted(100), func(int, int, http.ResponseWriter) bool {
			time.Sleep(3 * time.Second)
			return false
		}, ""},
		{"each page fails once", sorted(10), func(_, try int, w http.ResponseWriter) bool {
			if try == 1 {
				answerError(w, 503, "SlowDown")
			}
			return try == 1
		}, ""},
		{"backwards, a page fails once", backwards, func(page, try int, w http.ResponseWriter) bool {
			if page == pages/2 && try == 1 {
				answerError(w, 503, "SlowDown")
			}
			return page == pages/2 && try == 1
		}, ""},
		{"a page is missing", sorted(10), func(page, _ int, _ http.ResponseWriter) bool {
			if page == pages/2 {
				time.Sleep(time.Minute)
			}
			return false
		}, "nothing came for 7.5s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var tries [pages + 1]atomic.Int64
			simulate(t, 30*time.Second, func(_ int, w http.ResponseWriter, r *http.Request) bool {
				query, rest, perPage := r.URL.Query(), test.keys, len(test.keys)/pages
				if r.URL.Path != "/bucket/" {
					return false
				}
				if token, err := strconv.Atoi(query.Get("continuation-token")); err == nil {
					rest = rest[token:]
				} else {
					rest = slices.DeleteFunc(slices.Clone(rest), func(key string) bool { return key <= query.Get("start-after") })
				}
				at := len(test.keys) - len(rest)
				if test.fault(at/perPage, int(tries[at/perPage].Add(1)), w) {
					return true
				}
				fmt.Fprintf(w, "<ListBucketResult><IsTruncated>%v</IsTruncated><NextContinuationToken>%d</NextContinuationToken>", len(rest) > perPage, at+perPage)
				for _, key := range rest[:min(perPage, len(rest))] {
					fmt.Fprintf(w, "<Contents><Key>%s</Key></Contents>", key)
				}
				fmt.Fprint(w, "</ListBucketResult>")
				return true
			}, func(t *testing.T, c *Client) {
				list, err := c.List(context.Background(), "s3", "bucket", "key")
				var keys []string
				for _, o := range list {
					keys = append(keys, o.Key)
				}
				switch {
				case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
					t.Errorf("error %v, want %q", err, test.says)
				case test.says == "" && (err != nil || !slices.Equal(keys, test.keys)):
					t.Errorf("%d keys (%v), want %d", len(keys), err, len(test.keys))
				}
			})
		})
	}
}

// setCredentials makes file the only source of credentials.
func setCredentials(t *testing.T, file string) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
}

// Expired credentials are read again.
func TestNewCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(key string) {
		must(t, os.WriteFile(file, []byte("[default]\naws_access_key_id = "+key+"\naws_secret_access_key = "+secret+"\n"), 0o600))
	}
	write("old")
	setCredentials(t, file)
	c := serve(t, func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n > 1 && !strings.Contains(r.Header.Get("Authorization"), "Credential=new/") {
			answerError(w, 403, "ExpiredToken")
			return true
		}
		return false
	})
	must(t, read(c, object))
	write("new")
	must(t, read(c, object))
}

// Without credentials, no request is sent, and the error says how to supply them, and what is wrong
// with ~/.aws.
func TestNoCredentials(t *testing.T) {
	for _, test := range []struct{ file, key, profile, says string }{
		{"", "", "", "store.anonymous = true; ~/.aws: open "},
		{"", "key", "", "; the environment: only one of the two is set; ~/.aws: open "},
		{"[default]\naws_access_key_id = key\naws_secret_access_key = " + secret, "", "other", `; ~/.aws: section "other" does not exist`},
		{"[default]\naws_access_key_id = key\n", "", "", "aws_access_key_id and aws_secret_access_key must both be set"},
		{"[default]\nsso_account_id = 1\nsso_role_name = a\nsso_start_url = b\n", "", "", "aws sso login"},
		{"[default]\n", "", "", "; the machine's role: 404 Not Found"},
		{"[default]\nkey\n" + secret + "\n", "", "", "; ~/.aws: a line is not of the form key = value"},
	} {
		file := filepath.Join(t.TempDir(), "credentials")
		if test.file != "" {
			must(t, os.WriteFile(file, []byte(test.file), 0o600))
		}
		setCredentials(t, file)
		t.Setenv("AWS_ACCESS_KEY_ID", test.key)
		t.Setenv("AWS_PROFILE", test.profile)
		t.Setenv("HOME", t.TempDir())
		metadata := httptest.NewServer(http.NotFoundHandler())
		defer metadata.Close()
		t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", metadata.URL)
		c := serve(t, func(int, http.ResponseWriter, *http.Request) bool {
			t.Error("a request was sent")
			return false
		})
		err := read(c, object)
		if err == nil || !strings.Contains(err.Error(), "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), secret) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: error %v, want %s", test.file, err, test.says)
		}
	}
}

// Credentials of a machine that expire are fetched again, also if that fails for a moment.
func TestCredentialsOfAMachine(t *testing.T) {
	setCredentials(t, filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	var fetched atomic.Int64
	machine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := fetched.Add(1); n == 2 || n == 3 {
			w.WriteHeader(503)
			return
		}
		fmt.Fprintf(w, `{"AccessKeyId": "key", "SecretAccessKey": %q, "Token": "token", "Expiration": %q}`, secret, time.Now().UTC().Format(time.RFC3339))
	}))
	defer machine.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", machine.URL)
	c := serve(t, func(int, http.ResponseWriter, *http.Request) bool { return false })
	for range 3 {
		must(t, read(c, object))
	}
	if n := fetched.Load(); n < 4 {
		t.Errorf("credentials were fetched %d times", n)
	}
}

// What is read from a file, such as a secret of Kubernetes, may end in a newline.
func TestNewlineInEnvironment(t *testing.T) {
	c := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.Header.Get("Authorization"), "Credential=key/") || !strings.Contains(r.Header.Get("Authorization"), "/region/s3/") {
			answerError(w, 403, "AccessDenied")
			return true
		}
		return false
	})
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": "token", "AWS_REGION": "region", "AWS_ENDPOINT_URL": c.Endpoint,
	} {
		t.Setenv(name, value+"\r\n")
	}
	c, err := New("s3", Options{PathStyle: true, Timeout: time.Minute})
	must(t, err)
	must(t, read(c, object))
}

// Requests that fail because of the configuration are not repeated, and the error names its keys.
func TestWrongConfiguration(t *testing.T) {
	setAWSKey(t)
	for _, test := range []struct {
		status int
		tls    bool
		says   string
	}{
		{400, false, ": 400 Bad Request; are store.endpoint, store.region and the name of the bucket right?"},
		{405, false, ": 405 Method Not Allowed; are store.endpoint, store.region and the name of the bucket right?"},
		{401, false, ": 401 Unauthorized; the credentials come from "},
		{404, false, "are the names of the bucket and the object right, and store.endpoint?"},
		{400, true, "its endpoint must begin with http://"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(test.status) }))
		defer server.Close()
		endpoint := server.URL
		if test.tls {
			endpoint = strings.Replace(endpoint, "http:", "https:", 1)
		}
		c, err := New("s3", Options{Endpoint: endpoint, PathStyle: true, Timeout: time.Hour})
		must(t, err)
		if _, _, err := c.Stat(t.Context(), object); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("error %v, want %s", err, test.says)
		}
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
		{"s3", "https://user:" + secret + "@mi nio", ""},
		{"s3", "https://user:" + secret + "/@minio:90x", ""},
		{"s3", "user:%zz" + secret + "@minio", ""},
	} {
		c, err := New(test.scheme, Options{Endpoint: test.endpoint})
		switch {
		case err != nil && (test.want != "" || strings.Contains(err.Error(), secret)):
			t.Errorf("%q: %v", test.endpoint, err)
		case err == nil && c.Endpoint != test.want:
			t.Errorf("%q is %s, want %q", test.endpoint, c.Endpoint, test.want)
		}
	}
}
