// Package store reads objects of stores that speak the S3 protocol: AWS, MinIO, Ceph, R2, Google Cloud Storage and others.
//
// A [Client] lists objects, looks at one, and reads ranges of one. What fails for a while is tried again, until a time is over.
// Credentials come from where every program for S3 finds them, and no error shows them.
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

// Options say which store it is.
type Options struct {
	Endpoint  string // a URL, or a host; empty: as the environment or the scheme says
	Region    string // empty: as the environment or the endpoint says
	PathStyle bool   // the bucket stands in the path of a URL, not in the name of the host
	Anonymous bool   // without credentials
	Timeout   time.Duration
	Counts    *counts.Store // nil: each client has its own
}

// An Object is one object as it was when Stat looked. ETag tells its content from what was, or will be, under its name.
type Object struct {
	Scheme, Bucket, Key string
	ETag                string
	Size                int64
}

// Name is the URL of the object: s3://bucket/key.
func (o Object) Name() string { return o.Scheme + "://" + o.Bucket + "/" + o.Key }

// Parse returns the object that a URL names, without ETag and size. ok is false for what is no URL of a store, such as the path of a file.
func Parse(name string) (o Object, ok bool) {
	scheme, rest, ok := strings.Cut(name, "://")
	if !ok || scheme != "s3" && scheme != "gs" {
		return o, false
	}
	o.Scheme = scheme
	o.Bucket, o.Key, _ = strings.Cut(rest, "/")
	return o, true
}

// A Client reads the objects of a store. It is safe for concurrent use.
type Client struct {
	Endpoint string // the URL of the store
	core     *minio.Core
	http     *http.Transport
	creds    *credentials.Credentials // nil: none
	timeout  time.Duration
	outages  outages
	counts   *counts.Store
}

// ErrChanged is the error of a read of an object that has been replaced since.
var ErrChanged = errors.New("the object has been replaced")

// New returns the client for the objects of a scheme, s3 or gs. It sends nothing. The error says which option is wrong.
func New(scheme string, o Options) (*Client, error) {
	endpoint, region := o.Endpoint, cmp.Or(o.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	if scheme == "gs" {
		endpoint, region = cmp.Or(endpoint, "https://storage.googleapis.com"), cmp.Or(o.Region, "auto")
	}
	endpoint = cmp.Or(endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), "https://s3.amazonaws.com")
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" { // a host alone
		u, err = url.Parse("https://" + endpoint)
	}
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		if at := strings.LastIndexByte(endpoint, '@'); at >= 0 { // it may contain a password
			endpoint = "xxxxx" + endpoint[at:]
		}
		return nil, fmt.Errorf(`store.endpoint: must be a URL of a host, as in "https://minio.example.com:9000" (got %q)`, endpoint)
	}
	if region == "" && !strings.HasSuffix(u.Hostname(), ".amazonaws.com") {
		region = "us-east-1" // for AWS, the library looks up the bucket's region
	}
	c := &Client{Endpoint: u.Scheme + "://" + u.Host, timeout: o.Timeout, http: newTransport(), counts: cmp.Or(o.Counts, new(counts.Store))}
	c.outages.probe, c.outages.timeout, c.outages.buckets = c.probe, o.Timeout, map[string]*bucket{}
	options := &minio.Options{Secure: u.Scheme == "https", Region: region, MaxRetries: 1, Transport: observed{c}}
	if o.PathStyle {
		options.BucketLookup = minio.BucketLookupPath
	}
	if !o.Anonymous {
		c.creds = credentials.New(newProviders())
		options.Creds = c.creds
	}
	if c.core, err = minio.NewCore(u.Host, options); err != nil {
		return nil, fmt.Errorf("store.endpoint: %w (got %q)", err, endpoint)
	}
	return c, nil
}

const (
	maxConnections = 64 // idle connections kept open per host
	connectTime    = 10 * time.Second
)

// newTransport speaks HTTP/1.1 alone, also where a store speaks HTTP/2: that would send all blocks over one connection, for twice the CPU time.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTime, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: connectTime,
		TLSClientConfig:     &tls.Config{NextProtos: []string{"http/1.1"}},
		MaxIdleConnsPerHost: maxConnections,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // a range of the object, and not of its compressed bytes
	}
}

// observed counts requests. For each one it records in the attempt whether the store answered, and
// how long the store asked the client to wait.
type observed struct{ *Client }

func (o observed) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := o.http.RoundTrip(req)
	took := time.Since(began)
	o.counts.Requests.Add(1)
	o.counts.Nanos.Add(int64(took))
	o.counts.Buckets[min(bits.Len64(uint64(took.Milliseconds())), len(o.counts.Buckets)-1)].Add(1)
	if err != nil || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500 {
		o.counts.Errors.Add(1)
	}
	if a, ok := req.Context().Value(attemptKey{}).(*attempt); ok {
		if a.answered = err == nil; a.answered {
			a.heard()
			if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
				a.asked = time.Duration(seconds) * time.Second
			}
		}
	}
	return resp, err
}

// List returns the keys that begin with a prefix. It has no time limit while it gets new keys: after an error it continues behind the last one.
func (c *Client) List(ctx context.Context, scheme, bucket, prefix string) (keys []string, err error) {
	for before := 0; ; before = len(keys) {
		err = c.retry(ctx, Object{Scheme: scheme, Bucket: bucket, Key: prefix + "*"}, "list", func(ctx context.Context, progress func()) error {
			options := minio.ListObjectsOptions{Prefix: prefix, Recursive: true}
			if !slices.IsSorted(keys) {
				keys = nil // a store that sorts in another way may have more before the last one
			}
			if len(keys) > 0 {
				options.StartAfter = keys[len(keys)-1]
			}
			for info := range c.core.ListObjectsIter(ctx, bucket, options) {
				if info.Err != nil {
					return info.Err
				}
				keys = append(keys, info.Key)
				progress()
			}
			return context.Cause(ctx) // after which the library lists no more, without an error
		})
		if err == nil || len(keys) <= before {
			return keys, err
		}
	}
}

// Stat returns an object as it is now. The error is fs.ErrNotExist where there is none.
func (c *Client) Stat(ctx context.Context, o Object) (Object, error) {
	err := c.retry(ctx, o, "look", func(ctx context.Context, _ func()) error {
		info, err := c.core.StatObject(ctx, o.Bucket, o.Key, minio.StatObjectOptions{})
		switch {
		case err != nil:
			return err
		case info.ETag == "":
			return permanent{errors.New("the store gives no ETag, which would show that an object was replaced")}
		case info.Size < 0:
			return permanent{errors.New("the store gives no Content-Length, which would say how large the object is")}
		}
		o.ETag, o.Size = info.ETag, info.Size
		return unencoded(info)
	})
	return o, err
}

// ReadRange fills dst with the bytes of an object from byte off on, which lie within its size. The error is ErrChanged if the object is
// another one by now.
func (c *Client) ReadRange(ctx context.Context, o Object, off int64, dst []byte) error {
	done := 0 // a body that breaks off is continued
	return c.retry(ctx, o, fmt.Sprintf("read bytes %d to %d", off, off+int64(len(dst))-1), func(ctx context.Context, progress func()) error {
		from, to := off+int64(done), off+int64(len(dst))-1
		body, info, header, err := c.get(ctx, o, from, to)
		if err != nil {
			return err
		}
		defer body.Close()
		if err := o.answers(info, header.Get("Content-Range"), from, to); err != nil {
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

// get requests the bytes of an object from one to another, both included. The caller must close body.
func (c *Client) get(ctx context.Context, o Object, from, to int64) (body io.ReadCloser, info minio.ObjectInfo, header http.Header, err error) {
	var options minio.GetObjectOptions
	if err := errors.Join(options.SetMatchETag(o.ETag), options.SetRange(from, to)); err != nil {
		return nil, info, nil, permanent{err}
	}
	return c.core.GetObject(ctx, o.Bucket, o.Key, options)
}

// answers returns an error unless an answer has the bytes of the object from one to another, and the object is the same.
func (o Object) answers(info minio.ObjectInfo, got string, from, to int64) error {
	if info.ETag != o.ETag { // some stores know no If-Match
		return ErrChanged
	}
	if err := unencoded(info); err != nil {
		return err
	}
	want, length := fmt.Sprintf("bytes %d-%d/%d", from, to, o.Size), to-from+1
	if got == want && (info.Size < 0 || info.Size == length) {
		return nil
	}
	_, total, _ := strings.Cut(got, "/")
	if size, err := strconv.ParseInt(total, 10, 64); err == nil && size != o.Size {
		return fmt.Errorf("%w: the store says that it has %d bytes, and said %d before", ErrChanged, size, o.Size)
	}
	return fmt.Errorf("the store answered with Content-Range %q and Content-Length %d, want %q and %d", got, info.Size, want, length)
}

// unencoded returns an error if the bytes of an object are encoded. Some stores keep aws-chunked, which was the encoding of an upload alone.
func unencoded(info minio.ObjectInfo) error {
	if slices.Contains([]string{"", "identity", "aws-chunked"}, info.ContentEncoding) {
		return nil
	}
	return permanent{fmt.Errorf("its Content-Encoding is %q, want none: upload it as it should be read", info.ContentEncoding)}
}

// permanent is an error that trying again does not mend.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

const (
	firstWait  = 50 * time.Millisecond  // longest wait before the first retry
	firstProbe = 500 * time.Millisecond // shortest wait before the first probe of an outage
	longest    = 5 * time.Second        // limit of both, unless the store asks for a longer wait
)

// retry calls do until it succeeds, fails with a permanent error, or the time is over: three
// quarters of the client's timeout. An attempt without progress for a quarter of the timeout is
// abandoned. The store may ask for a wait of up to a quarter, too. The error names the object and
// the operation.
func (c *Client) retry(ctx context.Context, o Object, what string, do func(ctx context.Context, progress func()) error) error {
	once, err := c.outages.check(c.Endpoint, o)
	if err != nil {
		return o.failed(what, err)
	}
	// The reader's own timeout is longer than this, so that it learns the store's error first.
	share := c.timeout / 4
	_, hurried := ctx.Deadline() // the caller allows less time than a store may take
	ctx, cancel := context.WithTimeout(ctx, 3*share)
	defer cancel()
	refreshed := false // the credentials have been read again
	var last attempt
	for wait := firstWait; ; wait = min(2*wait, longest) {
		this := c.attempt(ctx, o, share, do)
		if this.err == nil {
			return nil
		}
		if ctx.Err() == nil || last.err == nil { // an earlier error says more than the timeout
			last = this
		}
		code := minio.ToErrorResponse(last.err).Code
		if slices.Contains(expired, code) && c.creds != nil && !refreshed {
			c.creds.Expire()
			refreshed = true
			continue
		}
		if !isTemporary(last.err) || once && last.culprit == theEndpoint {
			return o.failed(what, last.err)
		}
		select {
		case <-ctx.Done():
			if !hurried && ctx.Err() == context.DeadlineExceeded {
				c.outages.gaveUp(o, last.culprit, redacted(last.err), share)
			}
			return o.failed(what, last.err)
		case <-time.After(min(max(this.asked, wait/2+rand.N(wait/2)), share)):
			c.counts.Retries.Add(1)
		}
	}
}

// An attempt records how one try of a request ended.
type attempt struct {
	err      error         // nil if it succeeded
	culprit  culprit       // part to blame if err is temporary
	answered bool          // whether the last request got an answer, even an error
	asked    time.Duration // wait that the store asked for; 0: none
	heard    func()        // called for each answer
}

type attemptKey struct{} // context key of an *attempt

// attempt calls do once, with a context that is canceled if there is no progress for the duration
// stall. It records the outcome in c.outages.
func (c *Client) attempt(caller context.Context, o Object, stall time.Duration, do func(ctx context.Context, progress func()) error) (a attempt) {
	ctx, cancel := context.WithCancelCause(context.WithValue(caller, attemptKey{}, &a))
	defer cancel(nil)
	stalled := fmt.Errorf("nothing came for %v", stall.Round(time.Millisecond))
	timer := time.AfterFunc(stall, func() { cancel(stalled) })
	defer timer.Stop()
	a.heard = func() {
		timer.Reset(stall)
		c.outages.answered(o)
	}
	isUp := false
	a.err = do(ctx, func() {
		timer.Reset(stall)
		if !isUp {
			c.outages.succeeded(o)
			isUp = true
		}
	})
	if a.err != nil && context.Cause(ctx) == stalled {
		a.err = stalled
	}
	a.culprit = culpritOf(a.err, a.answered)
	switch {
	case a.err != nil && caller.Err() != nil: // the caller gave up: the store may be fine
	case !isTemporary(a.err):
		c.outages.succeeded(o)
	default:
		c.outages.failed(o, a.culprit)
	}
	return a
}

// probe requests objects of a bucket, at intervals that grow, until nothing in the bucket is down.
// The end of an outage is thus noticed without a reader that has to wait and fail first.
func (c *Client) probe(bucket string) {
	for wait := firstProbe; ; wait = min(2*wait, longest) {
		time.Sleep(wait + rand.N(wait/2))
		objects := c.outages.toProbe(bucket)
		if len(objects) == 0 {
			return
		}
		for _, o := range objects {
			c.attempt(context.Background(), o, c.timeout/4, func(ctx context.Context, _ func()) error { return c.ask(ctx, o) })
		}
	}
}

// ask reads one byte of an object. Its position is random, because a store may fail to read some
// parts of an object and still know its size.
func (c *Client) ask(ctx context.Context, o Object) error {
	if o.Size == 0 {
		_, err := c.core.StatObject(ctx, o.Bucket, o.Key, minio.StatObjectOptions{})
		return err
	}
	at := rand.N(o.Size)
	body, _, _, err := c.get(ctx, o, at, at)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.ReadFull(body, make([]byte, 1))
	return err
}

// expired are the errors for credentials that were good once.
var expired = []string{"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"}

// isTemporary reports whether there is an error, and it may be gone when it is tried again.
func isTemporary(err error) bool {
	var stays permanent
	var untrusted *tls.CertificateVerificationError
	if err == nil || errors.Is(err, ErrChanged) || errors.As(err, &stays) || errors.As(err, &untrusted) || errors.Is(err, context.Canceled) {
		return false
	}
	var response minio.ErrorResponse
	if !errors.As(err, &response) {
		return true // of the network
	}
	switch code := response.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500 && code != http.StatusNotImplemented,
		code == 0, code == http.StatusOK, code == http.StatusPartialContent:
		return true // an answer that is none
	}
	return response.Code == "SlowDown" || response.Code == "RequestTimeout"
}

// failed is an error that says what could not be done with the object, and why.
func (o Object) failed(what string, err error) error {
	return fmt.Errorf("%s: %s: %w", o.Name(), what, redacted(err))
}

// redacted is err without the request and its headers, with what helps.
func redacted(err error) error {
	var response minio.ErrorResponse
	var request *url.Error
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &response):
		return explainResponse(response)
	case errors.As(err, &untrusted):
		return fmt.Errorf("%w; SSL_CERT_FILE names a file with the certificates of authorities to trust", untrusted)
	case errors.As(err, &request):
		return request.Err
	}
	return err
}

func explainResponse(r minio.ErrorResponse) error {
	text := strings.TrimSuffix(strings.TrimSpace(fmt.Sprintf("%d %s: %s", r.StatusCode, r.Code, r.Message)), ":")
	switch {
	case r.StatusCode == http.StatusPreconditionFailed:
		return ErrChanged
	case r.Code == "NoSuchBucket":
		return errors.New(text + "; is the bucket's name right, and store.endpoint?")
	case r.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s (%w)", text, fs.ErrNotExist)
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("%s (%w)", text, ErrChanged) // it is shorter now
	case r.StatusCode == http.StatusMovedPermanently, r.Code == "AuthorizationHeaderMalformed":
		return errors.New(text + "; is store.region right?")
	case r.StatusCode == http.StatusForbidden, r.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s; the credentials are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, or the machine's role (%w)",
			text, fs.ErrPermission)
	}
	return errors.New(text)
}
