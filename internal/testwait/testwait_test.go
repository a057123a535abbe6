package testwait

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A recorder is a test that fails without failing the test around it.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// Each wait ends at its limit or at that of its test, and says what it waited for and what it saw.
func TestLimits(t *testing.T) {
	if !testsAreLimited {
		t.Skip("tests may take longer")
	}
	for _, test := range []struct {
		name  string
		wait  func(t testing.TB)
		after time.Duration // time that the test has had before the wait
		ends  time.Duration
		says  string
	}{
		{"until", func(t testing.TB) { Until(t, "rain", func() (any, bool) { return "sun", false }) }, 0, Limit, "rain: not within 1m30s; saw: sun"},
		{"success", func(t testing.TB) { Success(t, "rain", func() error { return errors.New("sun") }) }, 0, Limit, "rain: not within 1m30s; saw: sun"},
		{"for", func(t testing.TB) { For(t, "rain", make(chan int)) }, 0, Limit, "rain: not within 1m30s; saw:\ngoroutine "},
		{"end", func(t testing.TB) { End(t, "rain", func() { time.Sleep(2 * Limit) }) }, 0, Limit, "rain: not within 1m30s; saw:\ngoroutine "},
		{"end of the test", func(t testing.TB) { For(t, "rain", make(chan int)) }, TestLimit - time.Second, time.Second, "rain: not in the 5m0s that a test may take"},
		{"after the end of the test", func(t testing.TB) { For(t, "rain", make(chan int)) }, 2 * TestLimit, 0, "rain: not in the 5m0s that a test may take"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{TB: t}
				Deadline(r) // starts the clock of the test
				time.Sleep(test.after)
				began, done := time.Now(), make(chan struct{})
				go func() {
					defer close(done)
					test.wait(r)
				}()
				<-done
				if took := time.Since(began); took < test.ends || took > test.ends+time.Second || !strings.HasPrefix(r.said, test.says) {
					t.Errorf("after %v it said %.200q, want %q after %v", took, r.said, test.says, test.ends)
				}
				time.Sleep(2 * Limit) // lets the goroutine of End return
			})
		})
	}
}

// A wait in a cleanup has its time, even if the test has used up its own.
func TestCleanupHasTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() {
			if left := time.Until(Deadline(t)); left != Limit {
				t.Errorf("a cleanup may wait for %v, want %v", left, Limit)
			}
		})
		Deadline(t)
		time.Sleep(2 * TestLimit)
	})
}

// A command that takes too long is killed, and the message names it.
func TestCommandIsKilled(t *testing.T) {
	r := &recorder{TB: t}
	err := command(r, time.Second, "not within a moment", "sleep", []string{"infinity"}).Run()
	if !errors.Is(err, context.DeadlineExceeded) && fmt.Sprint(err) != "signal: killed" || r.said != "the end of [sleep infinity]: not within a moment" {
		t.Errorf("error %v, and it said %q", err, r.said)
	}
}
