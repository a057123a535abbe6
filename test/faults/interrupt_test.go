package faults

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// While the file system of the tokens interrupts most requests, no read fails, and neither does a
// page fault of a mapping.
func TestInterruptedFileSystem(t *testing.T) {
	t.Parallel()
	const shards, batches = 4, 8
	source := t.TempDir()
	for i := range shards {
		e2e.Write(t, filepath.Join(source, fmt.Sprintf("train-%d.bin", i)), e2e.TokensOfVersion(i, 200_000))
	}
	settings := []string{"-c", "/dev/null", "--set", "batch.batch_size=12", "--set"}
	want := e2e.Digests(t, "train", 0, batches, append(settings, "splits.train.tokens="+source+"/*.bin")...)
	for _, access := range []string{"remap", "advise", "pread"} {
		t.Run(access, func(t *testing.T) {
			t.Parallel()
			slow := e2e.NewSlowFS(t, source)
			m := e2e.Mount(t, append(settings, "splits.train.tokens="+slow.Dir+"/*.bin", "--set", "memory.access="+access)...)
			before := slow.Count(t, "read")
			for _, request := range []string{"lookup", "getattr", "open"} {
				slow.Interrupt(t, request, 1, 2)
			}
			// Five interruptions in a row affect the read-ahead and two attempts to map a page.
			slow.Interrupt(t, "read", 5, 6)
			for k := range batches {
				e2e.Equal(t, fmt.Sprint("batch ", k), e2e.FileDigest(t, m, fmt.Sprint("train/batch/", k)), want[k])
			}
			e2e.Equal(t, "errors", e2e.StatusOf(t, m).Sequences["train"].Errors, 0)
			if after := slow.Count(t, "read"); after < before+10*batches {
				t.Errorf("the files had %d read requests before %d batches and %d after, want 10 for each batch: the page cache had most of them", before, batches, after)
			}
		})
	}
}

// A reader that waits for a disk ends when it is killed, long before mount.timeout, even if another
// signal or another worker's death interrupted its read before. Signals with handlers do not end
// it. The batches of killed readers are not lost, and do not count as failed.
func TestKilledReaders(t *testing.T) {
	t.Parallel()
	type reader struct {
		split   string
		signals []syscall.Signal
		disk    *e2e.FaultyFile
		cmd     *exec.Cmd
		ended   <-chan struct{}
	}
	killed := &reader{split: "killed", signals: []syscall.Signal{syscall.SIGKILL}}
	terminated := &reader{split: "terminated", signals: []syscall.Signal{syscall.SIGTERM}}
	later := &reader{split: "later", signals: []syscall.Signal{syscall.SIGURG, syscall.SIGPROF, syscall.SIGKILL}}
	takenOver := &reader{split: "taken-over", signals: []syscall.Signal{syscall.SIGURG}}
	alive := &reader{split: "alive", signals: []syscall.Signal{syscall.SIGURG, syscall.SIGPROF}}
	all := []*reader{killed, terminated, later, takenOver, alive}
	flags := []string{"-c", "/dev/null", "--set", "mount.timeout=1h", "--set", "memory.access=pread"}
	for _, r := range all {
		r.disk = e2e.NewFaultyFile(t, e2e.TokensOfVersion(0, 200_000))
		flags = append(flags, "--set", "splits."+r.split+".tokens="+r.disk.Path)
	}
	m := e2e.Mount(t, flags...)
	m.AwaitStandby(t)
	send := func(r *reader, sig syscall.Signal) {
		t.Helper()
		e2e.NoError(t, r.cmd.Process.Signal(sig))
		// A signal with a handler stays pending, because the reader waits.
		e2e.Await(t, fmt.Sprint(sig, " to arrive"), func() (any, bool) {
			pending := e2e.ProcNumber(r.cmd.Process.Pid, "ShdPnd")
			return pending, pending != 0 || e2e.Ended(r.cmd.Process.Pid)
		})
	}
	for _, r := range all {
		r.disk.Set(t, e2e.Hang)
		r.cmd = exec.Command(e2e.Python, "-c", `
import os, signal, sys
for sig in signal.SIGURG, signal.SIGPROF:
    signal.signal(sig, lambda *_: None)
fd = os.open(sys.argv[1], os.O_RDONLY)
sys.exit(len(os.read(fd, 1 << 20)) == 0)`, m.Path(r.split+"/next"))
		r.ended = e2e.Begin(t, r.cmd)
		r.disk.AwaitHanging(t, 1)
		for _, sig := range r.signals {
			send(r, sig)
		}
	}
	for _, r := range []*reader{killed, terminated, later} {
		e2e.AwaitExit(t, r.cmd, r.ended)
	}
	worker := m.KillServing(t, syscall.SIGKILL)
	e2e.Equal(t, "the killed process still serves", e2e.StatusOf(t, m).PID == worker, false)
	send(takenOver, syscall.SIGKILL)
	e2e.AwaitExit(t, takenOver.cmd, takenOver.ended)
	for _, r := range all {
		r.disk.Set(t, e2e.Healthy)
	}
	e2e.AwaitExit(t, alive.cmd, alive.ended)
	for _, r := range all {
		e2e.Equal(t, "the reader succeeded: "+r.split, r.cmd.ProcessState.Success(), r == alive)
		cursor := 0
		if r == alive {
			cursor = 1
		}
		e2e.Equal(t, "the cursor after the reader: "+r.split, m.NextNumber(t, r.split), cursor)
		e2e.Equal(t, "errors of the reader: "+r.split, e2e.StatusOf(t, m).Sequences[r.split].Errors, 0)
	}
	if log := m.Out.String(); strings.Contains(log, "a request failed") {
		t.Errorf("the log reports failed requests:\n%s", log)
	}
}
