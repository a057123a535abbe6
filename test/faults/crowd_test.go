package faults

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// A crowd is many threads of one process that read the same files again and again.
type crowd struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

// startCrowd starts n threads. Each reads the first bytes of one of the paths at a time. They end with the test.
func startCrowd(t *testing.T, n, bytes int, paths ...string) *crowd {
	t.Helper()
	c := &crowd{cmd: exec.Command(e2e.CCrowd, append([]string{fmt.Sprint(n), fmt.Sprint(bytes)}, paths...)...)}
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	e2e.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	e2e.NoError(t, err)
	c.in, c.out = in, bufio.NewReader(out)
	e2e.NoError(t, c.cmd.Start())
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	defer e2e.AnswersSoon(t, c.cmd)()
	_, err = c.out.ReadString('\n')
	e2e.NoError(t, err)
	return c
}

// end lets each thread finish its read. It returns how many reads there were, and how many more failed.
func (c *crowd) end(t *testing.T) (reads, failed int) {
	t.Helper()
	defer e2e.AnswersSoon(t, c.cmd)()
	c.in.Close()
	line, err := c.out.ReadString('\n')
	e2e.NoError(t, err)
	_, err = fmt.Sscan(line, &reads, &failed)
	e2e.NoError(t, err)
	return reads, failed
}

// anonymous is the memory that a process has of its own, in MiB: what it maps of files is not counted.
func anonymous(t *testing.T, pid int) int {
	t.Helper()
	status := e2e.Content(t, fmt.Sprintf("/proc/%d/status", pid))
	anon := regexp.MustCompile(`RssAnon:\s*(\d+) kB`).FindSubmatch(status)
	kib, err := strconv.Atoi(string(anon[1]))
	e2e.NoError(t, err)
	return kib >> 10
}

func threads(pid int) int {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	return len(list)
}

// Readers who want much at once get it one after the other: the memory that their replies take is bounded, and somebody who wants
// little is served meanwhile.
func TestCrowd(t *testing.T) {
	e2e.Long(t)
	const n, budget = 300, 64 // MiB
	dir := t.TempDir()
	file := e2e.Tokens(t, filepath.Join(dir, "train.bin"), 8<<20, 2)
	flags := []string{"-c", "/dev/null", "--set", "splits.train.tokens=" + file, "--set", fmt.Sprint("memory.budget=", budget<<20), "--set", "mount.timeout=5s"}
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), flags...)
	want := e2e.Lines(t, "train", 0, 20, flags...)
	serving, before := m.Worker(t), threads(m.Worker(t))
	for name, paths := range map[string][]string{
		"large batches": {m.Path("train/batch_size=512/next")},
		"tiny rows":     {m.Path("train/batch_size=262144,block_size=1/batch/1"), m.Path("train/batch_size=262144,block_size=1/next")},
	} {
		c := startCrowd(t, n, 1<<20, paths...)
		most := 0
		for k := range want {
			var got string
			e2e.Await(t, fmt.Sprint("batch ", k), func() bool { // on a busy machine a read may be late
				out, _, err := e2e.Try(t, e2e.Python, "clients/readers.py", "read", m.Path(fmt.Sprint("train/batch/", k)))
				got = strings.TrimSpace(out)
				return err == nil
			})
			if got != want[k] {
				t.Errorf("%s: batch %d is %s, want %s", name, k, got, want[k])
			}
			most = max(most, anonymous(t, serving))
		}
		reads, failed := c.end(t)
		t.Logf("%s: %d reads of 1 MiB, %d failed, %d MiB resident at most", name, reads, failed, most)
		if reads == 0 || e2e.InSoak() && most > budget+48 {
			t.Errorf("%s: %d reads; the worker had %d MiB, may have %d besides its own", name, reads, most, budget)
		}
	}
	if m.Worker(t) != serving {
		t.Error("another process serves")
	}
	e2e.Await(t, "few threads", func() bool { return threads(serving) <= before+64 })
}

// Files that give no answer, and a crowd that reads them, take few threads, and keep no other split waiting, whether the crowd gets
// errors or waits; when they answer, so does the mount.
func TestCrowdOfAHangingSplit(t *testing.T) {
	e2e.Long(t)
	for _, timeout := range []string{"3s", "1h"} {
		t.Run(timeout, func(t *testing.T) {
			d, intact := e2e.NewDouble(t, e2e.VersionOf(0, 2_000_000)), filepath.Join(t.TempDir(), "well.bin")
			e2e.Write(t, intact, e2e.VersionOf(2, changeTokens))
			m := e2e.Mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.Path, "--set", "splits.well.tokens="+intact,
				"--set", "mount.timeout="+timeout, "--set", "memory.access=pread")
			want := e2e.Read(t, "read", m.Path("train/batch/1"))
			serving, before, fails := m.Worker(t), threads(m.Worker(t)), timeout == "3s"
			// The kernel sends few reads for the page cache at a time, of all splits together, unless it is told to send more.
			paths := []string{m.Path("train/next")}
			for k := range 700 {
				paths = append(paths, m.Path(fmt.Sprint("train/batch/", 1000+k)))
			}
			c := startCrowd(t, len(paths), 49152, paths...)
			d.Set(t, e2e.Hang)
			e2e.Await(t, "many reads that wait", func() bool { return fails || e2e.StatusOf(t, m).Waiting >= 600 })
			for k := range 50 {
				e2e.Read(t, "read", m.Path(fmt.Sprint("well/batch/", k)))
				e2e.Read(t, "read", m.Path("well/batches.bin"))
			}
			if n := threads(serving); n > before+100 {
				t.Errorf("the worker has %d threads, and had %d", n, before)
			}
			if fails {
				e2e.Await(t, "an error in time", func() bool { return strings.Contains(m.Out.String(), "gave no answer within 3s") })
			}
			d.Set(t, e2e.Healthy)
			if _, failed := c.end(t); failed > 0 != fails {
				t.Errorf("%d reads failed", failed)
			}
			e2e.Await(t, "the batches", func() bool {
				got, _, err := e2e.Try(t, e2e.Python, "clients/readers.py", "read", m.Path("train/batch/1"))
				return err == nil && strings.TrimSpace(got) == want[0]
			})
			if m.Worker(t) != serving {
				t.Error("another process serves")
			}
		})
	}
}
