package faults

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// If the files of a split do not respond, each read fails in time, and other splits are read as
// usual. Afterwards, batches are read and no number is left out. The reads take five seconds to
// fail, because a read that does not hang may take seconds on a busy machine.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for _, access := range []string{"pread", "remap", "advise"} {
		t.Run(access, func(t *testing.T) {
			if access != "pread" {
				e2e.SkipIfShort(t)
			}
			t.Parallel()
			const readers = 30 // more than the permits of a split
			// Even on a busy machine, reads that do not hang take less time.
			const timeout = 5 * time.Second
			d := e2e.NewFaultyFile(t, e2e.TokensOfVersion(0, 2_000_000))
			intact := e2e.Write(t, filepath.Join(t.TempDir(), "well.bin"), e2e.TokensOfVersion(2, changeTokens))
			flags := []string{"-c", "/dev/null", "--set", "splits.train.tokens=" + d.Path, "--set", "splits.well.tokens=" + intact, "--set", "memory.access=" + access}
			m := e2e.Mount(t, append(flags, "--set", fmt.Sprint("mount.timeout=", timeout))...)
			want := e2e.Digests(t, "train", 0, readers+3, flags...)
			e2e.Equal(t, "batch 0", e2e.FileDigest(t, m, "train/next"), want[0])
			serving := m.Worker(t)

			r := startReaderProcess(t, m.Dir, "keeps:well/next", "numbered:well/batch", "preads:well/batches.bin", "maps:well/batches.npy")
			d.Set(t, e2e.Hang)
			began := time.Now()
			failing := make(chan struct{})
			go func() {
				defer close(failing)
				checkReadsFail(t, m, readers)
			}()
			defer testwait.For(t, "the errors", failing) // even if a wait before fails
			d.AwaitHanging(t, 1)
			r.awaitMore(t, 100)
			r.nextRound(t, "pause", 1) // leaves the processors to other tests
			testwait.For(t, "the errors", failing)
			e2e.CheckDuration(t, "the slowest error", time.Since(began), 2*timeout)
			r.nextRound(t, "go", 10)
			e2e.AwaitDoctor(t, m.Dir, "train is stuck: its token files have not answered for")
			gaveUp := fmt.Sprint("did not respond within ", timeout)
			if s := e2e.StatusOf(t, m); !strings.Contains(s.Sequences["train"].LastError, gaveUp) || s.Sequences["well"].Errors > 0 {
				t.Errorf("status.json is %+v, want the error %q of train and none of well", s.Sequences, gaveUp)
			}
			if n := strings.Count(m.Out.String(), "sequence=train errno"); n == 0 || n > 3 {
				t.Errorf("the log has %d lines about failed requests, want 1 to 3:\n%s", n, m.Out)
			}
			for _, l := range r.finish(t) {
				if strings.HasPrefix(l.output, "errno") {
					t.Errorf("a reader of the other split got an error: %+v", l)
				}
			}

			d.Set(t, e2e.Healthy)
			e2e.AwaitRun(t, "head", "-c1", m.Path("train/batch/1"))
			// The number of a failed read may be lost if a later number was taken meanwhile.
			cursor := m.NextNumber(t, "train")
			if cursor > 1+readers/3 {
				t.Errorf("the cursor is %d after one batch and %d errors, want less", cursor, readers/3)
			}
			for k := cursor; k < cursor+2; k++ {
				e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.FileDigest(t, m, "train/next"), want[k])
			}
			e2e.Equal(t, "the worker", m.Worker(t), serving)
			// When the doctor reports this, no handler of a timed-out read is left that could count
			// a batch.
			e2e.AwaitDoctor(t, m.Dir, "is mounted, served by process ")
			const delivered = 4 // batch 0, batch/1, and two batches of next
			e2e.CheckOutput(t, fmt.Sprintf("\nbatchfs_batches_total{settings=\"\",split=\"train\"} %d\n", delivered), "cat", m.Path("metrics"))
		})
	}
}

// Many readers of the same windows, of a file that stays mapped and whose pages are dropped, fail
// in time if the disk hangs, and do not hold up others.
func TestSameWindowsOfAHangingDisk(t *testing.T) {
	t.Parallel()
	d := e2e.NewFaultyFile(t, e2e.TokensOfVersion(0, 2_000_000))
	intact := e2e.Write(t, filepath.Join(t.TempDir(), "well.bin"), e2e.TokensOfVersion(2, changeTokens))
	m := e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.Path, "--set", "splits.well.tokens="+intact,
		"--set", "memory.access=advise", "--set", "memory.page_cache=drop", "--set", "mount.timeout=5s")
	want := e2e.FileDigest(t, m, "train/batch/1")
	serving := m.Worker(t)
	d.Set(t, e2e.Hang)
	var running sync.WaitGroup
	for range 64 {
		running.Go(func() {
			if out, err := e2e.Command(t, "dd", "if="+m.Path("train/batch/1"), "of=/dev/null", "iflag=direct").CombinedOutput(); err == nil || !strings.Contains(string(out), "Connection timed out") {
				t.Errorf("error %v, output %s, want a timeout", err, out)
			}
		})
	}
	d.AwaitHanging(t, 1)
	e2e.Run(t, "cat", m.Path("well/next"), m.Path("status.json"))
	testwait.End(t, "the timeouts", running.Wait)
	d.Set(t, e2e.Healthy)
	e2e.AwaitRun(t, "cat", m.Path("train/batch/1"))
	e2e.Equal(t, "batch 1", e2e.FileDigest(t, m, "train/batch/1"), want)
	e2e.Equal(t, "the worker", m.Worker(t), serving)
}

// checkReadsFail reads n files of train, whose token files do not respond. Each read must fail,
// except reads of info.json, which may be cached.
func checkReadsFail(t *testing.T, m *e2e.Mounted, n int) {
	t.Helper()
	var running sync.WaitGroup
	for i := range n {
		file := []string{"next", "next.npy", fmt.Sprint("batch/", 100+i), "batches.bin", fmt.Sprintf("seed=%d/next", i), "info.json"}[i%6]
		running.Go(func() {
			out, _ := e2e.Command(t, "head", "-c", "5000", m.Path("train/"+file)).CombinedOutput()
			failed := strings.Contains(string(out), "Connection timed out") || strings.Contains(string(out), "Input/output error")
			if !failed && file != "info.json" {
				t.Errorf("reading %s: %.80q, want a timeout or an I/O error", file, out)
			}
		})
	}
	running.Wait() // each command has a limit
}

// If a worker waits for a disk and cannot even be killed, another one takes over, and the mount can
// still be ended. The restart waits five seconds for a file that hangs.
func TestUnkillable(t *testing.T) {
	t.Parallel()
	d := e2e.NewFaultyFile(t, e2e.TokensOfVersion(0, 2_000_000))
	well := e2e.Write(t, filepath.Join(t.TempDir(), "well.bin"), e2e.TokensOfVersion(2, changeTokens))
	m := e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.Path, "--set", "splits.well.tokens="+well, "--set", "mount.grace=1s", "--set", "mount.timeout=1h")
	d.Set(t, e2e.Hang)
	cat := exec.Command("cat", m.Path("train/next"))
	ended := e2e.Begin(t, cat)
	d.AwaitHanging(t, 1)
	// m.Worker misses a process whose first thread has ended while another one hangs.
	first := e2e.StatusOf(t, m).PID
	e2e.CheckFails(t, "train cannot be read: no answer in ", e2e.PlainBatchfs, "restart", m.Dir)
	e2e.Equal(t, "the same process still serves", e2e.StatusOf(t, m).PID == first, false)
	e2e.Read(t, "read", m.Path("well/next"))
	d.AwaitHanging(t, 3) // the read in both processes, and one of the restart
	began := time.Now()
	e2e.Run(t, e2e.PlainBatchfs, "unmount", "--force", m.Dir)
	e2e.AwaitExit(t, cat, ended)
	m.AwaitEnd(t)
	e2e.CheckDuration(t, "the end of the mount", time.Since(began), 10*time.Second)
}
