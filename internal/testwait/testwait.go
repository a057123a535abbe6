// Package testwait is how tests wait: for a state, a channel, a function or a command. A wait that
// does not end in time fails the test, with what it waited for and what it saw instead.
//
// A wait may take Limit, and a test TestLimit: its clock starts at its first wait, so not before
// t.Parallel returns. Subtests have clocks of their own. A wait in a cleanup may take Limit,
// however long the test took, so that everything is unmounted. With BATCHFS_SOAK=1 or
// BATCHFS_RECIPES=1, tests may take longer, and only waits are limited.
package testwait

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"
)

const (
	// Limit is the longest wait. Waits that succeed are much shorter, even on a busy machine.
	Limit = 90 * time.Second
	// TestLimit is the longest test.
	TestLimit = 5 * time.Minute

	unlimited = 24 * time.Hour
)

var (
	testsAreLimited = os.Getenv("BATCHFS_SOAK") != "1" && os.Getenv("BATCHFS_RECIPES") != "1"

	ends sync.Map // maps the name of a running test to the time at which it must end
)

// timeLeft returns how much time a test has, and how a message says that it is over.
func timeLeft(t testing.TB) (left time.Duration, over string) {
	switch {
	case t.Context().Err() != nil: // the test has ended, and its cleanups run
		return Limit, inLimit
	case !testsAreLimited:
		return unlimited, ""
	}
	end, known := ends.LoadOrStore(t.Name(), time.Now().Add(TestLimit))
	if !known {
		t.Cleanup(func() { ends.Delete(t.Name()) })
	}
	return time.Until(end.(time.Time)), fmt.Sprintf("not in the %v that a test may take", TestLimit)
}

var inLimit = fmt.Sprintf("not within %v", Limit)

// waitLeft is like timeLeft, but for a wait that begins now.
func waitLeft(t testing.TB) (left time.Duration, over string) {
	if left, over = timeLeft(t); left > Limit {
		return Limit, inLimit
	}
	return left, over
}

// Deadline returns when a wait that begins now must end, for SetReadDeadline and the like.
func Deadline(t testing.TB) time.Time {
	left, _ := waitLeft(t)
	return time.Now().Add(left)
}

// Until waits until look reports that what is so. seen describes the current state. The longer
// Until has waited, the less often it looks, because looking may start processes.
func Until(t testing.TB, what string, look func() (seen any, ok bool)) {
	t.Helper()
	left, over := waitLeft(t)
	began := time.Now()
	for end := began.Add(left); ; time.Sleep(min(max(time.Since(began)/16, 5*time.Millisecond), 100*time.Millisecond)) {
		seen, ok := look()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %s; saw: %v", what, over, seen)
		}
	}
}

// Success waits until try returns no error.
func Success(t testing.TB, what string, try func() error) {
	t.Helper()
	Until(t, what, func() (any, bool) {
		err := try()
		return err, err == nil
	})
}

// For returns the next value from a channel, or the zero value if it is closed.
func For[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	left, over := waitLeft(t)
	select {
	case v = <-from:
	case <-time.After(left):
		t.Fatalf("%s: %s; saw:\n%s", what, over, goroutines())
	}
	return v
}

// goroutines returns the stacks of all goroutines, or as many as fit.
func goroutines() []byte {
	stacks := make([]byte, 32<<10)
	return stacks[:runtime.Stack(stacks, true)]
}

// End calls f and waits until it returns.
func End(t testing.TB, what string, f func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	For(t, what, ended)
}

// Command returns a command whose end is a wait: if it takes longer, it is killed, and the test
// fails.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	left, over := waitLeft(t)
	return command(t, left, over, name, args)
}

// Job is like Command, but only the end of the test limits the command. It is for what does the
// work of a test, such as a build, an installation, or a trainer: anything that takes more than ten
// seconds on an idle machine, because a busy one may be eight times slower.
func Job(t testing.TB, name string, args ...string) *exec.Cmd {
	left, over := timeLeft(t)
	return command(t, left, over, name, args)
}

func command(t testing.TB, left time.Duration, over, name string, args []string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), left)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error {
		if ctx.Err() == context.DeadlineExceeded {
			t.Errorf("the end of %s: %s", cmd.Args, over)
		}
		return cmd.Process.Kill()
	}
	cmd.WaitDelay = Limit // a child of the command may hold its pipes
	return cmd
}
