package store

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A failingStore responds with an error if the path of a request begins with a prefix in status.
type failingStore struct {
	mu       sync.Mutex
	status   map[string]int // HTTP status by path prefix; 0 cuts the connection
	requests map[string]int
}

func (f *failingStore) answer(_ int, w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	bucket, _, _ := strings.Cut(r.URL.Path[1:], "/")
	f.requests[bucket]++
	for prefix, status := range f.status {
		if !strings.HasPrefix(r.URL.Path, prefix) {
			continue
		}
		if status == 0 {
			cutConnection(w)
		} else {
			answerError(w, status, map[int]string{500: "InternalError", 503: "SlowDown"}[status])
		}
		return true
	}
	return false
}

func (f *failingStore) set(status map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = status
}

// sentIn returns how many requests are sent to a bucket within d.
func (f *failingStore) sentIn(d time.Duration, bucket string) int {
	count := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.requests[bucket]
	}
	before := count()
	time.Sleep(d)
	return count() - before
}

// readPath reads part of an object, and returns how long that took, rounded to seconds.
func readPath(ctx context.Context, c *Client, path string) (took time.Duration, err error) {
	o := object
	o.Bucket, o.Key, _ = strings.Cut(path, "/")
	began := time.Now()
	err = c.ReadRange(ctx, o, 10, make([]byte, 20))
	return time.Since(began).Round(time.Second), err
}

// Once an outage is known, reads of the part that is down fail immediately, and all others succeed.
// After the outage, every read succeeds again.
func TestOutages(t *testing.T) {
	for _, test := range []struct {
		name              string
		status            map[string]int
		meanwhile         []string          // read every second during the first reads
		failEarly         []string          // reads that fail first, with only a second
		failLate          []string          // reads that fail when all of their time is over
		failFast          map[string]string // reads that fail immediately, and their errors
		succeed           []string          // reads that succeed
		succeedAfterProbe []string          // reads that succeed after a probe
	}{
		{
			name:     "an object",
			status:   map[string]int{"/bucket/bad": 500},
			failLate: []string{"bucket/bad"},
			failFast: map[string]string{"bucket/bad": "s3://bucket/bad: read bytes 10 to 29: the object is down: 500 InternalError"},
			succeed:  []string{"bucket/good", "bucket/better", "other/good"},
		}, {
			name:     "two objects of a bucket",
			status:   map[string]int{"/bucket/bad": 500},
			failLate: []string{"bucket/bad1", "bucket/bad2"},
			failFast: map[string]string{"bucket/bad1": "the object is down", "bucket/bad2": "the object is down"},
			succeed:  []string{"bucket/good", "other/good"},
		}, {
			name:              "several objects of a bucket",
			status:            map[string]int{"/bucket/bad": 500},
			failLate:          []string{"bucket/bad1", "bucket/bad2", "bucket/bad3"},
			failFast:          map[string]string{"bucket/bad1": "the bucket bucket is down: 500", "bucket/good": "the bucket bucket is down: 500"},
			succeed:           []string{"other/good"},
			succeedAfterProbe: []string{"bucket/good"},
		}, {
			name:      "several objects of a bucket whose others are read",
			status:    map[string]int{"/bucket/bad": 500},
			meanwhile: []string{"bucket/good"},
			failLate:  []string{"bucket/bad1", "bucket/bad2", "bucket/bad3"},
			failFast:  map[string]string{"bucket/bad1": "the object is down", "bucket/bad2": "the object is down"},
			succeed:   []string{"bucket/good", "bucket/better"},
		}, {
			name:     "a bucket",
			status:   map[string]int{"/bucket/": 503},
			failLate: []string{"bucket/a"},
			failFast: map[string]string{"bucket/a": "the bucket bucket is down: 503 SlowDown", "bucket/b": "the bucket bucket is down"},
			succeed:  []string{"other/a", "other/b"},
		}, {
			name:      "an object that is throttled",
			status:    map[string]int{"/bucket/bad": 503},
			meanwhile: []string{"bucket/good"},
			failLate:  []string{"bucket/bad"},
			failFast:  map[string]string{"bucket/bad": "the object is down: 503"},
			succeed:   []string{"bucket/good", "bucket/better", "other/good"},
		}, {
			name:     "the endpoint",
			status:   map[string]int{"/": 0},
			failLate: []string{"bucket/a"},
			failFast: map[string]string{"bucket/b": "the store http://store does not answer: ", "other/a": "s3://other/a: read bytes 10 to 29: "},
		}, {
			name:      "the endpoint, which another bucket missed first",
			status:    map[string]int{"/": 0},
			failEarly: []string{"other/a"},
			failLate:  []string{"bucket/a"},
			failFast:  map[string]string{"bucket/b": "does not answer: ", "other/b": "does not answer: "},
		}, {
			name:     "connections for a bucket",
			status:   map[string]int{"/bucket/": 0},
			failLate: []string{"bucket/a"},
			succeed:  []string{"other/a", "other/b"},
			failFast: map[string]string{"bucket/b": "the bucket bucket is down: "},
		}, {
			name:      "connections for a bucket, while another is read",
			status:    map[string]int{"/bucket/": 0},
			meanwhile: []string{"other/a"},
			failLate:  []string{"bucket/a"},
			failFast:  map[string]string{"bucket/b": "the bucket bucket is down: "},
			succeed:   []string{"other/b"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := &failingStore{requests: map[string]int{}}
			simulate(t, time.Minute, store.answer, func(t *testing.T, c *Client) {
				healthy := func(paths ...string) {
					t.Helper()
					for _, path := range paths {
						if took, err := readPath(t.Context(), c, path); err != nil || took > 0 {
							t.Errorf("%s after %v: %v, want no error immediately", path, took, err)
						}
					}
				}
				healthy("bucket/good", "other/good")
				store.set(test.status)
				end := make(chan struct{})
				for _, path := range test.meanwhile {
					go func() {
						for tick := time.Tick(time.Second); ; <-tick {
							select {
							case <-end:
								return
							default:
								healthy(path)
							}
						}
					}()
				}
				for _, path := range test.failEarly {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					if took, err := readPath(ctx, c, path); err == nil || took != time.Second {
						t.Errorf("%s after %v: %v, want an error after 1s", path, took, err)
					}
					cancel()
				}
				var all sync.WaitGroup
				for _, path := range test.failLate {
					all.Go(func() {
						if took, err := readPath(t.Context(), c, path); err == nil || took != 45*time.Second {
							t.Errorf("%s after %v: %v, want an error after 45s", path, took, err)
						}
					})
				}
				all.Wait()
				close(end)
				healthy(test.succeed...)
				for path, says := range test.failFast {
					if took, err := readPath(t.Context(), c, path); !strings.Contains(fmt.Sprint(err), says) || took > 0 {
						t.Errorf("%s after %v: %v, want %q immediately", path, took, err, says)
					}
				}
				if len(test.succeedAfterProbe) > 0 {
					time.Sleep(maxWait)
				}
				healthy(test.succeedAfterProbe...)
				store.set(nil)
				time.Sleep(2 * maxWait)
				for path := range test.failFast {
					healthy(path)
				}
				healthy(test.failLate...)
			})
		})
	}
}

// Only one probe requests objects of a bucket that is down, however many of them have failed.
func TestOneProbe(t *testing.T) {
	store := &failingStore{requests: map[string]int{}}
	simulate(t, time.Minute, store.answer, func(t *testing.T, c *Client) {
		store.set(map[string]int{"/bucket/": 503, "/other/": 503})
		var all sync.WaitGroup
		for i := range 30 {
			for _, bucket := range []string{"bucket", "other"} {
				all.Go(func() { readPath(t.Context(), c, fmt.Sprintf("%s/%d", bucket, i)) })
			}
		}
		all.Wait()
		for _, bucket := range []string{"bucket", "other"} {
			if n := store.sentIn(time.Minute, bucket); n < 5 || n > 25 {
				t.Errorf("%d requests were sent to %s in a minute, want those of one probe", n, bucket)
			}
		}
		store.set(map[string]int{"/bucket/last": 500})
		time.Sleep(2 * time.Minute)
		readPath(t.Context(), c, "bucket/last")
		if n := len(c.outages.buckets["bucket"].failing); n != 1 {
			t.Errorf("%d objects are remembered as failing, want the last", n)
		}
		store.set(nil)
	})
}
