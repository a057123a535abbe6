package faults

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// Readers of tokens that do not come get an error in time, again and again, while other splits are read as ever. When they come again, so do the
// batches, and none of them is left out.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for _, access := range []string{"pread", "remap", "advise"} {
		t.Run(access, func(t *testing.T) {
			if access != "pread" {
				e2e.Long(t)
			}
			t.Parallel()
			const readers = 30              // more than may be stuck
			const timeout = 5 * time.Second // also on a busy machine, reads that do not hang take less
			d := e2e.NewFaultyFile(t, e2e.VersionOf(0, 2_000_000))
			intact := e2e.Write(t, filepath.Join(t.TempDir(), "well.bin"), e2e.VersionOf(2, changeTokens))
			flags := []string{"-c", "/dev/null", "--set", "splits.train.tokens=" + d.Path, "--set", "splits.well.tokens=" + intact, "--set", "memory.access=" + access}
			m := e2e.Mount(t, append(flags, "--set", fmt.Sprint("mount.timeout=", timeout))...)
			want := e2e.Lines(t, "train", 0, readers+3, flags...)
			e2e.Equal(t, "batch 0", e2e.Take(t, m, "train/next"), want[0])
			serving := m.Worker(t)

			r := startReaders(t, m.Dir, "keeps:well/next", "numbered:well/batch", "preads:well/batches.bin", "maps:well/batches.npy")
			d.Set(t, e2e.Hang)
			began := time.Now()
			readInVain(t, m, readers)
			e2e.InTime(t, "the slowest error", time.Since(began), 2*timeout)
			r.more(t, 10)
			e2e.AwaitDoctor(t, m.Dir, "train is stuck: its token files have not answered for")
			gaveUp := fmt.Sprint("gave no answer within ", timeout)
			if s := e2e.StatusOf(t, m); !strings.Contains(s.Splits["train"].LastError, gaveUp) || s.Splits["well"].Errors > 0 {
				t.Errorf("%+v", s.Splits)
			}
			if n := strings.Count(m.Out.String(), "sequence=train errno"); n == 0 || n > 3 {
				t.Errorf("the log tells of it %d times:\n%s", n, m.Out)
			}
			for _, l := range r.finish(t) {
				if strings.HasPrefix(l.got, "errno") {
					t.Errorf("another split: %+v", l)
				}
			}

			d.Set(t, e2e.Healthy)
			e2e.Await(t, "the batches to come again", func() bool {
				_, _, err := e2e.Try(t, "head", "-c1", m.Path("train/batch/1"))
				return err == nil
			})
			// A number may be lost with an error, if a later one was taken meanwhile.
			cursor := m.Taken(t, "train")
			if cursor > 1+readers/3 {
				t.Errorf("cursor is %d after one batch and %d errors", cursor, readers/3)
			}
			for k := cursor; k < cursor+2; k++ {
				e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.Take(t, m, "train/next"), want[k])
			}
			e2e.Equal(t, "the worker", m.Worker(t), serving)
			// From here on, no handler of a timed-out read is left that could count a batch.
			e2e.AwaitDoctor(t, m.Dir, "is mounted, served by process ")
			const delivered = 4 // batch 0, batch/1, and two batches from next
			e2e.Says(t, fmt.Sprintf("\nbatchfs_batches_total{settings=\"\",split=\"train\"} %d\n", delivered), "cat", m.Path("metrics"))
		})
	}
}

// readInVain reads files of train that give no answer, n at once, each of which must fail, except info.json, which may have one.
func readInVain(t *testing.T, m *e2e.Mounted, n int) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		file := []string{"next", "next.npy", fmt.Sprint("batch/", 100+i), "batches.bin", fmt.Sprintf("seed=%d/next", i), "info.json"}[i%6]
		all.Go(func() {
			out, _ := e2e.Command(t, "head", "-c", "5000", m.Path("train/"+file)).CombinedOutput()
			failed := strings.Contains(string(out), "Connection timed out") || strings.Contains(string(out), "Input/output error")
			if !failed && file != "info.json" {
				t.Errorf("%s: %.80q", file, out)
			}
		})
	}
	all.Wait()
}

// A mount whose worker cannot even be killed, as it waits for a disk, has another; and it ends.
func TestUnkillable(t *testing.T) {
	t.Parallel()
	d := e2e.NewFaultyFile(t, e2e.VersionOf(0, 2_000_000))
	well := e2e.Write(t, filepath.Join(t.TempDir(), "well.bin"), e2e.VersionOf(2, changeTokens))
	m := e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.Path, "--set", "splits.well.tokens="+well, "--set", "mount.grace=1s", "--set", "mount.timeout=1h")
	d.Set(t, e2e.Hang)
	ended := e2e.Begin(t, e2e.Command(t, "cat", m.Path("train/next")))
	d.Await(t, 1)
	first := e2e.StatusOf(t, m).PID // of its threads, any may be the one that cannot end
	e2e.Fails(t, "train cannot be read: no answer in ", e2e.PlainBatchfs, "restart", m.Dir)
	e2e.Equal(t, "the same process serves", e2e.StatusOf(t, m).PID == first, false)
	e2e.Read(t, "read", m.Path("well/next"))
	d.Await(t, 3) // the same read, in both processes, and one of the restart
	began := time.Now()
	e2e.Run(t, e2e.PlainBatchfs, "unmount", "--force", m.Dir)
	testwait.For(t, "the end", ended)
	m.AwaitEnd(t)
	e2e.InTime(t, "the end", time.Since(began), 10*time.Second)
}
