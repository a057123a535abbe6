package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/failure"
	"batchfs/internal/fdpass"
	"batchfs/internal/process"
	"batchfs/internal/require"
	"batchfs/internal/testwait"
)

var noError = require.NoError

// The supervisor under test starts this test binary as its worker, with WORKER set.
func TestMain(m *testing.M) {
	if behavior := os.Getenv("WORKER"); behavior != "" {
		runWorker(behavior)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runWorker acts as a worker, but serves no requests. It exits with its supervisor.
func runWorker(behavior string) {
	if strings.HasSuffix(behavior, inEarlierVersions) {
		runEarlierWorker(behavior)
		return
	}
	w, err := ConnectSupervisor()
	if err != nil {
		os.Exit(1)
	}
	switch behavior {
	case "refuse":
		w.Refuse(errors.New("it does not suit"))
		os.Exit(failure.Config.Status)
	case "refuse without a kind": // as an older worker
		w.Refuse(errors.New("it does not suit"))
		os.Exit(1)
	case "end":
		return
	case "hang":
		time.Sleep(time.Hour)
	case "have no thread":
		os.Exit(2)
	case "publish nothing": // as if the supervisor had no free descriptor
		fdpass.Send(w.conn, msgSnapshot, nil)
	case "publish", "publish, then end":
		snapshot, err := os.CreateTemp("", "snapshot")
		if err != nil {
			os.Exit(1)
		}
		os.Remove(snapshot.Name())
		io.WriteString(snapshot, "published by "+fmt.Sprint(os.Getpid()))
		if w.Publish(snapshot) != nil {
			os.Exit(1)
		}
	}
	if w.AwaitPromotion() != nil {
		return
	}
	w.Shared.Workers.Add(1)
	switch behavior {
	case "end when it serves":
		return
	case "be killed when it serves":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if w.Serving() != nil || behavior == "publish, then end" {
		return
	}
	w.AnswerPings(func() {})
}

// A testRun is a supervisor with a pipe as its connection, which disconnect breaks.
type testRun struct {
	*supervisor
	restart, stop chan os.Signal
	disconnect    func()
	done          chan error
	log           *strings.Builder

	mu       sync.Mutex
	behavior string // behavior of new workers; guarded by mu
}

func (r *testRun) setBehavior(behavior string) {
	r.mu.Lock()
	r.behavior = behavior
	r.mu.Unlock()
}

func newTestRun(t *testing.T, behavior string) *testRun {
	t.Helper()
	read, write, err := os.Pipe()
	noError(t, err)
	memory, shared, err := state.New()
	noError(t, err)
	// This is INIT from a kernel that resends requests.
	request := make([]byte, 104)
	binary.NativeEndian.PutUint32(request[56:], 1<<7)
	shared.Init.Set(request)
	snapshot, err := os.Open("/dev/null")
	noError(t, err)
	r := &testRun{restart: make(chan os.Signal, 1), stop: make(chan os.Signal, 2), done: make(chan error, 1), log: &strings.Builder{}, behavior: behavior}
	r.disconnect = sync.OnceFunc(func() { read.Close() })
	r.supervisor = newSupervisor(Options{
		WorkerCommand: func(isRestart bool) *exec.Cmd {
			r.mu.Lock()
			defer r.mu.Unlock()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "WORKER="+r.behavior)
			return cmd
		},
		Snapshot: snapshot, Restart: r.restart, IsOrphaned: func() bool { return false }, Stop: r.stop, Grace: time.Minute,
		Serving: func(*state.Shared) {}, RestartEnded: func(bool) {}, Stopping: func() {},
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	}, &mount.Mounted{Mountpoint: t.TempDir()}, write, shared, memory)
	r.backOff, r.pingEvery = time.Microsecond, 100*time.Millisecond
	t.Cleanup(func() {
		r.disconnect()
		r.killWorkers()
		write.Close()
		memory.Close()
		shared.Close()
	})
	return r
}

// awaitServing runs the supervisor until a worker serves.
func (r *testRun) awaitServing(t *testing.T) {
	t.Helper()
	noError(t, r.appointWorker(false))
	for !r.worker.isServing {
		noError(t, r.handleMessage(r.worker, testwait.For(t, "a message of the worker", r.worker.messages)))
	}
}

// start runs the supervisor in a goroutine, which owns its fields until await returns.
func (r *testRun) start(t *testing.T) {
	t.Helper()
	r.awaitServing(t)
	go func() { r.done <- r.run() }()
}

// run is like supervisor.run, but returns nil for errUnmounted.
func (r *testRun) run() error {
	if err := r.supervisor.run(); err != errUnmounted {
		return err
	}
	return nil
}

func (r *testRun) await(t *testing.T) error {
	t.Helper()
	return testwait.For(t, "the end of the supervisor", r.done)
}

func (r *testRun) end(t *testing.T) error {
	t.Helper()
	r.disconnect()
	return r.await(t)
}

func children() (pids []string) {
	for _, thread := range process.Threads(os.Getpid()) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", thread))
		pids = append(pids, strings.Fields(string(text))...)
	}
	slices.Sort(pids)
	return pids
}

// awaitChildren waits until there are at least n workers.
func awaitChildren(t *testing.T, n int) {
	t.Helper()
	testwait.Until(t, fmt.Sprintf("%d workers", n), func() (any, bool) {
		pids := children()
		return pids, len(pids) >= n
	})
}

// awaitOutcome waits until a restart has ended.
func (r *testRun) awaitOutcome(t *testing.T, before uint64) {
	t.Helper()
	testwait.Until(t, fmt.Sprintf("more than %d restarts", before), func() (any, bool) {
		n := r.shared.Restarts.Load()
		return n, n > before
	})
}

// Workers that were killed do not count as crashes.
func TestEndedWorkerIsReplaced(t *testing.T) {
	r := newTestRun(t, "serve")
	r.start(t)
	// SIGQUIT makes Go exit with status 2.
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGKILL} {
		awaitChildren(t, 2)
		first := int(r.shared.Worker.Load())
		workers := r.shared.Workers.Load()
		syscall.Kill(first, sig)
		testwait.Until(t, fmt.Sprintf("another worker than %d", first), func() (any, bool) {
			n, serving := r.shared.Workers.Load(), int(r.shared.Worker.Load())
			return fmt.Sprintf("%d, the worker number %d, was number %d", serving, n, workers), n > workers && serving != first
		})
	}
	noError(t, r.end(t))
	if text := r.log.String(); strings.Count(text, `why="killed by signal 9"`) != 2 || strings.Count(text, `why="exit status 2"`) != 1 {
		t.Errorf("the log does not say how each ended:\n%s", text)
	}
	if n := r.shared.Crashes.Load(); n != 1 {
		t.Errorf("%d crashes, want 1", n)
	}
}

// A worker that answers no pings is replaced at the fourth, whatever time has passed, because the
// supervisor itself may have been stopped.
func TestHangingWorkerIsReplaced(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	r.pingEvery = r.unresponsiveLimit / 3
	first := r.worker
	for range 10 {
		noError(t, r.ping())
		noError(t, r.handleMessage(first, testwait.For(t, "a pong", first.messages)))
	}
	syscall.Kill(first.cmd.Process.Pid, syscall.SIGSTOP)
	testwait.Until(t, "a stopped worker", func() (any, bool) { return "a thread in state R, S or D", !first.hasThread("RSD") })
	pings := 0
	for ; r.worker == first; pings++ {
		noError(t, r.ping())
	}
	r.awaitServing(t)
	if text := r.log.String(); pings != 4 || r.shared.Crashes.Load() != 1 || !strings.Contains(text, `why="it did not answer pings"`) {
		t.Errorf("replaced at ping %d:\n%s", pings, text)
	}
}

// If the new worker of a restart fails, the reason is reported and the old worker keeps serving.
func TestRestart(t *testing.T) {
	r := newTestRun(t, "serve")
	r.start(t)
	ask := func() (outcome string) {
		t.Helper()
		before := r.shared.Restarts.Load()
		r.restart <- syscall.SIGHUP
		r.awaitOutcome(t, before)
		return r.shared.LastRestart.String()
	}
	first := int(r.shared.Worker.Load())
	if outcome := ask(); outcome != "" || int(r.shared.Worker.Load()) == first {
		t.Errorf("%q, and worker %d serves after %d", outcome, r.shared.Worker.Load(), first)
	}
	for behavior, want := range map[string]struct {
		outcome string
		kind    *failure.Kind
	}{
		"refuse":                {"it does not suit", failure.Config},
		"refuse without a kind": {"it does not suit", failure.Other},
		"end":                   {"the new worker exited before it was serving (exit status 0)", failure.Other},
		"publish nothing":       {errNoDescriptor.Error(), failure.Other},
	} {
		r.setBehavior(behavior)
		serving := r.shared.Worker.Load()
		outcome := ask()
		kind := failure.KindOf(r.shared.RestartError(r.shared.Restarts.Load()))
		if outcome != want.outcome || kind != want.kind || r.shared.Worker.Load() != serving {
			t.Errorf("%s: %q of kind %s, and worker %d serves after %d", behavior, outcome, kind.Name, r.shared.Worker.Load(), serving)
		}
	}
	// A snapshot that a worker publishes before it serves is used from then on.
	r.setBehavior("publish")
	if outcome := ask(); outcome != "" {
		t.Errorf("%q", outcome)
	}
	published := fmt.Sprint("published by ", r.shared.Worker.Load())
	noError(t, r.end(t))
	if text, err := io.ReadAll(io.NewSectionReader(r.Snapshot, 0, 100)); err != nil || string(text) != published {
		t.Errorf("the snapshot is %q (%v), want %q", text, err, published)
	}
}

// If the new worker fails when the old one has left, the restart is rejected, and the next worker
// serves with the old snapshot.
func TestRestartFailsAfterTheSwitch(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	old := r.Snapshot
	r.setBehavior("end when it serves")
	r.supervisor.restart()
	for p := r.next; r.worker == p || r.next == p; {
		noError(t, r.handleMessage(p, testwait.For(t, "a message of the new worker", p.messages)))
	}
	r.checkFailedRestart(t, "the new worker exited before it was serving (exit status 0)")
	if r.worker.snapshot != old {
		t.Error("the next worker has another snapshot")
	}
}

// However many restarts fail after the old worker has ended, the mount goes on if workers serve in
// between.
func TestRestartsKeepFailing(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	for range maxFailures + 2 {
		r.servingSince = time.Now().Add(-time.Hour)
		r.setBehavior("end when it serves")
		r.supervisor.restart()
		for p := r.next; r.worker == p || r.next == p; {
			noError(t, r.handleMessage(p, testwait.For(t, "a message of the new worker", p.messages)))
		}
		r.setBehavior("serve")
		r.awaitServing(t)
	}
}

// checkFailedRestart checks that the only restart so far ended with an error, that another worker
// than those of the restart takes over, and that the log says so.
func (r *testRun) checkFailedRestart(t *testing.T, want string) {
	t.Helper()
	outcome, text := r.shared.LastRestart.String(), r.log.String()
	if outcome != want || r.shared.Restarts.Load() != 1 || strings.Contains(text, "keeps serving") ||
		!strings.Contains(text, "restart rejected: another worker takes over with the old program and configuration") {
		t.Errorf("%d restarts ended, the last one with %q, want %q:\n%s", r.shared.Restarts.Load(), outcome, want, text)
	}
	r.setBehavior("serve")
	r.awaitServing(t)
	if r.worker.isRestart || r.shared.Restarts.Load() != 1 {
		t.Errorf("the next worker belongs to a restart (%v); %d restarts ended", r.worker.isRestart, r.shared.Restarts.Load())
	}
}

// If the old worker fails during a restart, the new one ends, too, and another one takes over.
func TestWorkerFailsDuringRestart(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	old := r.worker
	r.setBehavior("hang")
	r.supervisor.restart()
	fresh := r.next
	old.cmd.Process.Kill()
	noError(t, r.handleMessage(old, testwait.For(t, "the end of the worker", old.messages)))
	testwait.For(t, "the end of the new worker", fresh.ended)
	r.checkFailedRestart(t, "the worker failed during the restart; try again")
}

// A standby never takes over with a snapshot that is older than the latest one.
func TestStandbyOfAnOlderSnapshot(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	older := r.next
	latest, err := os.Open("/dev/null")
	noError(t, err)
	noError(t, r.handleMessage(r.worker, message{msgSnapshot, latest}))
	r.worker.kill()
	noError(t, r.processFailed(r.worker, errors.New("killed by a test")))
	noError(t, r.appointWorker(false))
	if r.worker == older || r.worker.snapshot != latest {
		t.Error("a worker that started from an older snapshot takes over")
	}
}

// A worker that has served has applied a restart, even if its end is noticed before its message.
func TestRestartBehindTheEnd(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	var ended []bool
	r.RestartEnded = func(succeeded bool) { ended = append(ended, succeeded) }
	r.setBehavior("publish, then end")
	r.supervisor.restart()
	p := r.next
	for !p.isPromoted {
		noError(t, r.handleMessage(p, testwait.For(t, "a message of the new worker", p.messages)))
	}
	testwait.For(t, "the end of the new worker", p.ended)
	noError(t, r.processFailed(p, nil))
	if !slices.Equal(ended, []bool{true}) {
		t.Errorf("the restart has ended with success %v, want once with true", ended)
	}
	want := fmt.Sprint("published by ", p.cmd.Process.Pid)
	if text, err := io.ReadAll(io.NewSectionReader(r.Snapshot, 0, 100)); err != nil || string(text) != want || r.shared.LastRestart.String() != "" || r.shared.Restarts.Load() != 1 {
		t.Errorf("the snapshot is %q (%v), want %q; %d restarts, the last one with %q", text, err, want, r.shared.Restarts.Load(), r.shared.LastRestart.String())
	}
}

// Workers that end right after they began to serve count as failures in a row, even if their end is
// noticed before that message.
func TestFailuresBehindTheEnd(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	r.servingSince = time.Now().Add(-time.Hour)
	noError(t, r.processFailed(r.next, errors.New("it began too early")))
	r.setBehavior("publish, then end")
	noError(t, r.processFailed(r.worker, errors.New("killed by a test")))
	for failures := 2; failures < 5; failures++ {
		noError(t, r.appointWorker(false))
		p := r.worker
		for !p.isPromoted {
			noError(t, r.handleMessage(p, testwait.For(t, "a message of the new worker", p.messages)))
		}
		testwait.For(t, "the end of the new worker", p.ended)
		noError(t, r.processFailed(p, nil))
		want := fmt.Sprint("published by ", p.cmd.Process.Pid)
		if text, err := io.ReadAll(io.NewSectionReader(r.Snapshot, 0, 100)); err != nil || string(text) != want {
			t.Errorf("the snapshot is %q (%v), want %q", text, err, want)
		}
		if r.failures != failures {
			t.Errorf("%d failures, want %d", r.failures, failures)
		}
	}
}

// The reason of a process that refuses is reported even if its end is noticed before its message.
func TestRefusalBehindTheEnd(t *testing.T) {
	r := newTestRun(t, "refuse")
	p, err := r.startProcess(true)
	noError(t, err)
	testwait.For(t, "the end of the new worker", p.ended)
	r.next = p
	err = r.processFailed(p, nil)
	why := r.shared.RestartError(1)
	if err != nil || fmt.Sprint(why) != "it does not suit" || failure.KindOf(why) != failure.Config {
		t.Errorf("%v, and the restart was rejected because of %v, of kind %s", err, why, failure.KindOf(why).Name)
	}
}

// Without a worker that serves, Stop does not wait for the grace period.
func TestStopBeforeItServes(t *testing.T) {
	r := newTestRun(t, "hang")
	r.Grace = time.Hour
	go func() { r.done <- r.supervise() }()
	awaitChildren(t, 1)
	r.stop <- syscall.SIGTERM
	if err := r.await(t); err != ErrInterrupted {
		t.Errorf("%v, want: %v", err, ErrInterrupted)
	}
	if left := children(); len(left) > 0 {
		t.Errorf("processes that are left: %v", left)
	}
}

// A request during a restart starts another one, which reads the configuration as it is then.
func TestRequestDuringARestart(t *testing.T) {
	r := newTestRun(t, "serve")
	r.start(t)
	awaitChildren(t, 2)
	serving := fmt.Sprint(r.shared.Worker.Load())
	r.setBehavior("hang")
	r.restart <- syscall.SIGHUP
	testwait.Until(t, "a restart", func() (any, bool) {
		n := r.shared.RestartsBegun.Load()
		return n, n == 1
	})
	r.restart <- syscall.SIGHUP
	testwait.Until(t, "the receipt of the signal", func() (any, bool) { return len(r.restart), len(r.restart) == 0 })
	r.setBehavior("serve")
	for _, child := range children() {
		if child != serving {
			pid, _ := strconv.Atoi(child)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	r.awaitOutcome(t, 1)
	if outcome := r.shared.LastRestart.String(); outcome != "" || r.shared.RestartsBegun.Load() != 2 {
		t.Errorf("%d restarts began, the last one ended with %q", r.shared.RestartsBegun.Load(), outcome)
	}
	noError(t, r.end(t))
}

// If the terminal is gone, a signal ends the mount, or does nothing with nohup, unless a command
// announced it.
func TestRequestWithoutATerminal(t *testing.T) {
	for _, announced := range []bool{true, false} {
		r := newTestRun(t, "serve")
		r.awaitServing(t)
		r.IsOrphaned = func() bool { return true }
		if announced {
			r.shared.AnnounceRestart()
		}
		if err := r.requestRestart(); err != nil && err != errStopped || r.restartRequested != announced || r.graceEnd.IsZero() != announced {
			t.Errorf("announced: %v; %v; restart: %v; the grace period ends at %v", announced, err, r.restartRequested, r.graceEnd)
		}
		// A shell passes SIGHUP on to its jobs, and when it exits, the kernel sends another.
		if err := r.requestRestart(); err != nil {
			t.Errorf("announced: %v; a second signal: %v", announced, err)
		}
		r.IgnoreHangup, r.graceEnd, r.restartRequested = true, time.Time{}, false
		if err := r.requestRestart(); err != nil || r.restartRequested != announced || !r.graceEnd.IsZero() {
			t.Errorf("nohup, announced: %v; %v; restart: %v; the grace period ends at %v", announced, err, r.restartRequested, r.graceEnd)
		}
	}
}

// The recorded standby is one that can take over by itself.
func TestStandbyIsRecorded(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	check := func(when string, want int) {
		t.Helper()
		noError(t, r.ping())
		if got := r.shared.Standby.Load(); got != int64(want) {
			t.Errorf("%s: %d, want %d", when, got, want)
		}
	}
	check("with a standby", r.next.cmd.Process.Pid)
	r.supervisor.restart()
	check("during a restart", 0)
	r.graceEnd = time.Now().Add(time.Minute)
	r.killNext()
	check("without a standby", 0)
}

func TestRestartInTheGracePeriod(t *testing.T) {
	r := newTestRun(t, "serve")
	r.graceEnd = time.Now().Add(time.Minute)
	r.supervisor.restart()
	if outcome := r.shared.LastRestart.String(); r.shared.Restarts.Load() != 1 || !strings.Contains(outcome, "the mount is ending") {
		t.Errorf("%d restarts ended, the last one with %q", r.shared.Restarts.Load(), outcome)
	}
}

func TestGivingUp(t *testing.T) {
	r := newTestRun(t, "serve")
	r.start(t)
	awaitChildren(t, 2)
	r.setBehavior("end when it serves")
	for _, child := range children() {
		var pid int
		fmt.Sscan(child, &pid)
		syscall.Kill(pid, syscall.SIGKILL)
	}
	err := r.await(t)
	if err == nil || !strings.Contains(err.Error(), "10 workers in a row failed before they had answered a request; the last failure: ") {
		t.Error(err)
	}
}

// If no worker can be started, or each one is killed, the supervisor logs that once and keeps
// trying until a worker serves, or the mount ends.
func TestNoWorkerCanServe(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	for _, test := range []struct{ behavior, end string }{
		{"none", "recover"}, {"have no thread", "recover"}, {"be killed when it serves", "recover"},
		{"none", "unmount"}, {"none", "stop"},
	} {
		t.Run(test.behavior+", "+test.end, func(t *testing.T) {
			t.Parallel()
			r := newTestRun(t, "serve")
			var tried atomic.Int64
			worker := r.WorkerCommand
			r.WorkerCommand = func(isRestart bool) *exec.Cmd {
				tried.Add(1)
				cmd := worker(isRestart)
				if slices.Contains(cmd.Env, "WORKER=none") {
					cmd.Path = "/dev/null" // cannot be executed
				}
				return cmd
			}
			r.awaitServing(t)
			noError(t, r.processFailed(r.next, errors.New("it began too early")))
			r.setBehavior(test.behavior)
			go func() { r.done <- r.run() }()
			syscall.Kill(int(r.shared.Worker.Load()), syscall.SIGKILL)
			testwait.Until(t, fmt.Sprintf("more than %d attempts", maxFailures+1), func() (any, bool) { return tried.Load(), tried.Load() > maxFailures+1 })
			heartbeat := r.shared.Heartbeat.Load()
			switch test.end {
			case "recover":
				r.setBehavior("serve")
				testwait.Until(t, "a worker that serves", func() (any, bool) {
					return fmt.Sprintf("%d attempts", tried.Load()), r.shared.Heartbeat.Load() > heartbeat
				})
				r.disconnect()
			case "unmount":
				r.disconnect()
			case "stop":
				r.stop <- syscall.SIGTERM
				r.stop <- syscall.SIGTERM
			}
			if err := r.await(t); err != nil && !(test.end == "stop" && errors.Is(err, errStopped)) {
				t.Error(err)
			}
			if text := r.log.String(); strings.Count(text, "the machine lacks memory or processes") != 1 {
				t.Errorf("the log does not report the problem exactly once:\n%s", text)
			}
		})
	}
}

func TestOverdueWorker(t *testing.T) {
	r := newTestRun(t, "serve")
	r.awaitServing(t)
	r.unresponsiveLimit = 2 * checkEvery
	r.worker.isServing = false
	overdue := r.worker
	testwait.Until(t, "the end of its time", func() (any, bool) {
		noError(t, r.checkProcesses())
		return "the overdue worker", r.worker != overdue
	})
	if r.lastFailure == nil || !strings.Contains(r.lastFailure.Error(), "was not ready within 100ms") {
		t.Error(r.lastFailure)
	}
}

// runnableTime is the processor time of a process that could use a processor, and the whole period
// for any other process.
func TestRunnableTime(t *testing.T) {
	const period = time.Hour
	for script, all := range map[string]bool{"while :; do :; done": false, "sleep 1000 & wait": true, "kill -STOP $$": true} {
		p := &workerProcess{cmd: exec.Command("sh", "-c", script)}
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		began := time.Now()
		noError(t, p.cmd.Start())
		testwait.Until(t, script, func() (any, bool) { return fmt.Sprint("in state R: ", all), p.hasThread("R") != all })
		var runnable time.Duration
		testwait.Until(t, script, func() (any, bool) {
			runnable = p.runnableTime(period)
			return runnable, (runnable == period) == all && runnable > 0
		})
		if !all && runnable > time.Since(began) {
			t.Errorf("%s: runnable for %v", script, runnable)
		}
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		testwait.End(t, "the end of "+script, func() { p.cmd.Wait() })
	}
}

// If the kernel does not resend requests, a mount that was handed over ends with its worker.
func TestHandedOverWithoutResend(t *testing.T) {
	r := newTestRun(t, "serve")
	r.mounted.HandedOver, r.NoResend = true, true
	r.start(t)
	first := int(r.shared.Worker.Load())
	restarts := r.shared.Restarts.Load()
	r.restart <- syscall.SIGHUP
	r.awaitOutcome(t, restarts)
	if why := r.shared.LastRestart.String(); !strings.Contains(why, "handed over") || int(r.shared.Worker.Load()) != first {
		t.Errorf("restart: %q", why)
	}
	syscall.Kill(first, syscall.SIGKILL)
	if err := r.await(t); err == nil || !strings.Contains(err.Error(), "cannot remount a mount that was handed over") {
		t.Errorf("it ended with %v", err)
	}
}

const inEarlierVersions = " in earlier versions"

// runEarlierWorker acts as a worker of an earlier version, which knows these descriptors and
// messages.
func runEarlierWorker(behavior string) {
	const connection, memory, socket, snapshot = 3, 4, 5, 6
	begins := make([]byte, 8)
	pipe, null := new(unix.Stat_t), new(unix.Stat_t)
	unix.Pread(memory, begins, 0)
	unix.Fstat(connection, pipe)
	unix.Fstat(snapshot, null)
	if string(begins) != "batchfs\x00" || pipe.Mode&unix.S_IFMT != unix.S_IFIFO || null.Mode&unix.S_IFMT != unix.S_IFCHR {
		os.Exit(3)
	}
	if strings.HasPrefix(behavior, "refuse") {
		io.WriteString(os.NewFile(socket, "socket"), "refused it does not suit")
		return
	}
	unix.Sendmsg(socket, []byte("snapshot"), unix.UnixRights(memory), nil, 0)
	unix.Write(socket, []byte("prepared"))
	replies := map[string]string{"serve": "serving", "ping": "pong"}
	for {
		message := make([]byte, 100)
		n, _ := unix.Read(socket, message)
		if string(message[:n]) == "go" {
			return
		}
		reply, known := replies[string(message[:n])]
		if !known {
			os.Exit(4)
		}
		unix.Write(socket, []byte(reply))
	}
}

// The supervisor and its workers may be of different versions, so neither the messages nor the
// descriptors of a worker ever change: if this test or the next one fails, mend the code instead.
// A new message must be one that the other side need not know.
func TestWorkerOfAnEarlierVersion(t *testing.T) {
	r := newTestRun(t, "serve"+inEarlierVersions)
	before := r.Snapshot
	r.awaitServing(t)
	worker := r.worker
	if r.Snapshot == before {
		t.Error("its snapshot is not adopted")
	}
	noError(t, r.ping())
	noError(t, r.handleMessage(worker, testwait.For(t, "a pong", worker.messages)))
	if r.sinceLastPong != 0 {
		t.Error("its pong is not counted")
	}
	noError(t, worker.send(msgLeave))
	testwait.For(t, "its end", worker.ended)
	if status := worker.status(); status != 0 {
		t.Errorf("told to leave, it ends with %v", status)
	}

	r = newTestRun(t, "refuse"+inEarlierVersions)
	noError(t, r.appointWorker(false))
	if err := r.handleMessage(r.worker, testwait.For(t, "a message", r.worker.messages)); fmt.Sprint(err) != "it does not suit" {
		t.Errorf("its refusal is understood as %v", err)
	}
}

// A worker finds its descriptors where a supervisor of an earlier version puts them, and
// understands it.
func TestSupervisorOfAnEarlierVersion(t *testing.T) {
	if fds := []int{connectionFd, sharedFd, socketFd, snapshotFd, ExtraFd}; !slices.Equal(fds, []int{3, 4, 5, 6, 7}) {
		t.Errorf("the descriptors are %d", fds)
	}
	conn, end, err := fdpass.Pair()
	noError(t, err)
	supervisor, err := fdpass.Connect(end)
	noError(t, err)
	t.Cleanup(func() { supervisor.Close() })
	supervisor.SetReadDeadline(time.Now().Add(testwait.Limit))
	memory, shared, err := state.New()
	noError(t, err)
	t.Cleanup(func() { memory.Close(); shared.Close() })
	w := &Worker{Shared: shared, conn: conn}
	step := func(do func() error, said string) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- do() }()
		message, control := make([]byte, 100), make([]byte, 100)
		n, rights, _, _, err := supervisor.ReadMsgUnix(message, control)
		noError(t, err)
		if string(message[:n]) != said || (rights > 0) != (said == "snapshot") {
			t.Errorf("it says %q, with %d bytes of descriptors, want %q", message[:n], rights, said)
		}
		if said == "prepared" {
			io.WriteString(supervisor, "serve")
		}
		noError(t, testwait.For(t, "the worker", done))
	}
	step(func() error { w.Refuse(errors.New("it does not suit")); return nil }, "refused it does not suit")
	snapshot, err := os.Open("/dev/null")
	noError(t, err)
	step(func() error { return w.Publish(snapshot) }, "snapshot")
	step(w.AwaitPromotion, "prepared")
	step(w.Serving, "serving")
	io.WriteString(supervisor, "ping")
	io.WriteString(supervisor, "go")
	step(func() error { w.AnswerPings(func() {}); return nil }, "pong")
}
