package test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lasting returns its first argument, and in a soak the second.
func lasting(test, soak time.Duration) time.Duration {
	if inSoak() {
		return soak
	}
	return test
}

const stormB, stormT, stormBatches = 4, 256, 4096

// stormTokens are positions, with a version of the file in the upper bits.
func stormTokens(version int) []byte {
	var raw []byte
	for i := range stormB*stormT*stormBatches + 1 {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(version<<24|i))
	}
	return raw
}

// stormConfig is a configuration of them, with more keys of the split.
func stormConfig(t *testing.T, more string) (config, data string) {
	t.Helper()
	dir := t.TempDir()
	config, data = filepath.Join(dir, "config.toml"), filepath.Join(dir, "train.bin")
	write(t, data, stormTokens(0))
	write(t, besideOf(data), stormTokens(0))
	write(t, config, fmt.Appendf(nil, `
[batch]
batch_size = %d
block_size = %d
token_dtype = "uint32"
dtype = "uint32"
order = "sequential"
[splits.train]
tokens = %q
%s
[[splits.train.arrays]]
name = "at"
files = %q
at = "x"
dtype = "uint32"
`, stormB, stormT, data, more, besideOf(data)))
	return config, data
}

// stormInStore is a configuration of them as objects of a store of which every tenth answer fails. The block cache has room for half of them.
func stormInStore(t *testing.T) (config string) {
	t.Helper()
	b := newBucket(t)
	config, data := stormConfig(t, "")
	for _, file := range []string{data, besideOf(data)} {
		raw, err := os.ReadFile(file)
		noError(t, err)
		b.put(t, strings.TrimPrefix(file, filepath.Dir(data)+"/"), raw)
	}
	text, err := os.ReadFile(config)
	noError(t, err)
	text = bytes.ReplaceAll(text, []byte(filepath.Dir(data)), []byte("s3://bucket"))
	write(t, config, fmt.Appendf(text, `
[store]
endpoint = %q
cache_dir = %q
cache_bytes = %d
block_bytes = %d
`, b.url, t.TempDir(), stormB*stormT*stormBatches*4, storeBlock))
	b.fails(func(w http.ResponseWriter, r *http.Request) bool {
		switch rand.IntN(40) {
		case 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 1:
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				conn.Close()
			}
		case 2: // breaks off
			w.Header().Set("Content-Length", "1000")
			w.Write([]byte("less"))
		case 3:
			time.Sleep(50 * time.Millisecond)
			return false
		default:
			return false
		}
		return true
	})
	return config
}

// besideOf is the file of the array beside tokens.
func besideOf(data string) string { return data + ".at" }

func kill(t testing.TB, _ *mounted, worker int) {
	if worker <= 0 { // which would be every process of this test's group
		t.Fatal("there is no worker to kill")
	}
	syscall.Kill(worker, syscall.SIGKILL)
}

// stopAndKill kills a process the way its keeper does: stopped first, so that the kernel is not copying one of its requests.
func stopAndKill(t testing.TB, m *mounted, worker int) {
	if worker <= 0 { // which would be every process of this test's group
		t.Fatal("there is no worker to kill")
	}
	syscall.Kill(worker, syscall.SIGSTOP)
	await(t, "a process that is stopped", func() bool { return stopped(worker) })
	kill(t, m, worker)
}

// stopped reports whether every thread of a process is stopped or has ended.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, _ := os.ReadFile(thread)
		if _, state, ok := strings.Cut(string(stat), ") "); ok && !strings.Contains("TZX", state[:1]) {
			return false
		}
	}
	return true
}

// Whatever happens to the process that serves, its readers get the right bytes, and every number of next goes to one read.
func TestStorm(t *testing.T) {
	onDisk, _ := stormConfig(t, "")
	for _, storm := range []struct {
		name    string
		program string
		args    []string
		faults  string
		strike  func(t testing.TB, m *mounted, worker int)
		mayFail bool // reads
	}{
		{"kill", plainBatchfs, nil, "", kill, false},
		{"kill between steps", faultyBatchfs, nil, "open:kill:9000 want:kill:9000 ask:kill:9000 note:kill:9000 noted:kill:9000 number:kill:9000 " +
			"holder:kill:9000 listed:kill:9000 delivered:kill:9000 taken:kill:9000 count:kill:9000", nil, false},
		{"stop and kill", plainBatchfs, nil, "", stopAndKill, false},
		{"panic", faultyBatchfs, nil, "read:panic:2000", nil, true},
		{"restart", plainBatchfs, nil, "", func(t testing.TB, m *mounted, _ int) { run(t, plainBatchfs, "restart", m.dir) }, false},
		{"seek", plainBatchfs, nil, "", seekAndKill, false},
		{"no resend", plainBatchfs, []string{"--no-resend"}, "", kill, true},
		{"store", plainBatchfs, nil, "", kill, false},
	} {
		t.Run(storm.name, func(t *testing.T) {
			if storm.name != "kill" {
				long(t)
			}
			config, slowest := onDisk, time.Second
			if storm.name == "store" {
				config, slowest = stormInStore(t), 10*time.Second
			}
			least := 12 // strikes
			if storm.name == "kill" && inSoak() {
				least = 1000
			}
			cmd, temporary := exec.Command(storm.program), t.TempDir()
			cmd.Env = append(os.Environ(), "BATCHFS_FAULTS="+storm.faults, "TMPDIR="+temporary)
			m := mountProgram(t, cmd, append(storm.args, "-c", config, "--set", "memory.access=pread")...)
			standsBy := len(storm.args) == 0
			if standsBy {
				m.awaitStandby(t)
			}
			fds := len(m.fds(t))
			skippedBySeeks = 0
			readers := startStorms(t, m)
			strikes, end := 0, time.Now().Add(lasting(0, 90*time.Second))
			for last := end.Add(4 * limit); strikes < least || time.Now().Before(end); {
				if time.Now().After(last) {
					t.Fatalf("%d strikes, want %d", strikes, least)
				}
				time.Sleep(time.Duration(rand.Int64N(int64(500 * time.Millisecond))))
				if worker := m.worker(t); storm.strike != nil && worker > 0 {
					storm.strike(t, m, worker)
					strikes++
				} else if storm.strike == nil {
					strikes = strings.Count(m.out.String(), "another goes on")
				}
			}
			got := endStorms(t, readers)
			cursor, err := strconv.Atoi(m.cursor(t, "train"))
			noError(t, err)
			missing := got.missing(t, cursor) - skippedBySeeks
			failed := 0
			for _, n := range got.failed {
				failed += n
			}
			t.Logf("%d strikes, %d reads, %d batches of next, %d reads failed %v, %d numbers missing, slowest %.3f s; replaced within %v at most",
				strikes, got.reads, cursor, failed, got.failed, missing, got.slowest, longest(t, m.out.String()))
			if failed > 0 && !storm.mayFail {
				t.Errorf("%d reads failed", failed)
			}
			if missing > failed {
				t.Errorf("%d numbers are missing, and %d reads failed", missing, failed)
			}
			inTime(t, "the slowest read", time.Duration(got.slowest*float64(time.Second)), slowest)
			if standsBy {
				m.awaitStandby(t)
			}
			awaitNone(t, fmt.Sprintf("the keeper had %d descriptors", fds), func() (more []string) {
				if links := m.fds(t); len(links) > fds {
					return links
				}
				return nil
			})
			m.stop(t)
			awaitNone(t, "after the end", func() []string { return leftovers(t, temporary) })
		})
	}
}

// seekAndKill moves the cursor of train on by a few epochs, and kills the worker about then.
func seekAndKill(t testing.TB, m *mounted, worker int) {
	cursor, err := strconv.Atoi(m.cursor(t, "train"))
	noError(t, err)
	to := cursor + stormBatches*(1+rand.IntN(3))
	killed := time.AfterFunc(time.Duration(rand.Int64N(int64(10*time.Millisecond))), func() { kill(t, m, worker) })
	defer killed.Stop()
	var was int
	said := run(t, plainBatchfs, "seek", m.path("train"), fmt.Sprint(to))
	if _, err := fmt.Sscanf(said[strings.LastIndex(said, " ")+1:], "%d", &was); err != nil || was > to {
		t.Fatalf("seek to %d said %q", to, said)
	}
	skippedBySeeks += to - was
}

// skippedBySeeks counts the numbers that seeks left out.
var skippedBySeeks int

// longest is the longest time that a log says it took to replace a process.
func longest(t *testing.T, log string) (most time.Duration) {
	t.Helper()
	for _, match := range regexp.MustCompile(` after=(\S+)`).FindAllStringSubmatch(log, -1) {
		took, err := time.ParseDuration(match[1])
		noError(t, err)
		most = max(most, took)
	}
	return most
}

// Readers of every kind of file, while the token file and the array beside it are replaced again and again and the process that serves is killed at any
// moment: no wrong byte, no number twice, and memory that does not grow.
func TestSoak(t *testing.T) {
	long(t)
	config, data := stormConfig(t, "on_change = \"follow\"")
	m := mountProgram(t, exec.Command(plainBatchfs), "-c", config)
	readers := startStorms(t, m)
	var versions [6][]byte
	for v := range versions {
		versions[v] = stormTokens(v)
	}
	began, lasts := time.Now(), lasting(6*time.Second, 30*time.Minute)
	replaced, strikes := 0, 0
	var keeper, worker [4]int // the most that each had resident in each quarter of the time, in KiB
	nextKill, nextChange, nextLook := began, began.Add(time.Second), began.Add(time.Second)
	for time.Since(began) < lasts {
		time.Sleep(20 * time.Millisecond)
		now := time.Now()
		if now.After(nextKill) {
			if workers := m.workers(t); len(workers) > 0 {
				if rand.IntN(4) == 0 {
					kill(t, m, workers[len(workers)-1]) // which stands by
				}
				[]func(testing.TB, *mounted, int){kill, stopAndKill}[rand.IntN(2)](t, m, workers[0])
				strikes++
			}
			nextKill = now.Add(time.Duration(rand.Int64N(int64(4 * time.Second))))
		}
		if now.After(nextChange) {
			replaced++
			file := []string{data, besideOf(data)}[rand.IntN(2)] // of which each has versions of its own
			write(t, file+".new", versions[replaced%len(versions)])
			noError(t, os.Rename(file+".new", file))
			nextChange = now.Add(time.Duration(rand.Int64N(int64(3 * time.Second))))
		}
		if now.After(nextLook) {
			quarter := min(int(4*time.Since(began)/lasts), 3)
			keeper[quarter] = max(keeper[quarter], resident(m.cmd.Process.Pid))
			worker[quarter] = max(worker[quarter], resident(m.worker(t)))
			nextLook = now.Add(time.Second / 4)
		}
	}
	got := endStorms(t, readers)
	cursor, err := strconv.Atoi(m.cursor(t, "train"))
	noError(t, err)
	t.Logf("%v: %d reads, %d batches of next, %d numbers missing, %d kills, %d changes, reads failed %v, slowest %.3f s, replaced within %v at most; "+
		"KiB resident at most in each quarter: keeper %v, worker %v",
		lasts, got.reads, cursor, got.missing(t, cursor), strikes, replaced, got.failed, got.slowest, longest(t, m.out.String()), keeper, worker)
	if got.failed["EIO"]+got.failed["EFAULT"] > 2*replaced {
		t.Errorf("reads failed: %v", got.failed)
	}
	if inSoak() && (keeper[3] > keeper[1]+4<<10 || worker[3] > worker[1]+16<<10) { // a few seconds show nothing
		t.Errorf("memory grew: keeper %v KiB, worker %v KiB", keeper, worker)
	}
}

// resident is what a process has resident, in KiB, or 0 if there is none.
func resident(pid int) (kib int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
		fmt.Sscan(rest, &kib)
	}
	return kib
}

// worker is the process that serves, or 0 while there is none.
func (m *mounted) worker(t testing.TB) int {
	t.Helper()
	if all := m.workers(t); len(all) > 0 {
		return all[0]
	}
	return 0
}

// awaitWorker waits until a process serves, and returns it.
func (m *mounted) awaitWorker(t testing.TB) (worker int) {
	t.Helper()
	await(t, "a worker", func() bool {
		worker = m.worker(t)
		return worker > 0
	})
	return worker
}

// workers are the processes that the keeper has: the one that serves, and then the one that stands by.
func (m *mounted) workers(t testing.TB) (pids []int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.cmd.Process.Pid))
	noError(t, err)
	for _, children := range threads {
		text, _ := os.ReadFile(children)
		for _, field := range strings.Fields(string(text)) {
			if pid, _ := strconv.Atoi(field); !ended(pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// awaitStandby waits until there is a process that serves and one that stands by, and returns them.
func (m *mounted) awaitStandby(t testing.TB) (workers []int) {
	t.Helper()
	await(t, "a process that stands by", func() bool {
		workers = m.workers(t)
		return len(workers) == 2
	})
	return workers
}

// fds are what the keeper has open.
func (m *mounted) fds(t testing.TB) (links []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", m.cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	noError(t, err)
	for _, fd := range fds {
		link, _ := os.Readlink(dir + fd.Name())
		links = append(links, link)
	}
	return links
}

// leftovers are processes of the programs that the tests built, and files in a directory.
func leftovers(t testing.TB, dir string) (left []string) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	noError(t, err)
	for _, process := range processes {
		command, _ := os.ReadFile(process)
		if strings.HasPrefix(string(command), filepath.Dir(batchfs)+"/batchfs") {
			left = append(left, string(command))
		}
	}
	files, err := os.ReadDir(dir)
	noError(t, err)
	for _, file := range files {
		left = append(left, file.Name())
	}
	return left
}

// A stormReader is a running clients/storm.py, or its like in C.
type stormReader struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// A stormResult is what readers tell at their end.
type stormResult struct {
	numbers [stormBatches]int // how many batches of next were at each place of an epoch
	failed  map[string]int    // reads, by errno
	slowest float64           // read, in seconds
	reads   int
}

// startStorms starts readers of each kind of file of a mount's split train.
func startStorms(t testing.TB, m *mounted) (all []*stormReader) {
	t.Helper()
	for _, way := range []string{"next", "npy", "safetensors", "plain", "nonblocking", "kept", "rows", "numbered", "batches", "mapped", "tokens", "texts",
		"tensors", "arrays"} {
		all = append(all, startStorm(t, exec.Command(python, "clients/storm.py", way, m.path("train"))))
	}
	all = append(all, startStorm(t, exec.Command(cStorm, m.path("train/next"), fmt.Sprint(stormB), fmt.Sprint(stormT), fmt.Sprint(stormBatches))))
	for _, r := range all {
		r.ready(t)
	}
	return all
}

func startStorm(t testing.TB, cmd *exec.Cmd) *stormReader {
	t.Helper()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	noError(t, err)
	out, err := cmd.StdoutPipe()
	noError(t, err)
	noError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &stormReader{cmd, in, bufio.NewReader(out)}
}

func (r *stormReader) ready(t testing.TB) {
	t.Helper()
	defer answersSoon(t, r.cmd)()
	if line, err := r.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%s: %q %v", r.cmd.Args, line, err)
	}
}

// end ends a reader, and returns what it prints then.
func (r *stormReader) end(t testing.TB) string {
	t.Helper()
	defer answersSoon(t, r.cmd)()
	r.in.Close()
	text, err := io.ReadAll(r.out)
	noError(t, err)
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", r.cmd.Args, err, text)
	}
	return string(text)
}

// endStorms ends readers. One that got a wrong byte fails the test.
func endStorms(t testing.TB, readers []*stormReader) (got stormResult) {
	t.Helper()
	got.failed = map[string]int{}
	for _, r := range readers {
		for line := range strings.Lines(r.end(t)) {
			var place, n int
			var name string
			var seconds float64
			switch {
			case scan(line, "number %d %d", &place, &n):
				got.numbers[place] += n
			case scan(line, "failed %s %d", &name, &n):
				got.failed[name] += n
			case scan(line, "slowest %g", &seconds):
				got.slowest = max(got.slowest, seconds)
			case scan(line, "reads %d", &n):
				got.reads += n
			}
		}
	}
	return got
}

func scan(line, format string, values ...any) bool {
	n, _ := fmt.Sscanf(line, format, values...)
	return n == len(values)
}

// missing is how many of the numbers below cursor nobody read. It fails where two read one.
func (r stormResult) missing(t *testing.T, cursor int) (missing int) {
	t.Helper()
	for p, n := range r.numbers {
		want := (cursor - p + stormBatches - 1) / stormBatches // batches below cursor that are at that place of their epoch
		if n > want {
			t.Errorf("%d reads got a batch at place %d, of which there were %d", n, p, want)
		}
		missing += max(want-n, 0)
	}
	return missing
}
