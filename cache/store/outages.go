package store

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

// outages remembers which parts of a store are down. A read of such a part fails immediately, because it would wait for all of its
// time first.
//
//	a request ends with              it counts against
//	no answer                        the endpoint
//	503, 429 or SlowDown             the bucket
//	any other error that may pass    the object, or the bucket if several of its objects have failed and none has succeeded since
//	data, or an error that stays     nothing: the object, its bucket and the endpoint are up
//
// Any answer shows that the endpoint is up. A read retries until its time is over. What its last request counts against is down then,
// unless that has been up during the read: in that case a smaller part is to blame, the bucket or the object. A part stays down until
// a request shows that it is up. One probe for each bucket sends such requests.
//
// The endpoint can seem down because one bucket has a host of its own. A bucket that has not failed to answer is therefore still
// tried, once for each read.
type outages struct {
	probe func(bucket string) // asks for suspects until there are none

	mu       sync.Mutex // guards the fields below, and those of buckets
	endpoint health
	buckets  map[string]*bucket
}

// A health is that of one part: the endpoint, a bucket or an object.
type health struct {
	failing time.Time // when it first failed after it was last up; zero if it has not failed since
	cause   error     // why it is down; nil if it is up
}

func (h *health) fail() {
	if h.failing.IsZero() {
		h.failing = time.Now()
	}
}

type bucket struct {
	health
	silent  bool                      // its last request got no answer
	failing map[string]*failingObject // by key
	good    *Object                   // the last object that was up; nil if none was
	probed  bool                      // a probe is running
}

type failingObject struct {
	health
	object Object
	inRow  bool // no object of the bucket has been up since it failed
}

// several is how many objects must fail in a row to count against their bucket.
const several = 3

// A culprit is what a failed request counts against. Larger culprits contain smaller ones.
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
	if s.buckets == nil {
		s.buckets = map[string]*bucket{}
	}
	b := s.buckets[name]
	if b == nil {
		b = &bucket{failing: map[string]*failingObject{}}
		s.buckets[name] = b
	}
	return b
}

// check returns an error if the object, its bucket or the endpoint is down. once says that a single request may be sent all the same.
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

// succeeded notes that an object is up.
func (s *outages) succeeded(o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer(o.Bucket)
	b := s.bucket(o.Bucket)
	b.health, b.good = health{}, &o
	delete(b.failing, o.Key)
	for _, f := range b.failing {
		f.inRow = false
	}
}

// answered notes that the endpoint is up.
func (s *outages) answered(o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer(o.Bucket)
}

// answer is answered for a caller that holds mu. If other buckets gave the impression that the endpoint is down, they are.
func (s *outages) answer(name string) {
	s.bucket(name).silent = false
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

// failed notes that a request for an object failed.
func (s *outages) failed(o Object, by culprit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(o.Bucket)
	if by == theEndpoint {
		b.silent = true
		s.endpoint.fail()
	}
	b.fail()
	f := b.failing[o.Key]
	if f == nil {
		f = &failingObject{object: o}
		b.failing[o.Key] = f
	}
	f.fail()
	f.inRow = true
	s.startProbes()
}

// gaveUp notes that a read failed for all of its time: a part that has been failing for at least the given duration is down.
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
	parts := []*health{nil, &b.health, &s.endpoint}
	if f := b.failing[o.Key]; f != nil {
		parts[theObject] = &f.health
	}
	for ; by >= theObject; by-- {
		if p := parts[by]; p != nil && !p.failing.IsZero() && time.Since(p.failing) >= atLeast {
			p.cause = cause
			break
		}
	}
	s.startProbes()
}

// suspects returns the objects that a probe of a bucket asks for next. If nothing is down, the probe ends.
func (s *outages) suspects(name string) (objects []Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(name)
	whole := s.isDown(b)
	for _, f := range b.failing {
		switch {
		case whole: // any object will do, also a good one, because the others may stay down
			objects = append(objects, f.object)
			if b.good != nil {
				objects = append(objects, *b.good)
			}
			return objects
		case f.cause != nil:
			objects = append(objects, f.object)
		}
	}
	b.probed = len(objects) > 0
	return objects
}

// isDown reports whether no object of a bucket can be read. The caller holds mu.
func (s *outages) isDown(b *bucket) bool {
	return b.cause != nil || s.endpoint.cause != nil && b.silent
}

// startProbes starts a probe of each bucket that needs one and has none. The caller holds mu.
func (s *outages) startProbes() {
	for name, b := range s.buckets {
		down := s.isDown(b)
		for _, f := range b.failing {
			down = down || f.cause != nil
		}
		if down && !b.probed {
			b.probed = true
			go s.probe(name)
		}
	}
}
