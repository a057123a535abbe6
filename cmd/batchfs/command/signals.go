package command

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

type stopKey struct{} // key of the function behind StopNotifying

// Signals returns the signals that end a command. They include SIGHUP, unless the command was
// started with nohup.
func Signals() []os.Signal {
	list := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	// Notify would also catch a signal that whoever started this process wants to be ignored.
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

// UntilSignal returns a context that ends with the first of [Signals]. From then on, signals have
// their default action again, so a second signal kills the process.
func UntilSignal(ctx context.Context) context.Context {
	first := make(chan os.Signal, 1)
	signal.Notify(first, Signals()...)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, ok := <-first; ok {
			signal.Stop(first)
			cancel()
		}
	}()
	return context.WithValue(ctx, stopKey{}, sync.OnceFunc(func() {
		signal.Stop(first)
		close(first)
		<-done
	}))
}

// StopNotifying makes further signals no longer end ctx, a context of UntilSignal, so that others
// can handle them. If a signal has arrived before, ctx has ended when StopNotifying returns.
func StopNotifying(ctx context.Context) { ctx.Value(stopKey{}).(func())() }

// ErrInterrupted is the error of a command that a signal has ended.
var ErrInterrupted = errors.New("interrupted")

// UntilInterrupted runs f and returns its error. If ctx ends first, it returns ErrInterrupted and
// leaves f running, because f may be stuck on a disk that does not answer.
func UntilInterrupted(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ErrInterrupted
	}
}

// Interruptible wraps the run function of a command so that the first signal ends the command, even
// if it is stuck in a system call.
func Interruptible(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return UntilInterrupted(cmd.Context(), func() error { return run(cmd, args) })
	}
}
