package store

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

// outages remembers which parts of a store are down. A read of such a part fails immediately,
// not after its whole timeout.
//
//	outcome of a request             counts against
//	no answer                        the endpoint
//	503, 429 or SlowDown             the bucket
//	any other temporary error        the object, or the bucket if several of its objects have
//	                                 failed and none has succeeded since
//	data, or a permanent error       nothing: the object, its bucket and the endpoint are up
//
// Any answer shows that the endpoint is up. A read retries until its time is over. The part
// against which its last request counts is down then. If that part was up shortly before, a smaller
// one is down instead: the bucket or the object. A part stays down until a request shows that it is
// up. One probe for each bucket sends such requests.
//
// The endpoint can seem down because one bucket has a host of its own. Unless the last request
// to a bucket got no answer, the bucket is therefore still tried, once for each read.
type outages struct {
	probe   func(bucket string) // requests the suspects of a bucket until there are none
	timeout time.Duration       // time after which an object that failed once is forgotten

	mu       sync.Mutex // guards the fields below, and the buckets
	endpoint health
	buckets  map[string]*bucket // buckets by name
}

// A health is the state of one part: the endpoint, a bucket or an object.
type health struct {
	failing time.Time // time of its first failure since it was last up; zero: none
	cause   error     // reason why it is down; nil if it is up
}

func (h *health) fail() { h.failing = cmp.Or(h.failing, time.Now()) }

type bucket struct {
	health
	silent  bool                      // whether its last request got no answer
	failing map[string]*failingObject // failing objects by key
	good    *Object                   // last object that was up; nil if none was
	probed  bool                      // whether a probe is running
}

type failingObject struct {
	health
	object Object
	inRow  bool      // whether no object of the bucket has been up since this one failed
	last   time.Time // time of its last failure
}

// several is how many objects of a bucket must fail, with none up in between, to count against the
// bucket.
const several = 3

// A culprit is the part of a store that a failed request counts against. Larger culprits contain
// smaller ones.
type culprit int

const (
	theObject culprit = iota
	theBucket
	theEndpoint
)

func culpritOf(err error, answered bool) culprit {
	var response minio.ErrorResponse
	switch {
	case !answered:
		return theEndpoint
	case errors.As(err, &response) && (response.Code == "SlowDown" ||
		response.StatusCode == http.StatusServiceUnavailable || response.StatusCode == http.StatusTooManyRequests):
		return theBucket
	}
	return theObject
}

func (s *outages) bucket(name string) *bucket {
	b := s.buckets[name]
	if b == nil {
		b = &bucket{failing: map[string]*failingObject{}}
		s.buckets[name] = b
	}
	return b
}

// check returns an error if the object, its bucket or the endpoint is down. If once is true, the
// endpoint seems down, but the bucket may be tried with a single request.
func (s *outages) check(endpoint string, o Object) (once bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(o.Bucket)
	f := b.failing[o.Key]
	switch {
	case s.endpoint.cause != nil && b.silent:
		return false, fmt.Errorf("the store %s does not answer: %w", endpoint, s.endpoint.cause)
	case b.cause != nil:
		return false, fmt.Errorf("the bucket %s is down: %w", o.Bucket, b.cause)
	case f != nil && f.cause != nil:
		return false, fmt.Errorf("the object is down: %w", f.cause)
	}
	return s.endpoint.cause != nil, nil
}

// succeeded records that an object is up, and with it its bucket and the endpoint.
func (s *outages) succeeded(o Object) {
	s.answered(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(o.Bucket)
	b.health, b.good = health{}, &o
	delete(b.failing, o.Key)
	for _, f := range b.failing {
		f.inRow = false
	}
}

// answered records that the endpoint is up. If it seemed down, the buckets without an answer are down
// instead.
func (s *outages) answered(o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bucket(o.Bucket).silent = false
	cause := s.endpoint.cause
	s.endpoint = health{}
	if cause == nil {
		return
	}
	for _, b := range s.buckets {
		if b.silent {
			b.cause = cause
		}
	}
	s.startProbes()
}

// failed records that a request for an object failed.
func (s *outages) failed(o Object, by culprit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(o.Bucket)
	if by == theEndpoint {
		b.silent = true
		s.endpoint.fail()
	}
	b.fail()
	// A read that is not over fails more often than this. Without it, an object stays failing until
	// it is read again.
	maps.DeleteFunc(b.failing, func(_ string, f *failingObject) bool { return f.cause == nil && time.Since(f.last) > s.timeout })
	f := cmp.Or(b.failing[o.Key], &failingObject{object: o})
	b.failing[o.Key] = f
	f.fail()
	f.inRow, f.last = true, time.Now()
	s.startProbes()
}

// gaveUp records that a read failed until its time was over, and that its last request counts
// against by. If by has been failing for atLeast, it is now down; otherwise the next smaller part
// is, under the same condition.
func (s *outages) gaveUp(o Object, by culprit, cause error, atLeast time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(o.Bucket)
	inRow := 0
	for _, f := range b.failing {
		if f.inRow {
			inRow++
		}
	}
	if by == theObject && inRow >= several {
		by = theBucket
	}
	f := cmp.Or(b.failing[o.Key], new(failingObject)) // forgotten after a while
	parts := []*health{&f.health, &b.health, &s.endpoint}
	for ; by >= theObject; by-- {
		if p := parts[by]; !p.failing.IsZero() && time.Since(p.failing) >= atLeast {
			p.cause = cause
			break
		}
	}
	s.startProbes()
}

// suspects returns the objects that the probe of a bucket requests next. If there are none, nothing
// is down, and the probe ends. The caller holds mu.
func (s *outages) suspects(b *bucket) (objects []Object) {
	whole := b.cause != nil || s.endpoint.cause != nil && b.silent // the bucket is down with all of its objects
	for _, f := range b.failing {
		switch {
		case whole:
			// Any object will do. A good one is tried too, because the failing ones may stay down.
			objects = append(objects, f.object)
			if b.good != nil {
				objects = append(objects, *b.good)
			}
			return objects
		case f.cause != nil:
			objects = append(objects, f.object)
		}
	}
	return objects
}

// toProbe returns the suspects of a bucket, and records that its probe ends if there are none.
func (s *outages) toProbe(name string) []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(name)
	objects := s.suspects(b)
	b.probed = len(objects) > 0
	return objects
}

// startProbes starts a probe of each bucket that needs one and has none. The caller holds mu.
func (s *outages) startProbes() {
	for name, b := range s.buckets {
		if !b.probed && len(s.suspects(b)) > 0 {
			b.probed = true
			go s.probe(name)
		}
	}
}
