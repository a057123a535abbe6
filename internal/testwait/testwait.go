// Package testwait limits the waits of tests, so that a test that would hang fails with a message.
package testwait

import (
	"testing"
	"time"
)

// Limit is the longest wait. Waits that succeed are much shorter, even on a busy machine.
const Limit = 5 * time.Minute

// Until waits until ok returns true, and fails the test after Limit. what names the condition.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, Limit)
		}
	}
}

// For returns the next value from a channel, or the zero value if it is closed. It fails the test
// after Limit.
func For[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(Limit):
		t.Fatalf("%s: not within %v", what, Limit)
	}
	return v
}

// End calls f and waits until it returns. It fails the test after Limit.
func End(t testing.TB, what string, f func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	For(t, what, ended)
}
