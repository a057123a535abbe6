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

// outages remembers which parts of a store are down: the endpoint, a bucket or an object. Reads of
// them fail immediately, instead of after their whole timeout.
//
//	outcome of a request             counts against
//	no answer                        the endpoint
//	503, 429 or SlowDown             the bucket
//	any other temporary error        the object, or the bucket if several of its objects have
//	                                 failed and none has succeeded since
//	data, or a permanent error       nothing: the object, its bucket and the endpoint are up
//
// When a read gives up, the part that its last request counts against is down. If that part was up
// shortly before, a smaller part is down instead: the bucket or the object. The part stays down
// until a request shows that it is up; a probe for each bucket sends such requests. Any answer
// shows that the endpoint is up.
//
// The endpoint can seem down because one bucket has a host name of its own. A bucket whose last
// request got an answer is therefore still tried, once for each read.
type outages struct {
	probe   func(bucket string) // sends requests until nothing in the bucket is down
	timeout time.Duration       // age at which the failure of an object is forgotten

	mu       sync.Mutex // guards the fields below and their contents
	endpoint health
	buckets  map[string]*bucket
}

// A health is the state of the endpoint, of a bucket, or of an object.
type health struct {
	failingSince time.Time // zero if it has not failed since its last success
	cause        error     // error that took it down; nil if it is up
}

func (h *health) fail() { h.failingSince = cmp.Or(h.failingSince, time.Now()) }

type bucket struct {
	health
	silent         bool // whether its last request got no answer
	failing        map[string]*failingObject
	lastGoodObject *Object // object that last succeeded; nil if none has
	hasProbe       bool    // whether a goroutine runs probe
}

type failingObject struct {
	health
	object             Object
	failedSinceSuccess bool // whether it failed after the last success in its bucket
	lastFailure        time.Time
}

// minFailedObjects is how many objects of a bucket must fail, with no success in between, to count
// against the bucket.
const minFailedObjects = 3

// A culprit is the part of a store that a failed request counts against. A greater culprit contains
// the lesser ones.
type culprit int

const (
	culpritObject culprit = iota
	culpritBucket
	culpritEndpoint
)

func culpritOf(err error, answered bool) culprit {
	var response minio.ErrorResponse
	switch {
	case !answered:
		return culpritEndpoint
	case errors.As(err, &response) && (response.Code == "SlowDown" ||
		response.StatusCode == http.StatusServiceUnavailable || response.StatusCode == http.StatusTooManyRequests):
		return culpritBucket
	}
	return culpritObject
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
// endpoint seems down, but a single request to the bucket is allowed.
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

// recordAnswer records that the endpoint is up. If it was down, the buckets that do not answer are
// now down instead. If ok is true, the object and its bucket are up too.
func (s *outages) recordAnswer(o Object, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(o.Bucket)
	b.silent = false
	if ok {
		b.health, b.lastGoodObject = health{}, &o
		delete(b.failing, o.Key)
		for _, f := range b.failing {
			f.failedSinceSuccess = false
		}
	}
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

// recordFailure records a failed request that counts against blamed.
func (s *outages) recordFailure(o Object, blamed culprit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(o.Bucket)
	if blamed == culpritEndpoint {
		b.silent = true
		s.endpoint.fail()
	}
	b.fail()
	// Forget objects that are no longer read: a read in progress fails more often than this.
	maps.DeleteFunc(b.failing, func(_ string, f *failingObject) bool { return f.cause == nil && time.Since(f.lastFailure) > s.timeout })
	f := cmp.Or(b.failing[o.Key], &failingObject{object: o})
	b.failing[o.Key] = f
	f.fail()
	f.failedSinceSuccess, f.lastFailure = true, time.Now()
	s.startProbes()
}

// recordGiveUp records that a read gave up, and that its last request counts against blamed. Of
// blamed and the smaller parts, the largest that has been failing for atLeast is now down.
func (s *outages) recordGiveUp(o Object, blamed culprit, cause error, atLeast time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(o.Bucket)
	inRow := 0
	for _, f := range b.failing {
		if f.failedSinceSuccess {
			inRow++
		}
	}
	if blamed == culpritObject && inRow >= minFailedObjects {
		blamed = culpritBucket
	}
	f := cmp.Or(b.failing[o.Key], new(failingObject)) // its failures may have been forgotten
	parts := []*health{&f.health, &b.health, &s.endpoint}
	for ; blamed >= culpritObject; blamed-- {
		if p := parts[blamed]; !p.failingSince.IsZero() && time.Since(p.failingSince) >= atLeast {
			p.cause = cause
			break
		}
	}
	s.startProbes()
}

// suspects returns the objects for the next probe of a bucket. If there are none, nothing in it is
// down. The caller holds mu.
func (s *outages) suspects(b *bucket) (objects []Object) {
	whole := b.cause != nil || s.endpoint.cause != nil && b.silent
	for _, f := range b.failing {
		switch {
		case whole:
			// Any object will do. A good one is requested too, because the failing one may stay
			// down.
			objects = append(objects, f.object)
			if b.lastGoodObject != nil {
				objects = append(objects, *b.lastGoodObject)
			}
			return objects
		case f.cause != nil:
			objects = append(objects, f.object)
		}
	}
	return objects
}

// toProbe returns the suspects of a bucket. If there are none, it records that the probe ends.
func (s *outages) toProbe(name string) []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.bucket(name)
	objects := s.suspects(b)
	b.hasProbe = len(objects) > 0
	return objects
}

// startProbes starts a probe for each bucket that needs one. The caller holds mu.
func (s *outages) startProbes() {
	for name, b := range s.buckets {
		if !b.hasProbe && len(s.suspects(b)) > 0 {
			b.hasProbe = true
			go s.probe(name)
		}
	}
}
