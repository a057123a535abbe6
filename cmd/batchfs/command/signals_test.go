package command

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// A signal that arrived before StopNotifying has ended the context, so a supervisor that takes over
// does not miss it.
func TestStopNotifying(t *testing.T) {
	for range 1000 {
		ctx := UntilSignal(context.Background())
		arrived := make(chan os.Signal, 1)
		signal.Notify(arrived, syscall.SIGTERM)
		syscall.Kill(os.Getpid(), syscall.SIGTERM)
		<-arrived
		signal.Stop(arrived) // waits until other channels have it, too
		if StopNotifying(ctx); ctx.Err() == nil {
			t.Fatal("the signal is lost")
		}
	}
	ctx := UntilSignal(context.Background())
	if StopNotifying(ctx); ctx.Err() != nil {
		t.Error("without a signal, the context has ended")
	}
}
