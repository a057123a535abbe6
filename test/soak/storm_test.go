package soak

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// stormInStore is a configuration of the same tokens in a store that fails every tenth answer. The block cache has room for half of them.
func stormInStore(t *testing.T) (config string) {
	t.Helper()
	b := e2e.NewBucket(t)
	config, data := e2e.StormConfig(t, "")
	for _, file := range []string{data, e2e.BesideOf(data)} {
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
		{"panic", e2e.FaultyBatchfs, nil, "read:panic:2000", nil, true},
		{"restart", e2e.PlainBatchfs, nil, "", func(t testing.TB, m *e2e.Mounted, _ int) { e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir) }, false},
		{"seek", e2e.PlainBatchfs, nil, "", seekAndKill, false},
		{"no resend", e2e.PlainBatchfs, []string{"--no-resend"}, "", e2e.Kill, true},
		{"store", e2e.PlainBatchfs, nil, "", e2e.Kill, false},
		{"changes", e2e.PlainBatchfs, nil, "", changeAndKill, true},
	} {
		t.Run(storm.name, func(t *testing.T) {
			if storm.name != "kill" {
				e2e.Long(t)
			}
			config, slowest, least, lasts := onDisk, time.Second, 12, 90*time.Second // least strikes
			switch storm.name {
			case "store":
				config, slowest = stormInStore(t), 10*time.Second
			case "changes":
				config, _ = e2e.StormConfig(t, "on_change = \"follow\"")
				lasts = 30 * time.Minute
			case "kill":
				if e2e.InSoak() {
					least = 1000
				}
			}
			cmd, temporary := exec.Command(storm.program), t.TempDir()
			cmd.Env = append(os.Environ(), "BATCHFS_FAULTS="+storm.faults, "TMPDIR="+temporary)
			m := e2e.MountProgram(t, cmd, append(storm.args, "-c", config, "--set", "memory.access=pread")...)
			standsBy := len(storm.args) == 0
			if standsBy {
				m.AwaitStandby(t)
			}
			fds := len(e2e.FDs(t, m.Cmd.Process.Pid))
			skippedBySeeks = 0
			readers := e2e.StartStorms(t, m)
			strikes, end := 0, time.Now().Add(e2e.Lasting(0, lasts))
			var keeper, worker [4]int // the most that each had resident in each quarter of the time, in KiB
			for last := end.Add(4 * e2e.Limit); strikes < least || time.Now().Before(end); {
				if time.Now().After(last) {
					t.Fatalf("%d strikes, want %d", strikes, least)
				}
				time.Sleep(time.Duration(rand.Int64N(int64(500 * time.Millisecond))))
				quarter := max(0, 3-int(4*time.Until(end)/lasts))
				pid := m.Worker(t)
				keeper[quarter], worker[quarter] = max(keeper[quarter], e2e.InProc(m.Cmd.Process.Pid, "VmRSS")), max(worker[quarter], e2e.InProc(pid, "VmRSS"))
				if storm.strike != nil && pid > 0 {
					storm.strike(t, m, pid)
					strikes++
				} else if storm.strike == nil {
					strikes = strings.Count(m.Out.String(), "another goes on")
				}
			}
			got := e2e.EndStorms(t, m, readers)
			got.Missing -= skippedBySeeks
			failed := 0
			for _, n := range got.Failed {
				failed += n
			}
			t.Logf("%d strikes, %s; KiB resident in each quarter: keeper %v, worker %v",
				strikes, got, keeper, worker)
			if failed > 0 && !storm.mayFail || got.Missing > failed || storm.name == "changes" && got.Failed["EIO"]+got.Failed["EFAULT"] > 2*strikes {
				t.Error(got)
			}
			if e2e.InSoak() && lasts > time.Hour/4 && (keeper[3] > keeper[1]+4<<10 || worker[3] > worker[1]+16<<10) { // a few minutes show nothing
				t.Error("memory grew")
			}
			e2e.InTime(t, "the slowest read", time.Duration(got.Slowest*float64(time.Second)), slowest)
			if standsBy {
				m.AwaitStandby(t)
			}
			e2e.AwaitNone(t, fmt.Sprintf("the keeper had %d descriptors", fds), func() (more []string) {
				if links := e2e.FDs(t, m.Cmd.Process.Pid); len(links) > fds {
					return links
				}
				return nil
			})
			m.Stop(t)
			e2e.LeavesNothing(t, temporary, filepath.Dir(e2e.Batchfs)+"/batchfs")
		})
	}
}

// seekAndKill moves the cursor of train on by a few epochs, and kills the worker about then.
func seekAndKill(t testing.TB, m *e2e.Mounted, worker int) {
	cursor := m.Taken(t, "train")
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

// changeAndKill puts another version in the place of the tokens or of the array beside them, and kills the worker, or the one that stands by too.
func changeAndKill(t testing.TB, m *e2e.Mounted, worker int) {
	data := m.Info(t, "train").Files[0]
	file := []string{data, e2e.BesideOf(data)}[rand.IntN(2)]
	e2e.ReplaceFile(t, file, e2e.StormTokens(rand.IntN(6)))
	if workers := m.Workers(t); rand.IntN(4) == 0 {
		e2e.Kill(t, m, workers[len(workers)-1])
	}
	[]func(testing.TB, *e2e.Mounted, int){e2e.Kill, e2e.StopAndKill}[rand.IntN(2)](t, m, worker)
}
