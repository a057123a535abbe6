// Package testwait bounds the waits of tests: a test that would hang fails, and says what it waited for.
package testwait

import (
	"testing"
	"time"
)

// Limit bounds every wait. A wait that succeeds is much shorter, even on a busy machine. One that reaches the limit is a hang.
const Limit = 5 * time.Minute

// Until waits until ok returns true.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, Limit)
		}
	}
}

// For waits for a value from a channel, or until the channel is closed.
func For[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(Limit):
		t.Fatalf("%s: not within %v", what, Limit)
	}
	return v
}

// End waits until f returns.
func End(t testing.TB, what string, f func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	For(t, what, ended)
}
