package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A fakeBucket keeps objects and uploads in memory. It serves ranges of objects.
type fakeBucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	uploads map[string]map[int][]byte // by ID
	begun   int
	fault   func(r *http.Request) int // status of a reply, or 0 to serve the request
}

func newFakeBucket(t *testing.T) (*fakeBucket, *Client) {
	b := &fakeBucket{objects: map[string][]byte{}, uploads: map[string]map[int][]byte{}, fault: func(*http.Request) int { return 0 }}
	server := httptest.NewTLSServer(b)
	t.Cleanup(server.Close)
	trust(t, server)
	setAWSKey(t)
	c, err := New("s3", Options{Endpoint: server.URL, Region: "us-east-1", PathStyle: true, Timeout: time.Minute})
	must(t, err)
	return b, c
}

func (b *fakeBucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if status := b.fault(r); status != 0 {
		w.WriteHeader(status)
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	query := r.URL.Query()
	id := query.Get("uploadId")
	upload, isOpen := b.uploads[id]
	switch {
	case id != "" && !isOpen:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "<Error><Code>NoSuchUpload</Code></Error>")
	case r.Method == http.MethodPost && id == "":
		b.begun++
		id = fmt.Sprint("upload-", b.begun)
		b.uploads[id] = map[int][]byte{}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case r.Method == http.MethodPut && id != "":
		number, _ := strconv.Atoi(query.Get("partNumber"))
		upload[number], _ = io.ReadAll(r.Body)
		w.Header().Set("ETag", fmt.Sprintf(`"part-%d"`, number))
	case r.Method == http.MethodPost:
		var whole []byte
		for _, number := range slices.Sorted(maps.Keys(upload)) {
			whole = append(whole, upload[number]...)
		}
		delete(b.uploads, id)
		b.objects[key] = whole
		fmt.Fprint(w, "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>")
	case r.Method == http.MethodDelete:
		delete(b.uploads, id)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPut:
		b.objects[key], _ = io.ReadAll(r.Body)
		w.Header().Set("ETag", `"small"`)
	case r.Method == http.MethodGet && query.Has("uploads"):
		fmt.Fprint(w, "<ListMultipartUploadsResult>")
		for id := range b.uploads {
			fmt.Fprintf(w, "<Upload><Key>dir/%s</Key><UploadId>%s</UploadId></Upload>", id, id)
		}
		fmt.Fprint(w, "</ListMultipartUploadsResult>")
	case r.Method == http.MethodGet && query.Has("list-type"):
		fmt.Fprint(w, "<ListBucketResult></ListBucketResult>")
	default:
		w.Header().Set("ETag", `"one"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(b.objects[key]))
	}
}

// An object is written whole, in one request or in parts, also if requests fail or the upload
// vanishes.
func TestPut(t *testing.T) {
	defer func(n int64) { minPart = n }(minPart)
	minPart = 1000
	for _, size := range []int{0, 1, 1000, 1001, 12_345} {
		for name, fault := range map[string]func(b *fakeBucket, n int, r *http.Request) int{
			"none": func(*fakeBucket, int, *http.Request) int { return 0 },
			"errors": func(_ *fakeBucket, n int, _ *http.Request) int {
				return []int{0, 0, http.StatusServiceUnavailable}[n%3]
			},
			"vanish": func(b *fakeBucket, n int, _ *http.Request) int {
				if n == 5 {
					clear(b.uploads)
				}
				return 0
			},
		} {
			b, c := newFakeBucket(t)
			requests := 0
			b.fault = func(r *http.Request) int {
				requests++
				return fault(b, requests, r)
			}
			data := bytes.Repeat([]byte("0123456789abc"), size/13+1)[:size]
			o, err := c.Put(context.Background(), Object{Scheme: "s3", Bucket: "bucket", Key: "dir/a"}, bytes.NewReader(data), int64(size))
			if err != nil || !bytes.Equal(b.objects["dir/a"], data) || o.Size != int64(size) || size > 1000 != (o.ETag == "whole") {
				t.Errorf("%d bytes, faults %s: %v, %d bytes, %+v", size, name, err, len(b.objects["dir/a"]), o)
			}
		}
	}
}

// A probe finds out whether the store answers, even if the ETag of its object is unknown, as after
// a failed Put.
func TestProbeOfWritten(t *testing.T) {
	b, c := newFakeBucket(t)
	o := Object{Scheme: "s3", Bucket: "bucket", Key: "a", Size: 9}
	probe := func() error {
		return c.attempt(context.Background(), o, time.Minute, func(ctx context.Context, _ func()) error { return c.probeObject(ctx, o) }).err
	}
	b.fault = func(*http.Request) int { return http.StatusServiceUnavailable }
	if err := probe(); !isTemporary(err) {
		t.Errorf("of a bucket that is down: %v", err)
	}
	b.fault = func(*http.Request) int { return 0 }
	b.objects["a"] = []byte("123456789")
	must(t, probe())
}

// Only the uploads that are ours are aborted.
func TestAbortUploads(t *testing.T) {
	b, c := newFakeBucket(t)
	for _, id := range []string{"one", "two", "three"} {
		b.uploads[id] = map[int][]byte{}
	}
	if err := c.AbortUploads(context.Background(), "s3", "bucket", "dir/", func(key string) bool { return key != "dir/two" }); err != nil || len(b.uploads) != 1 || b.uploads["two"] == nil {
		t.Errorf("%v: %v are left", err, b.uploads)
	}
}

// A stream has the bytes of the object, from where it was moved to, and none of another version.
func TestStream(t *testing.T) {
	b, c := newFakeBucket(t)
	data := make([]byte, 3*maxBlock+12_345)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	b.objects["a"] = data
	o := Object{Scheme: "s3", Bucket: "bucket", Key: "a", ETag: "one", Size: int64(len(data))}
	s := c.Open(context.Background(), o)
	defer s.Close()
	for _, from := range []int64{0, 17, maxBlock, o.Size - 1, o.Size} {
		s.Read(make([]byte, 100)) // leaves blocks behind
		if _, err := s.Seek(from, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, data[from:]) {
			t.Errorf("from %d: %d bytes, %v", from, len(got), err)
		}
	}
	o.ETag = "another"
	changed := c.Open(context.Background(), o)
	defer changed.Close()
	for range 2 {
		if _, err := changed.Read(make([]byte, 100)); !errors.Is(err, ErrChanged) {
			t.Errorf("another version: %v", err)
		}
	}
}
