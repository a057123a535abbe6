package test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Who reads tokens that do not come gets an error in time, again and again, while other splits are read as ever; when they come
// again, so do the batches, none of them left out.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for _, access := range []string{"pread", "remap", "advise"} {
		t.Run(access, func(t *testing.T) {
			if access != "pread" {
				long(t)
			}
			const readers = 30              // more than may be stuck
			const timeout = 3 * time.Second // also on a busy machine, reads that do not hang take less
			content := versionOf(0, 2_000_000)
			d, intact := newDouble(t, content), filepath.Join(t.TempDir(), "well.bin")
			write(t, intact, versionOf(2, changeTokens))
			flags := []string{"-c", "/dev/null", "--set", "splits.train.tokens=" + d.path, "--set", "splits.well.tokens=" + intact, "--set", "memory.access=" + access}
			m := mount(t, append(flags, "--set", fmt.Sprint("mount.timeout=", timeout))...)
			want := lines(t, "train", 0, readers+3, flags...)
			reads := func(name string) string { return read(t, "read", m.path(name))[0] }
			if got := reads("train/next"); got != want[0] {
				t.Fatalf("batch 0 is %s, want %s", got, want[0])
			}
			serving := m.worker(t)

			r := startReaders(t, m.dir, "keeps:well/next", "numbered:well/batch", "preads:well/batches.bin", "maps:well/batches.npy")
			d.set(t, hang)
			type result struct {
				file, says string
				took       time.Duration
			}
			results := make(chan result)
			for i := range readers {
				go func() {
					file := []string{"next", "next.npy", fmt.Sprint("batch/", 100+i), "batches.bin", fmt.Sprintf("seed=%d/next", i), "info.json"}[i%6]
					began := time.Now()
					out, _ := command(t, "head", "-c", "5000", m.path("train/"+file)).CombinedOutput()
					results <- result{file, string(out), time.Since(began)}
				}()
			}
			var slowest result
			for range readers {
				got := <-results
				failed := strings.Contains(got.says, "Connection timed out") || strings.Contains(got.says, "Input/output error")
				if !failed && got.file != "info.json" {
					t.Errorf("%s: %.80q", got.file, got.says)
				}
				if got.took > slowest.took {
					slowest = got
				}
			}
			inTime(t, slowest.file, slowest.took, 3*timeout) // the kernel asks twice for what it reads ahead
			from := time.Now()
			r.more(t, 10)
			inTime(t, "10 reads of each kind of another split", time.Since(from), 5*time.Second)
			doctorSays := func(want string, well bool) bool {
				out, _, err := try(t, plainBatchfs, "doctor", "--set", "splits.well.tokens="+intact, "-c", "/dev/null", m.dir)
				return strings.Contains(out, want) && (err == nil) == well
			}
			await(t, "the doctor to see that", func() bool {
				return doctorSays("train is stuck: its token files have not answered for", false)
			})
			gaveUp := fmt.Sprint("gave no answer within ", timeout)
			if s := statusOf(t, m); !strings.Contains(s.Splits["train"].LastError, gaveUp) || s.Splits["well"].Errors > 0 {
				t.Errorf("%+v", s.Splits)
			}
			if n := strings.Count(m.out.String(), "sequence=train errno"); n == 0 || n > 3 {
				t.Errorf("the log tells of it %d times:\n%s", n, m.out)
			}
			for _, l := range r.finish(t) {
				if strings.HasPrefix(l.got, "errno") {
					t.Errorf("another split: %+v", l)
				}
			}

			d.set(t, healthy)
			await(t, "the batches to come again", func() bool {
				_, _, err := try(t, "head", "-c1", m.path("train/batch/1"))
				return err == nil
			})
			// A number may be lost with an error, if a later one was taken meanwhile.
			cursor, err := strconv.Atoi(m.cursor(t, "train"))
			noError(t, err)
			if cursor > 1+readers/3 {
				t.Errorf("cursor is %d after one batch and %d errors", cursor, readers/3)
			}
			for k := cursor; k < cursor+2; k++ {
				if got := reads("train/next"); got != want[k] {
					t.Errorf("batch %d is %s, want %s", k, got, want[k])
				}
			}
			if m.worker(t) != serving {
				t.Errorf("process %d serves, and %d did", m.worker(t), serving)
			}
			await(t, "the doctor to see that all is well", func() bool { return doctorSays("is mounted, served by process ", true) })
		})
	}
}

// A mount whose worker cannot even be killed, as it waits for a disk, has another; and it ends.
func TestUnkillable(t *testing.T) {
	t.Parallel()
	d := newDouble(t, versionOf(0, 2_000_000))
	well := filepath.Join(t.TempDir(), "well.bin")
	write(t, well, versionOf(2, changeTokens))
	m := mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.path, "--set", "splits.well.tokens="+well, "--set", "mount.grace=1s", "--set", "mount.timeout=1h")
	d.set(t, hang)
	reader := command(t, "cat", m.path("train/next"))
	noError(t, reader.Start())
	ended := make(chan error, 1)
	go func() { ended <- reader.Wait() }()
	d.await(t, 1)
	first := statusOf(t, m).PID // of its threads, any may be the one that cannot end
	if _, stderr, err := try(t, plainBatchfs, "restart", m.dir); err == nil || !strings.Contains(stderr, "train cannot be read: no answer in ") {
		t.Errorf("restart: %v %s", err, stderr)
	}
	if statusOf(t, m).PID == first {
		t.Error("the same process serves")
	}
	read(t, "read", m.path("well/next"))
	d.await(t, 3) // the same read, in both processes, and that of the restart
	began := time.Now()
	run(t, plainBatchfs, "unmount", "--force", m.dir)
	select {
	case <-ended:
	case <-time.After(limit):
		t.Error("a reader hangs in a mount that is gone")
	}
	m.awaitEnd(t)
	inTime(t, "the end", time.Since(began), 10*time.Second)
}
