// Package soak holds the tests that compare random cases with references, look for leaks, measure
// limits, or kill processes at random. They run briefly in make test, and for hours in make soak.
package soak

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// stormInStore puts the tokens of a storm into a store. One request in ten fails or is slow, and
// the block cache has room for half of the blocks.
func stormInStore(t *testing.T) (config string) {
	t.Helper()
	b := e2e.NewBucket(t)
	config, data := e2e.StormConfig(t, "")
	for _, file := range []string{data, e2e.AlignedPath(data)} {
		raw := e2e.Content(t, file)
		b.Put(t, strings.TrimPrefix(file, filepath.Dir(data)+"/"), raw)
	}
	text := e2e.Content(t, config)
	text = bytes.ReplaceAll(text, []byte(filepath.Dir(data)), []byte("s3://bucket"))
	e2e.Write(t, config, fmt.Appendf(text, `
[store]
endpoint = %q
cache_dir = %q
cache_bytes = %d
block_bytes = %d
`, b.URL, t.TempDir(), e2e.StormB*e2e.StormT*e2e.StormBatches*4, e2e.StoreBlock))
	b.FailWith(func(w http.ResponseWriter, r *http.Request) bool {
		switch rand.IntN(40) {
		case 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 1:
			return e2e.Cut(w, nil)
		case 2: // ends too early
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

// A storm describes what happens to the workers of a mount while it is read in every way.
type storm struct {
	name         string
	program      string
	args         []string
	faults       string // BATCHFS_FAULTS
	strike       func(t testing.TB, m *e2e.Mounted, worker int)
	readsMayFail bool
	signals      bool // whether readers get SIGURG and SIGPROF a thousand times a second
}

// Whatever happens to the worker, and whatever signals readers get, they get the right bytes, and
// every number of next goes to one read.
func TestStorm(t *testing.T) {
	onDisk, _ := e2e.StormConfig(t, "")
	skipped := 0 // numbers that seeks skip
	for n, s := range []storm{
		{"strike", e2e.PlainBatchfs, nil, "", e2e.KillOrRestart, false, false},
		// The short form has no restarts: the command gives up on batches that take seconds, as may
		// happen on a busy machine.
		{"signals", e2e.PlainBatchfs, nil, "", e2e.Kill, false, true},
		{"kill between steps", e2e.FaultyBatchfs, nil, "open:kill:9000 take-prepared:kill:9000 take-announced:kill:9000 cursor-moved:kill:9000 " +
			"assignment-recorded:kill:9000 slot-number:kill:9000 slot-request:kill:9000 listed:kill:9000 delivered:kill:9000 taken:kill:9000 count:kill:9000", nil, false, false},
		{"panic", e2e.FaultyBatchfs, nil, "read:panic:2000", nil, true, false},
		{"seek", e2e.PlainBatchfs, nil, "", func(t testing.TB, m *e2e.Mounted, worker int) { skipped += seekAndKill(t, m, worker) }, false, false},
		{"no resend", e2e.PlainBatchfs, []string{"--no-resend"}, "", e2e.Kill, true, false},
		{"store", e2e.PlainBatchfs, nil, "", e2e.Kill, false, false},
		{"changes", e2e.PlainBatchfs, nil, "", changeAndKill, true, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			if s.name != "signals" {
				e2e.SkipIfShort(t)
			}
			// least is the smallest number of strikes. apart is the longest time between two of
			// them.
			config, slowest, least, lasts, apart := onDisk, time.Second, e2e.NormalOrSoak(6, 12), 90*time.Second, 300*time.Millisecond
			switch s.name {
			case "store":
				// Every worker must live long enough to connect and to fetch the blocks of a batch
				// again.
				config, slowest, apart = stormInStore(t), 10*time.Second, 900*time.Millisecond
			case "changes":
				config, _ = e2e.StormConfig(t, "on_change = \"follow\"")
				lasts = 30 * time.Minute
			case "kill between steps": // few of the kills come between two given steps
				least = 20
			case "strike", "signals":
				least = e2e.NormalOrSoak(12, 1000)
				if testing.Short() {
					least = 8
				}
			}
			cmd, temporary := exec.Command(s.program), t.TempDir()
			cmd.Env = append(os.Environ(), "BATCHFS_FAULTS="+s.faults, "TMPDIR="+temporary)
			access := []string{"pread", "advise", "remap"}[n%3]
			m := e2e.MountProgram(t, cmd, append(s.args, "-c", config, "--set", "memory.access="+access)...)
			if len(s.args) == 0 {
				m.AwaitStandby(t)
			}
			supervisor := m.Cmd.Process.Pid
			fds := len(e2e.OpenFiles(t, supervisor))
			readers := e2e.StartStorms(t, m)
			stop := func() {}
			if s.signals {
				stop = sendSignals(t, readers)
			}
			strikes := s.strikeWorkers(t, m, least, lasts, apart)
			stop()
			if s.signals {
				// Python repeats interrupted reads, so only this metric would show them.
				e2e.CheckOutput(t, "\nbatchfs_returned_numbers_total{settings=\"\",split=\"train\"} 0\n", "cat", m.Path("metrics"))
			}
			got := e2e.EndStorms(t, m, readers)
			if s.name == "seek" {
				got.Missing -= skipped
			}
			failed := 0
			for _, n := range got.Failed {
				failed += n
			}
			t.Logf("%d strikes, %s", strikes, got)
			if failed > 0 && !s.readsMayFail || got.Missing > failed || s.name == "changes" && got.Failed["EIO"]+got.Failed["EFAULT"] > 2*strikes {
				t.Errorf("%s; want failed reads only if the storm causes them, and only their numbers missing", got)
			}
			e2e.CheckDuration(t, "the slowest read", time.Duration(got.Slowest*float64(time.Second)), slowest)
			if len(s.args) == 0 {
				m.AwaitStandby(t)
			}
			e2e.Await(t, fmt.Sprintf("the supervisor to have %d descriptors again", fds), func() (any, bool) {
				open := e2e.OpenFiles(t, supervisor)
				return open, len(open) <= fds
			})
			m.Stop(t)
			e2e.CheckNothingLeft(t, temporary)
		})
	}
}

// sendSignals sends SIGURG and SIGPROF to each process of readers a thousand times a second, until
// stop is called.
func sendSignals(t *testing.T, readers []*e2e.Client) (stop func()) {
	t.Helper()
	var pids []int
	for _, r := range readers {
		pid := r.Cmd.Process.Pid
		pids = append(pids, pid)
		children := e2e.Content(t, fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		for child := range strings.FieldsSeq(string(children)) {
			pids = append(pids, e2e.Must(strconv.Atoi(child))(t))
		}
	}
	var sending sync.WaitGroup
	stopped := make(chan struct{})
	sending.Go(func() {
		for tick := time.Tick(time.Millisecond); ; {
			select {
			case <-tick:
			case <-stopped:
				return
			}
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGURG)
				syscall.Kill(pid, syscall.SIGPROF)
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(stopped)
		sending.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// strikeWorkers strikes until it has done so least times and, in a soak, for the duration lasts. It
// pauses for at most apart between strikes. In a soak, it fails the test if the processes grow.
func (s storm) strikeWorkers(t *testing.T, m *e2e.Mounted, least int, lasts, apart time.Duration) (strikes int) {
	t.Helper()
	var supervisor, worker [4]int // largest resident memory in each quarter of the time, in KiB
	end := time.Now().Add(e2e.NormalOrSoak(0, lasts))
	for last := end.Add(2 * testwait.Limit); strikes < least || time.Now().Before(end); {
		if time.Now().After(last) {
			t.Fatalf("only %d strikes before the limit, want %d", strikes, least)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(apart))))
		quarter, pid := min(max(0, 3-int(4*time.Until(end)/lasts)), 3), m.Worker(t)
		supervisor[quarter] = max(supervisor[quarter], e2e.ProcNumber(m.Cmd.Process.Pid, "VmRSS"))
		worker[quarter] = max(worker[quarter], e2e.ProcNumber(pid, "VmRSS"))
		if s.strike != nil && pid > 0 {
			s.strike(t, m, pid)
			strikes++
		} else if s.strike == nil {
			strikes = strings.Count(m.Out.String(), "another has taken over")
		}
	}
	t.Logf("KiB resident in each quarter: supervisor %v, worker %v", supervisor, worker)
	// Growth shows only after many minutes.
	if e2e.InSoak() && lasts > time.Hour/4 && (supervisor[3] > supervisor[1]+4<<10 || worker[3] > worker[1]+16<<10) {
		t.Errorf("resident memory grew from the second to the last quarter: supervisor %v KiB, worker %v KiB", supervisor, worker)
	}
	return strikes
}

// seekAndKill moves the cursor of train forward by a few epochs, and kills the worker at about that
// time. It returns how many numbers the seek skipped.
func seekAndKill(t testing.TB, m *e2e.Mounted, worker int) (skipped int) {
	cursor := m.NextNumber(t, "train")
	to := cursor + e2e.StormBatches*(1+rand.IntN(3))
	killed := time.AfterFunc(time.Duration(rand.Int64N(int64(10*time.Millisecond))), func() { e2e.Kill(t, m, worker) })
	defer killed.Stop()
	var old int
	output := e2e.Run(t, e2e.PlainBatchfs, "seek", m.Path("train"), fmt.Sprint(to))
	if _, err := fmt.Sscanf(output[strings.LastIndex(output, " ")+1:], "%d", &old); err != nil || old > to {
		t.Fatalf("seek to %d printed %q, want the cursor before, which is less", to, output)
	}
	return to - old
}

// changeAndKill replaces the tokens or their aligned array by another version, and kills the
// worker, sometimes with the standby.
func changeAndKill(t testing.TB, m *e2e.Mounted, worker int) {
	data := m.Info(t, "train").Files[0]
	file := []string{data, e2e.AlignedPath(data)}[rand.IntN(2)]
	e2e.ReplaceFile(t, file, e2e.StormTokens(rand.IntN(6)))
	if workers := m.Workers(t); rand.IntN(4) == 0 {
		e2e.Kill(t, m, workers[len(workers)-1])
	}
	[]func(testing.TB, *e2e.Mounted, int){e2e.Kill, e2e.StopAndKill}[rand.IntN(2)](t, m, worker)
}
