package test

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
)

// A crowd is many threads of one process that read the same files again and again.
type crowd struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

// startCrowd starts n threads, each of which reads the first bytes of one of the paths at a time. They end with the test.
func startCrowd(t *testing.T, n, bytes int, paths ...string) *crowd {
	t.Helper()
	c := &crowd{cmd: exec.Command(cCrowd, append([]string{fmt.Sprint(n), fmt.Sprint(bytes)}, paths...)...)}
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	noError(t, err)
	out, err := c.cmd.StdoutPipe()
	noError(t, err)
	c.in, c.out = in, bufio.NewReader(out)
	noError(t, c.cmd.Start())
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	defer answersSoon(t, c.cmd)()
	_, err = c.out.ReadString('\n')
	noError(t, err)
	return c
}

// end lets each thread finish its read. It returns how many reads there were, and how many more failed.
func (c *crowd) end(t *testing.T) (reads, failed int) {
	t.Helper()
	defer answersSoon(t, c.cmd)()
	c.in.Close()
	line, err := c.out.ReadString('\n')
	noError(t, err)
	_, err = fmt.Sscan(line, &reads, &failed)
	noError(t, err)
	return reads, failed
}

// anonymous is the memory that a process has of its own, in MiB: what it maps of files is not counted.
func anonymous(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	noError(t, err)
	anon := regexp.MustCompile(`RssAnon:\s*(\d+) kB`).FindSubmatch(status)
	kib, err := strconv.Atoi(string(anon[1]))
	noError(t, err)
	return kib >> 10
}

func threads(pid int) int {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	return len(list)
}

// Readers who want much at once get it one after the other: the memory that their replies take is bounded, and somebody who wants
// little is served meanwhile.
func TestCrowd(t *testing.T) {
	long(t)
	const n, budget = 300, 64 // MiB
	dir := t.TempDir()
	file := tokens(t, filepath.Join(dir, "train.bin"), 8<<20, 2)
	flags := []string{"-c", "/dev/null", "--set", "splits.train.tokens=" + file, "--set", fmt.Sprint("memory.budget=", budget<<20), "--set", "mount.timeout=5s"}
	m := mountProgram(t, exec.Command(plainBatchfs), flags...)
	want := lines(t, "train", 0, 20, flags...)
	serving, before := m.worker(t), threads(m.worker(t))
	for name, paths := range map[string][]string{
		"large batches": {m.path("train/batch_size=512/next")},
		"tiny rows":     {m.path("train/batch_size=262144,block_size=1/batch/1"), m.path("train/batch_size=262144,block_size=1/next")},
	} {
		c := startCrowd(t, n, 1<<20, paths...)
		most := 0
		for k := range want {
			var got string
			await(t, fmt.Sprint("batch ", k), func() bool { // on a busy machine a read may be late
				out, _, err := try(t, python, "clients/readers.py", "read", m.path(fmt.Sprint("train/batch/", k)))
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
		if reads == 0 || most > budget+48 {
			t.Errorf("%s: %d reads; the worker had %d MiB, may have %d besides its own", name, reads, most, budget)
		}
	}
	if m.worker(t) != serving {
		t.Error("another process serves")
	}
	await(t, "few threads", func() bool { return threads(serving) <= before+64 })
}

// Files that give no answer, and a crowd that reads them, take few threads, and keep no other split waiting, whether the crowd gets
// errors or waits; when they answer, so does the mount.
func TestCrowdOfAHangingSplit(t *testing.T) {
	long(t)
	for _, timeout := range []string{"3s", "1h"} {
		t.Run(timeout, func(t *testing.T) {
			d, intact := newDouble(t, versionOf(0, 2_000_000)), filepath.Join(t.TempDir(), "well.bin")
			write(t, intact, versionOf(2, changeTokens))
			m := mount(t, "-c", "/dev/null", "--set", "splits.train.tokens="+d.path, "--set", "splits.well.tokens="+intact,
				"--set", "mount.timeout="+timeout, "--set", "memory.access=pread")
			want := read(t, "read", m.path("train/batch/1"))
			serving, before, fails := m.worker(t), threads(m.worker(t)), timeout == "3s"
			// The kernel sends few reads for the page cache at a time, of all splits together, unless it is told to send more.
			paths := []string{m.path("train/next")}
			for k := range 700 {
				paths = append(paths, m.path(fmt.Sprint("train/batch/", 1000+k)))
			}
			c := startCrowd(t, len(paths), 49152, paths...)
			d.set(t, hang)
			await(t, "many reads that wait", func() bool { return fails || statusOf(t, m).Waiting >= 600 })
			for k := range 50 {
				read(t, "read", m.path(fmt.Sprint("well/batch/", k)))
				read(t, "read", m.path("well/batches.bin"))
			}
			if n := threads(serving); n > before+100 {
				t.Errorf("the worker has %d threads, and had %d", n, before)
			}
			if fails {
				await(t, "an error in time", func() bool { return strings.Contains(m.out.String(), "gave no answer within 3s") })
			}
			d.set(t, healthy)
			if _, failed := c.end(t); failed > 0 != fails {
				t.Errorf("%d reads failed", failed)
			}
			await(t, "the batches", func() bool {
				got, _, err := try(t, python, "clients/readers.py", "read", m.path("train/batch/1"))
				return err == nil && strings.TrimSpace(got) == want[0]
			})
			if m.worker(t) != serving {
				t.Error("another process serves")
			}
		})
	}
}
