// Package store reads and writes objects in stores that speak the S3 protocol: AWS, MinIO, Ceph,
// R2, Google Cloud Storage and others.
//
// A [Client] retries temporary errors until a time limit, and fails immediately while a part of the
// store is known to be down. It finds credentials in the usual places: the environment, ~/.aws, and
// the role of the machine. No error message contains them.
package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"batchfs/cache/counts"
)

// Options select a store and say how to access it.
type Options struct {
	Endpoint  string // URL or host name; empty: from the environment, or the default of the scheme
	Region    string // empty: from the environment, or derived from the endpoint
	PathStyle bool   // whether URLs have the bucket in their path, not in the host name
	Anonymous bool   // whether requests have no credentials

	Timeout time.Duration // a reader's timeout; retries end after three quarters of it
	Counts  *counts.Store // nil: the client has its own
}

// An Object is one version of an object. Versions with different content have different ETags.
type Object struct {
	Scheme, Bucket, Key string
	ETag                string
	Size                int64 // bytes
}

// Name returns the URL of the object, such as s3://bucket/key.
func (o Object) Name() string { return o.Scheme + "://" + o.Bucket + "/" + o.Key }

// Parse parses the URL of an object. ok is false for anything else, such as a path.
func Parse(name string) (o Object, ok bool) {
	scheme, rest, ok := strings.Cut(name, "://")
	if !ok || scheme != "s3" && scheme != "gs" {
		return o, false
	}
	o.Scheme = scheme
	o.Bucket, o.Key, _ = strings.Cut(rest, "/")
	return o, true
}

// A Client reads and writes the objects of a store. It is safe for concurrent use.
type Client struct {
	Endpoint string // URL
	core     *minio.Core
	http     *http.Transport
	creds    *credentials.Credentials // nil if requests are anonymous
	timeout  time.Duration
	outages  outages
	counts   *counts.Store
}

// ErrChanged means that the object was replaced after it was looked up.
var ErrChanged = errors.New("the object has been replaced")

// New returns the client for objects of a scheme, "s3" or "gs". It sends no request. The error says
// which option is wrong.
func New(scheme string, o Options) (*Client, error) {
	key, endpoint, region := "store.endpoint", o.Endpoint, cmp.Or(o.Region, env("AWS_REGION"), env("AWS_DEFAULT_REGION"))
	if scheme == "gs" {
		endpoint, region = cmp.Or(endpoint, "https://storage.googleapis.com"), cmp.Or(o.Region, "auto")
	}
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if endpoint == "" && env(name) != "" {
			key, endpoint = name, env(name)
		}
	}
	endpoint = cmp.Or(endpoint, "https://s3.amazonaws.com")
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" { // a host name
		u, err = url.Parse("https://" + endpoint)
	}
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		if i := strings.LastIndexByte(endpoint, '@'); i >= 0 { // it may contain a password
			endpoint = "xxxxx" + endpoint[i:]
		}
		return nil, fmt.Errorf(`%s: must be a URL of a host, as in "https://minio.example.com:9000" (got %q)`, key, endpoint)
	}
	if region == "" && !strings.HasSuffix(u.Hostname(), ".amazonaws.com") {
		region = "us-east-1" // for AWS, minio-go looks up the region of the bucket
	}
	c := &Client{Endpoint: u.Scheme + "://" + u.Host, timeout: o.Timeout, http: newTransport(), counts: cmp.Or(o.Counts, new(counts.Store))}
	c.outages.probe, c.outages.timeout, c.outages.buckets = c.probe, o.Timeout, map[string]*bucket{}
	options := &minio.Options{Secure: u.Scheme == "https", Region: region, MaxRetries: 1, Transport: countingTransport{c}}
	if o.PathStyle {
		options.BucketLookup = minio.BucketLookupPath
	}
	if !o.Anonymous {
		c.creds = credentials.New(newProviders())
		options.Creds = c.creds
	}
	if c.core, err = minio.NewCore(u.Host, options); err != nil {
		return nil, fmt.Errorf("%s: %w (got %q)", key, err, endpoint)
	}
	return c, nil
}

// env returns an environment variable without white space around it, such as the newline at the end
// of a file that it was read from.
func env(name string) string { return strings.TrimSpace(os.Getenv(name)) }

const (
	maxConnections = 64               // idle connections to each host
	connectTime    = 10 * time.Second // limit on a connection attempt, and on its TLS handshake
)

// newTransport allows only HTTP/1.1: HTTP/2 would send all blocks over one connection, and take
// twice the CPU time.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTime, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: connectTime,
		TLSClientConfig:     &tls.Config{NextProtos: []string{"http/1.1"}},
		MaxIdleConnsPerHost: maxConnections,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // ranges refer to the object, not to a compressed copy
	}
}

// A countingTransport counts requests, and records in their attempt whether the store answered and
// how long it asked the client to wait.
type countingTransport struct{ *Client }

func (t countingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := t.http.RoundTrip(req)
	took := time.Since(began)
	t.counts.Requests.Add(1)
	t.counts.Nanos.Add(int64(took))
	t.counts.Buckets[min(bits.Len64(uint64(took.Milliseconds())), len(t.counts.Buckets)-1)].Add(1)
	if err != nil || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500 {
		t.counts.Errors.Add(1)
	}
	if a, ok := req.Context().Value(attemptKey{}).(*attempt); ok {
		if a.answered = err == nil; a.answered {
			a.onAnswer()
			if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
				a.retryAfter = time.Duration(seconds) * time.Second
			}
		}
	}
	return resp, err
}

// List returns the objects whose keys begin with prefix. After an error it continues after the last
// key, without a time limit as long as new keys arrive.
func (c *Client) List(ctx context.Context, scheme, bucket, prefix string) ([]Object, error) {
	return c.list(ctx, scheme, bucket, prefix, true)
}

// ListFolder is like List, but instead of the objects with a slash after the prefix, it returns
// each folder once, as an Object without an ETag whose key ends in a slash.
func (c *Client) ListFolder(ctx context.Context, scheme, bucket, prefix string) ([]Object, error) {
	return c.list(ctx, scheme, bucket, prefix, false)
}

func (c *Client) list(ctx context.Context, scheme, bucket, prefix string, recursive bool) (all []Object, err error) {
	byKey := func(a, b Object) int { return cmp.Compare(a.Key, b.Key) }
	for before := 0; ; before = len(all) {
		err = c.retry(ctx, Object{Scheme: scheme, Bucket: bucket, Key: prefix + "*"}, "list", func(ctx context.Context, progress func()) error {
			options := minio.ListObjectsOptions{Prefix: prefix, Recursive: recursive}
			if !slices.IsSortedFunc(all, byKey) {
				// A store that sorts differently may have more keys before the last one.
				all = nil
			}
			if len(all) > 0 {
				options.StartAfter = all[len(all)-1].Key
			}
			for info := range c.core.ListObjectsIter(ctx, bucket, options) {
				if info.Err != nil {
					return info.Err
				}
				all = append(all, Object{Scheme: scheme, Bucket: bucket, Key: info.Key, Size: info.Size, ETag: info.ETag})
				progress()
			}
			return context.Cause(ctx) // if ctx is done, the iterator ends without an error
		})
		if err == nil || len(all) <= before {
			return all, err
		}
	}
}

// Stat returns the current version of an object, and when it was written. The error matches
// fs.ErrNotExist if there is none.
func (c *Client) Stat(ctx context.Context, o Object) (_ Object, modified time.Time, err error) {
	err = c.retry(ctx, o, "look up", func(ctx context.Context, _ func()) error {
		info, err := c.core.StatObject(ctx, o.Bucket, o.Key, minio.StatObjectOptions{})
		switch {
		case err != nil:
			return err
		case info.ETag == "":
			return permanent{errors.New("the store gives no ETag, which would show that an object was replaced")}
		case info.Size < 0:
			return permanent{errors.New("the store gives no Content-Length, which would say how large the object is")}
		}
		o.ETag, o.Size, modified = info.ETag, info.Size, info.LastModified
		return checkEncoding(info)
	})
	return o, modified, err
}

// ReadRange fills dst with the bytes of an object, starting at off. They must lie within its size.
// The error matches ErrChanged if the object has been replaced.
func (c *Client) ReadRange(ctx context.Context, o Object, off int64, dst []byte) error {
	done := 0 // bytes received; a retry continues after them
	return c.retry(ctx, o, fmt.Sprintf("read bytes %d to %d", off, off+int64(len(dst))-1), func(ctx context.Context, progress func()) error {
		from, to := off+int64(done), off+int64(len(dst))-1
		body, info, header, err := c.get(ctx, o, from, to)
		if err != nil {
			return err
		}
		defer body.Close()
		if err := o.checkResponse(info, header.Get("Content-Range"), from, to); err != nil {
			return err
		}
		for done < len(dst) {
			n, err := body.Read(dst[done:])
			done += n
			c.counts.Bytes.Add(int64(n))
			if n > 0 {
				progress()
			}
			if err != nil && done < len(dst) {
				return fmt.Errorf("%d of %d bytes came: %w", done, len(dst), err)
			}
		}
		return nil
	})
}

// get requests the bytes from through to of an object, both included. The caller must close body.
func (c *Client) get(ctx context.Context, o Object, from, to int64) (body io.ReadCloser, info minio.ObjectInfo, header http.Header, err error) {
	var options minio.GetObjectOptions
	if err := errors.Join(options.SetMatchETag(o.ETag), options.SetRange(from, to)); err != nil {
		return nil, info, nil, permanent{err}
	}
	return c.core.GetObject(ctx, o.Bucket, o.Key, options)
}

// checkResponse returns an error unless a response has the bytes from through to of this version of
// the object.
func (o Object) checkResponse(info minio.ObjectInfo, contentRange string, from, to int64) error {
	if info.ETag != o.ETag { // some stores ignore If-Match
		return ErrChanged
	}
	if err := checkEncoding(info); err != nil {
		return err
	}
	want, length := fmt.Sprintf("bytes %d-%d/%d", from, to, o.Size), to-from+1
	if contentRange == want && (info.Size < 0 || info.Size == length) {
		return nil
	}
	_, total, _ := strings.Cut(contentRange, "/")
	if size, err := strconv.ParseInt(total, 10, 64); err == nil && size != o.Size {
		return fmt.Errorf("%w: the store says that it has %d bytes, and said %d before", ErrChanged, size, o.Size)
	}
	return fmt.Errorf("the store answered with Content-Range %q and Content-Length %d, want %q and %d", contentRange, info.Size, want, length)
}

// checkEncoding returns an error if an object is encoded. Some stores report aws-chunked, although
// only the upload had that encoding.
func checkEncoding(info minio.ObjectInfo) error {
	if slices.Contains([]string{"", "identity", "aws-chunked"}, info.ContentEncoding) {
		return nil
	}
	return permanent{fmt.Errorf("its Content-Encoding is %q, want none: upload it as it should be read", info.ContentEncoding)}
}

// A permanent error is not retried.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

const (
	firstWait  = 50 * time.Millisecond  // maximum wait before the first retry
	firstProbe = 500 * time.Millisecond // minimum wait before the first probe of an outage
	// maxWait limits the waits of retries, unless the store asks for more. A probe may wait half as
	// long again.
	maxWait = 5 * time.Second
)

// retry calls do until it succeeds or fails with a permanent error, for up to three quarters of the
// client's timeout. It abandons an attempt that makes no progress for a quarter of the timeout, and
// waits up to a quarter if the store asks for that. The error names the object and the operation.
func (c *Client) retry(ctx context.Context, o Object, operation string, do func(ctx context.Context, progress func()) error) error {
	once, err := c.outages.check(c.Endpoint, o)
	if err != nil {
		return o.operationError(operation, err)
	}
	// Stop before the reader's own timeout, so that it gets the error of the store.
	quarter := c.timeout / 4
	_, hurried := ctx.Deadline() // whether the caller allows less time than a store may take
	ctx, cancel := context.WithTimeout(ctx, 3*quarter)
	defer cancel()
	refreshed := false
	var last attempt
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		current := c.attempt(ctx, o, quarter, do)
		if current.err == nil {
			return nil
		}
		if ctx.Err() == nil || last.err == nil { // an earlier error says more than the timeout does
			last = current
		}
		code := minio.ToErrorResponse(last.err).Code
		if slices.Contains(expiredCodes, code) && c.creds != nil && !refreshed {
			c.creds.Expire()
			refreshed = true
			continue
		}
		if !isTemporary(last.err) || once && last.culprit == culpritEndpoint {
			return o.operationError(operation, last.err)
		}
		select {
		case <-ctx.Done():
			if !hurried && ctx.Err() == context.DeadlineExceeded {
				c.outages.recordGiveUp(o, last.culprit, redacted(last.err), quarter)
			}
			return o.operationError(operation, last.err)
		case <-time.After(min(max(current.retryAfter, wait/2+rand.N(wait/2)), quarter)):
			c.counts.Retries.Add(1)
		}
	}
}

// An attempt records how one try of an operation ended.
type attempt struct {
	err        error
	culprit    culprit       // part that a temporary error counts against
	answered   bool          // whether the last request got an answer, even an error
	retryAfter time.Duration // wait that the store asked for; 0 if none
	onAnswer   func()        // called for each request that got an answer
}

type attemptKey struct{}

// attempt calls do once, with a context that is canceled if there is no progress for stall. It
// records the outcome in c.outages.
func (c *Client) attempt(caller context.Context, o Object, stall time.Duration, do func(ctx context.Context, progress func()) error) (a attempt) {
	ctx, cancel := context.WithCancelCause(context.WithValue(caller, attemptKey{}, &a))
	defer cancel(nil)
	stalled := fmt.Errorf("nothing came for %v", stall.Round(time.Millisecond))
	timer := time.AfterFunc(stall, func() { cancel(stalled) })
	defer timer.Stop()
	a.onAnswer = func() {
		timer.Reset(stall)
		c.outages.recordAnswer(o, false)
	}
	succeeded := false
	a.err = do(ctx, func() {
		timer.Reset(stall)
		if !succeeded {
			c.outages.recordAnswer(o, true)
			succeeded = true
		}
	})
	if a.err != nil && context.Cause(ctx) == stalled {
		a.err = stalled
	}
	a.culprit = culpritOf(a.err, a.answered)
	switch {
	case a.err != nil && caller.Err() != nil: // the caller gave up; the store may be fine
	case !isTemporary(a.err):
		c.outages.recordAnswer(o, true)
	default:
		c.outages.recordFailure(o, a.culprit)
	}
	return a
}

// probe requests objects of a bucket at increasing intervals until nothing in it is down, so that
// the end of an outage is noticed without a read that fails.
func (c *Client) probe(bucket string) {
	for wait := firstProbe; ; wait = min(2*wait, maxWait) {
		time.Sleep(wait + rand.N(wait/2))
		objects := c.outages.toProbe(bucket)
		if len(objects) == 0 {
			return
		}
		for _, o := range objects {
			c.attempt(context.Background(), o, c.timeout/4, func(ctx context.Context, _ func()) error { return c.probeObject(ctx, o) })
		}
	}
}

// probeObject reads one byte at a random position, because a store may be unable to read some parts
// of an object and still report its size.
func (c *Client) probeObject(ctx context.Context, o Object) error {
	if o.Size == 0 || o.ETag == "" { // an object that Put writes has no ETag yet
		_, err := c.core.StatObject(ctx, o.Bucket, o.Key, minio.StatObjectOptions{})
		return err
	}
	pos := rand.N(o.Size)
	body, _, _, err := c.get(ctx, o, pos, pos)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.ReadFull(body, make([]byte, 1))
	return err
}

// expiredCodes are the error codes of expired credentials.
var expiredCodes = []string{"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"}

// isTemporary reports whether a retry may succeed.
func isTemporary(err error) bool {
	var stays permanent
	var untrusted *tls.CertificateVerificationError
	if err == nil || errors.Is(err, ErrChanged) || errors.As(err, &stays) || errors.As(err, &untrusted) || errors.Is(err, http.ErrSchemeMismatch) ||
		errors.Is(err, context.Canceled) {
		return false
	}
	var response minio.ErrorResponse
	if !errors.As(err, &response) {
		return true // network error
	}
	switch code := response.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500 && code != http.StatusNotImplemented,
		code == 0, code == http.StatusOK, code == http.StatusPartialContent:
		return true // the store is overloaded, or its response was invalid
	}
	return response.Code == "SlowDown" || response.Code == "RequestTimeout"
}

func (o Object) operationError(operation string, err error) error {
	return fmt.Errorf("%s: %s: %w", o.Name(), operation, redacted(err))
}

// redacted returns err without the request, whose headers may contain credentials, and suggests a
// fix.
func redacted(err error) error {
	var response minio.ErrorResponse
	var request *url.Error
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &response):
		return explainResponse(response)
	case errors.As(err, &untrusted):
		return fmt.Errorf("%w; SSL_CERT_FILE names a file with the certificates of authorities to trust", untrusted)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("%w; if the store has no TLS, its endpoint must begin with http://", http.ErrSchemeMismatch)
	case errors.As(err, &request):
		return request.Err
	}
	return err
}

func explainResponse(r minio.ErrorResponse) error {
	text := strings.TrimSuffix(strings.TrimSpace(fmt.Sprintf("%d %s: %s", r.StatusCode, r.Code, r.Message)), ":")
	// The answer to HEAD has no reason, so the library repeats the status.
	noReason := strings.HasPrefix(r.Code, strconv.Itoa(r.StatusCode))
	if noReason {
		text = r.Code
	}
	switch {
	case r.StatusCode == http.StatusPreconditionFailed:
		return ErrChanged
	case r.Code == "NoSuchBucket":
		return errors.New(text + "; is the bucket's name right, and store.endpoint?")
	case r.StatusCode == http.StatusNotFound:
		// If a bucket is missing, the answer to HEAD does not say so.
		return fmt.Errorf("%s; are the names of the bucket and the object right, and store.endpoint? (%w)", text, fs.ErrNotExist)
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("%s (%w)", text, ErrChanged)
	case r.StatusCode == http.StatusMovedPermanently, r.Code == "AuthorizationHeaderMalformed":
		return errors.New(text + "; is store.region right?")
	case r.Code == "InvalidObjectState":
		return errors.New(text + "; it is in an archive: restore it, or copy it to another storage class")
	case r.StatusCode == http.StatusForbidden, r.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s; the credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, or the machine's role (%w)",
			text, fs.ErrPermission)
	case noReason && r.StatusCode < 500:
		return errors.New(text + "; are store.endpoint, store.region and the name of the bucket right?")
	}
	return errors.New(text)
}
