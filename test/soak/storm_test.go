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
	"testing"
	"time"

	"batchfs/test/e2e"
)

// stormInStore is a configuration of them as objects of a store of which every tenth answer fails. The block cache has room for half of them.
func stormInStore(t *testing.T) (config string) {
	t.Helper()
	b := e2e.NewBucket(t)
	config, data := e2e.StormConfig(t, "")
	for _, file := range []string{data, e2e.BesideOf(data)} {
		raw, err := os.ReadFile(file)
		e2e.NoError(t, err)
		b.Put(t, strings.TrimPrefix(file, filepath.Dir(data)+"/"), raw)
	}
	text, err := os.ReadFile(config)
	e2e.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte(filepath.Dir(data)), []byte("s3://bucket"))
	e2e.Write(t, config, fmt.Appendf(text, `
[store]
endpoint = %q
cache_dir = %q
cache_bytes = %d
block_bytes = %d
`, b.Url, t.TempDir(), e2e.StormB*e2e.StormT*e2e.StormBatches*4, e2e.StoreBlock))
	b.Fails(func(w http.ResponseWriter, r *http.Request) bool {
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

// Whatever happens to the process that serves, its readers get the right bytes, and every number of next goes to one read.
func TestStorm(t *testing.T) {
	onDisk, _ := e2e.StormConfig(t, "")
	for _, storm := range []struct {
		name    string
		program string
		args    []string
		faults  string
		strike  func(t testing.TB, m *e2e.Mounted, worker int)
		mayFail bool // reads
	}{
		{"kill", e2e.PlainBatchfs, nil, "", e2e.Kill, false},
		{"kill between steps", e2e.FaultyBatchfs, nil, "open:kill:9000 want:kill:9000 ask:kill:9000 note:kill:9000 noted:kill:9000 number:kill:9000 " +
			"holder:kill:9000 listed:kill:9000 delivered:kill:9000 taken:kill:9000 count:kill:9000", nil, false},
		{"stop and kill", e2e.PlainBatchfs, nil, "", e2e.StopAndKill, false},
		{"panic", e2e.FaultyBatchfs, nil, "read:panic:2000", nil, false},
		{"restart", e2e.PlainBatchfs, nil, "", func(t testing.TB, m *e2e.Mounted, _ int) { e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir) }, false},
		{"seek", e2e.PlainBatchfs, nil, "", seekAndKill, false},
		{"no resend", e2e.PlainBatchfs, []string{"--no-resend"}, "", e2e.Kill, true},
		{"store", e2e.PlainBatchfs, nil, "", e2e.Kill, false},
	} {
		t.Run(storm.name, func(t *testing.T) {
			if storm.name != "kill" {
				e2e.Long(t)
			}
			config, slowest := onDisk, time.Second
			if storm.name == "store" {
				config, slowest = stormInStore(t), 10*time.Second
			}
			least := 12 // strikes
			if storm.name == "kill" && e2e.InSoak() {
				least = 1000
			}
			cmd, temporary := exec.Command(storm.program), t.TempDir()
			cmd.Env = append(os.Environ(), "BATCHFS_FAULTS="+storm.faults, "TMPDIR="+temporary)
			m := e2e.MountProgram(t, cmd, append(storm.args, "-c", config, "--set", "memory.access=pread")...)
			standsBy := len(storm.args) == 0
			if standsBy {
				m.AwaitStandby(t)
			}
			fds := len(m.FDs(t))
			skippedBySeeks = 0
			readers := e2e.StartStorms(t, m)
			strikes, end := 0, time.Now().Add(e2e.Lasting(0, 90*time.Second))
			for last := end.Add(4 * e2e.Limit); strikes < least || time.Now().Before(end); {
				if time.Now().After(last) {
					t.Fatalf("%d strikes, want %d", strikes, least)
				}
				time.Sleep(time.Duration(rand.Int64N(int64(500 * time.Millisecond))))
				if worker := m.Worker(t); storm.strike != nil && worker > 0 {
					storm.strike(t, m, worker)
					strikes++
				} else if storm.strike == nil {
					strikes = strings.Count(m.Out.String(), "another goes on")
				}
			}
			got := e2e.EndStorms(t, readers)
			cursor, err := strconv.Atoi(m.Cursor(t, "train"))
			e2e.NoError(t, err)
			missing := got.Missing(t, cursor) - skippedBySeeks
			failed := 0
			for _, n := range got.Failed {
				failed += n
			}
			t.Logf("%d strikes, %d reads, %d batches of next, %d reads failed %v, %d numbers missing, slowest %.3f s; replaced within %v at most",
				strikes, got.Reads, cursor, failed, got.Failed, missing, got.Slowest, e2e.Longest(t, m.Out.String()))
			if failed > 0 && !storm.mayFail {
				t.Errorf("%d reads failed", failed)
			}
			if missing > failed {
				t.Errorf("%d numbers are missing, and %d reads failed", missing, failed)
			}
			e2e.InTime(t, "the slowest read", time.Duration(got.Slowest*float64(time.Second)), slowest)
			if standsBy {
				m.AwaitStandby(t)
			}
			e2e.AwaitNone(t, fmt.Sprintf("the keeper had %d descriptors", fds), func() (more []string) {
				if links := m.FDs(t); len(links) > fds {
					return links
				}
				return nil
			})
			m.Stop(t)
			e2e.AwaitNone(t, "after the end", func() []string { return e2e.Leftovers(t, temporary) })
		})
	}
}

// seekAndKill moves the cursor of train on by a few epochs, and kills the worker about then.
func seekAndKill(t testing.TB, m *e2e.Mounted, worker int) {
	cursor, err := strconv.Atoi(m.Cursor(t, "train"))
	e2e.NoError(t, err)
	to := cursor + e2e.StormBatches*(1+rand.IntN(3))
	killed := time.AfterFunc(time.Duration(rand.Int64N(int64(10*time.Millisecond))), func() { e2e.Kill(t, m, worker) })
	defer killed.Stop()
	var was int
	said := e2e.Run(t, e2e.PlainBatchfs, "seek", m.Path("train"), fmt.Sprint(to))
	if _, err := fmt.Sscanf(said[strings.LastIndex(said, " ")+1:], "%d", &was); err != nil || was > to {
		t.Fatalf("seek to %d said %q", to, said)
	}
	skippedBySeeks += to - was
}

// skippedBySeeks counts the numbers that seeks left out.
var skippedBySeeks int

// Readers of every kind of file, while the token file and the array beside it are replaced again and again and the process that serves is killed at any
// moment: no wrong byte, no number twice, and memory that does not grow.
func TestSoak(t *testing.T) {
	e2e.Long(t)
	config, data := e2e.StormConfig(t, "on_change = \"follow\"")
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	readers := e2e.StartStorms(t, m)
	var versions [6][]byte
	for v := range versions {
		versions[v] = e2e.StormTokens(v)
	}
	began, lasts := time.Now(), e2e.Lasting(6*time.Second, 30*time.Minute)
	replaced, strikes := 0, 0
	var keeper, worker [4]int // the most that each had resident in each quarter of the time, in KiB
	nextKill, nextChange, nextLook := began, began.Add(time.Second), began.Add(time.Second)
	for time.Since(began) < lasts {
		time.Sleep(20 * time.Millisecond)
		now := time.Now()
		if now.After(nextKill) {
			if workers := m.Workers(t); len(workers) > 0 {
				if rand.IntN(4) == 0 {
					e2e.Kill(t, m, workers[len(workers)-1]) // which stands by
				}
				[]func(testing.TB, *e2e.Mounted, int){e2e.Kill, e2e.StopAndKill}[rand.IntN(2)](t, m, workers[0])
				strikes++
			}
			nextKill = now.Add(time.Duration(rand.Int64N(int64(4 * time.Second))))
		}
		if now.After(nextChange) {
			replaced++
			file := []string{data, e2e.BesideOf(data)}[rand.IntN(2)] // of which each has versions of its own
			e2e.Write(t, file+".new", versions[replaced%len(versions)])
			e2e.NoError(t, os.Rename(file+".new", file))
			nextChange = now.Add(time.Duration(rand.Int64N(int64(3 * time.Second))))
		}
		if now.After(nextLook) {
			quarter := min(int(4*time.Since(began)/lasts), 3)
			keeper[quarter] = max(keeper[quarter], e2e.Resident(m.Cmd.Process.Pid))
			worker[quarter] = max(worker[quarter], e2e.Resident(m.Worker(t)))
			nextLook = now.Add(time.Second / 4)
		}
	}
	got := e2e.EndStorms(t, readers)
	cursor, err := strconv.Atoi(m.Cursor(t, "train"))
	e2e.NoError(t, err)
	t.Logf("%v: %d reads, %d batches of next, %d numbers missing, %d kills, %d changes, reads failed %v, slowest %.3f s, replaced within %v at most; "+
		"KiB resident at most in each quarter: keeper %v, worker %v",
		lasts, got.Reads, cursor, got.Missing(t, cursor), strikes, replaced, got.Failed, got.Slowest, e2e.Longest(t, m.Out.String()), keeper, worker)
	if got.Failed["EIO"]+got.Failed["EFAULT"] > 2*replaced {
		t.Errorf("reads failed: %v", got.Failed)
	}
	if e2e.InSoak() && (keeper[3] > keeper[1]+4<<10 || worker[3] > worker[1]+16<<10) { // a few seconds show nothing
		t.Errorf("memory grew: keeper %v KiB, worker %v KiB", keeper, worker)
	}
}
