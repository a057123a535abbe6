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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/process"
	"batchfs/internal/testwait"
)

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The tests' own program is the worker that their supervisor starts: it behaves as WORKER says.
func TestMain(m *testing.M) {
	if how := os.Getenv("WORKER"); how != "" {
		work(how)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// work is a worker that answers no requests. It ends with its supervisor.
func work(how string) {
	w, err := ConnectSupervisor()
	if err != nil {
		os.Exit(1)
	}
	switch how {
	case "refuse":
		w.Refuse(errors.New("it does not suit"))
		return
	case "end":
		return
	case "hang":
		time.Sleep(time.Hour)
	case "have no thread":
		os.Exit(2)
	case "publish":
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
	switch how {
	case "end when it serves":
		return
	case "be killed when it serves":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if w.Serving() != nil {
		return
	}
	w.AnswerPings(func() {})
}

// A run is a supervisor under test: of no mount, but of a pipe in the connection's place, which is gone when ends is called.
type run struct {
	*supervisor
	restart, stop chan os.Signal
	ends          func()
	done          chan error
	log           *strings.Builder

	mu  sync.Mutex
	how string // the next worker behaves; guarded by mu
}

func (r *run) workersWill(how string) {
	r.mu.Lock()
	r.how = how
	r.mu.Unlock()
}

func newRun(t *testing.T, how string) *run {
	t.Helper()
	read, write, err := os.Pipe()
	noError(t, err)
	memory, shared, err := state.New()
	noError(t, err)
	// The kernel's first request, of a kernel that sends again what was not answered.
	init := make([]byte, 104)
	binary.NativeEndian.PutUint32(init[56:], 1<<7)
	shared.Init.Set(init)
	snapshot, err := os.Open("/dev/null")
	noError(t, err)
	r := &run{restart: make(chan os.Signal, 1), stop: make(chan os.Signal, 2), done: make(chan error, 1), log: &strings.Builder{}, how: how}
	r.ends = sync.OnceFunc(func() { read.Close() })
	r.supervisor = newSupervisor(Options{
		Worker: func(reload bool) *exec.Cmd {
			r.mu.Lock()
			defer r.mu.Unlock()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "WORKER="+r.how)
			return cmd
		},
		Snapshot: snapshot, Restart: r.restart, Stop: r.stop, Grace: time.Minute,
		Serving: func(*state.Shared) {}, Restarted: func(int) {}, Stopping: func() {},
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	}, &mount.Mounted{Mountpoint: t.TempDir()}, write, shared, memory)
	r.backOff, r.pingEvery = time.Microsecond, 100*time.Millisecond
	t.Cleanup(func() {
		r.ends()
		r.killWorkers()
		write.Close()
		memory.Close()
		shared.Close()
	})
	return r
}

// ready lets the supervisor have a worker that serves.
func (r *run) ready(t *testing.T) {
	t.Helper()
	noError(t, r.begin(false))
	for !r.worker.serves {
		noError(t, r.received(r.worker, testwait.For(t, "a message of the worker", r.worker.messages)))
	}
}

// start starts the supervisor. What it holds is its own from then on until await returns.
func (r *run) start(t *testing.T) {
	t.Helper()
	r.ready(t)
	go func() { r.done <- r.run() }()
}

// run is the supervisor's, without the error of a mount that has ended as it should.
func (r *run) run() error {
	if err := r.supervisor.run(); err != errOver {
		return err
	}
	return nil
}

func (r *run) await(t *testing.T) error {
	t.Helper()
	return testwait.For(t, "the end of the supervisor", r.done)
}

// end ends the mount.
func (r *run) end(t *testing.T) error {
	t.Helper()
	r.ends()
	return r.await(t)
}

// children are the processes that this one has, without those that have ended.
func children() (pids []string) {
	for _, thread := range process.Threads(os.Getpid()) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", thread))
		pids = append(pids, strings.Fields(string(text))...)
	}
	slices.Sort(pids)
	return pids
}

// A worker that ends is replaced by the one that stands by, and then another stands by. Those that were not killed are counted.
func TestEndedWorkerIsReplaced(t *testing.T) {
	r := newRun(t, "serve")
	r.start(t)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGKILL} { // Go ends with status 2 of SIGQUIT
		testwait.Until(t, "a process that stands by", func() bool { return len(children()) == 2 })
		first := int(r.shared.Worker.Load())
		workers := r.shared.Workers.Load()
		syscall.Kill(first, sig)
		testwait.Until(t, "another worker", func() bool { return r.shared.Workers.Load() > workers && int(r.shared.Worker.Load()) != first })
	}
	noError(t, r.end(t))
	if text := r.log.String(); strings.Count(text, `why="killed by signal 9"`) != 2 || strings.Count(text, `why="exit status 2"`) != 1 {
		t.Errorf("the log does not say how each ended:\n%s", text)
	}
	if n := r.shared.Crashes.Load(); n != 1 {
		t.Errorf("%d crashes, want 1", n)
	}
}

// A worker is replaced that does not answer four pings, however long ago they were sent: this process may have been stopped.
func TestHangingWorkerIsReplaced(t *testing.T) {
	r := newRun(t, "serve")
	r.ready(t)
	r.pingEvery = r.unresponsiveLimit / 3
	first := r.worker
	for range 10 {
		noError(t, r.ping())
		noError(t, r.received(first, testwait.For(t, "a pong", first.messages)))
	}
	syscall.Kill(first.cmd.Process.Pid, syscall.SIGSTOP)
	testwait.Until(t, "a stopped worker", func() bool { return !first.hasThread("RSD") })
	pings := 0
	for ; r.worker == first; pings++ {
		noError(t, r.ping())
	}
	r.ready(t)
	if text := r.log.String(); pings != 4 || r.shared.Crashes.Load() != 1 || !strings.Contains(text, `why="it did not answer"`) {
		t.Errorf("replaced at ping %d:\n%s", pings, text)
	}
}

// A restart ends the worker and lets another serve; one that refuses is named, and the same worker serves on.
func TestRestart(t *testing.T) {
	r := newRun(t, "serve")
	r.start(t)
	ask := func() (outcome string) {
		t.Helper()
		before := r.shared.Restarts.Load()
		r.restart <- syscall.SIGHUP
		testwait.Until(t, "the outcome of a restart", func() bool { return r.shared.Restarts.Load() > before })
		return r.shared.LastRestart.String()
	}
	first := int(r.shared.Worker.Load())
	if outcome := ask(); outcome != "" || int(r.shared.Worker.Load()) == first {
		t.Errorf("%q, and worker %d serves after %d", outcome, r.shared.Worker.Load(), first)
	}
	for how, says := range map[string]string{"refuse": "it does not suit", "end": "the process that was to serve ended (exit status 0)"} {
		r.workersWill(how)
		serving := r.shared.Worker.Load()
		if outcome := ask(); outcome != says || r.shared.Worker.Load() != serving {
			t.Errorf("%s: %q, and worker %d serves after %d", how, outcome, r.shared.Worker.Load(), serving)
		}
	}
	// What a worker publishes before it serves is for its successors.
	r.workersWill("publish")
	if outcome := ask(); outcome != "" {
		t.Errorf("%q", outcome)
	}
	published := fmt.Sprint("published by ", r.shared.Worker.Load())
	noError(t, r.end(t))
	if text, err := io.ReadAll(io.NewSectionReader(r.Snapshot, 0, 100)); err != nil || string(text) != published {
		t.Errorf("the snapshot is %q (%v), want %q", text, err, published)
	}
}

// A mount that no worker serves yet ends immediately when it is told to stop, without waiting for
// the grace period.
func TestStopBeforeItServes(t *testing.T) {
	r := newRun(t, "hang")
	r.Grace = time.Hour
	go func() { r.done <- r.serve() }()
	testwait.Until(t, "a worker", func() bool { return len(children()) > 0 })
	r.stop <- syscall.SIGTERM
	if err := r.await(t); err != ErrInterrupted {
		t.Errorf("%v, want: %v", err, ErrInterrupted)
	}
	if left := children(); len(left) > 0 {
		t.Errorf("processes that are left: %v", left)
	}
}

// While the mount ends a restart is refused in words.
func TestRestartInTheGracePeriod(t *testing.T) {
	r := newRun(t, "serve")
	r.ending = time.Now().Add(time.Minute)
	r.supervisor.restart()
	if outcome := r.shared.LastRestart.String(); r.shared.Restarts.Load() != 1 || !strings.Contains(outcome, "the mount is ending") {
		t.Errorf("%d restarts are over, the last one with %q", r.shared.Restarts.Load(), outcome)
	}
}

// Workers that end before they serve are tried again, ever later, and not for ever.
func TestGivingUp(t *testing.T) {
	r := newRun(t, "serve")
	r.start(t)
	testwait.Until(t, "a process that stands by", func() bool { return len(children()) == 2 })
	r.workersWill("end when it serves")
	for _, child := range children() {
		var pid int
		fmt.Sscan(child, &pid)
		syscall.Kill(pid, syscall.SIGKILL)
	}
	err := r.await(t)
	if err == nil || !strings.Contains(err.Error(), "10 processes in a row ended before they had answered a request; the last one: ") {
		t.Error(err)
	}
}

// A machine that starts no worker, or kills each, is no reason to give up: it is said once. Stop and the end of the mount
// are obeyed meanwhile.
func TestMachineLetsNoneServe(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	for _, test := range []struct{ how, end string }{
		{"none", "it lets one"}, {"have no thread", "it lets one"}, {"be killed when it serves", "it lets one"},
		{"none", "unmount"}, {"none", "stop"},
	} {
		t.Run(test.how+", "+test.end, func(t *testing.T) {
			t.Parallel()
			r := newRun(t, "serve")
			var tried atomic.Int64
			worker := r.Worker
			r.Worker = func(reload bool) *exec.Cmd {
				tried.Add(1)
				cmd := worker(reload)
				if slices.Contains(cmd.Env, "WORKER=none") {
					cmd.Path = "/dev/null" // which the kernel does not start
				}
				return cmd
			}
			r.ready(t)
			noError(t, r.workerFailed(r.standby, errors.New("it began too early")))
			r.workersWill(test.how)
			go func() { r.done <- r.run() }()
			syscall.Kill(int(r.shared.Worker.Load()), syscall.SIGKILL)
			testwait.Until(t, "more attempts than may fail", func() bool { return tried.Load() > maxFailures+1 })
			silent := r.shared.Heartbeat.Load()
			switch test.end {
			case "it lets one":
				r.workersWill("serve")
				testwait.Until(t, "a worker that serves", func() bool { return r.shared.Heartbeat.Load() > silent })
				r.ends()
			case "unmount":
				r.ends()
			case "stop":
				r.stop <- syscall.SIGTERM
				r.stop <- syscall.SIGTERM
			}
			if err := r.await(t); err != nil && !(test.end == "stop" && errors.Is(err, errStopped)) {
				t.Error(err)
			}
			if text := r.log.String(); strings.Count(text, "the machine starts none or kills it") != 1 {
				t.Errorf("the log does not say once what is wrong:\n%s", text)
			}
		})
	}
}

// A worker that was told to serve and does nothing is late.
func TestLateWorker(t *testing.T) {
	r := newRun(t, "serve")
	r.ready(t)
	r.unresponsiveLimit = 2 * checkEvery
	r.worker.serves = false
	late := r.worker
	testwait.Until(t, "the end of its time", func() bool {
		noError(t, r.checkProcesses())
		return r.worker != late
	})
	if r.lastFailure == nil || !strings.Contains(r.lastFailure.Error(), "did not get ready within 100ms") {
		t.Error(r.lastFailure)
	}
}

// Of a process that could use a processor, only what it gets of one counts. Of any other the whole time does.
func TestWorked(t *testing.T) {
	const while = time.Hour
	for script, all := range map[string]bool{"while :; do :; done": false, "sleep 1000 & wait": true, "kill -STOP $$": true} {
		p := &workerProcess{cmd: exec.Command("sh", "-c", script)}
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		began := time.Now()
		noError(t, p.cmd.Start())
		testwait.Until(t, script, func() bool { return p.hasThread("R") != all })
		var worked time.Duration
		testwait.Until(t, script, func() bool {
			worked = p.runnableTime(while)
			return (worked == while) == all && worked > 0
		})
		if !all && worked > time.Since(began) {
			t.Errorf("%s: worked %v", script, worked)
		}
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		p.cmd.Wait()
	}
}

// Where the kernel sends nothing again, a connection that was handed over lasts as long as its worker, and a restart is refused.
func TestHandedOverWithoutResend(t *testing.T) {
	r := newRun(t, "serve")
	r.Connection, r.NoResend = r.connection, true
	r.start(t)
	first := int(r.shared.Worker.Load())
	restarts := r.shared.Restarts.Load()
	r.restart <- syscall.SIGHUP
	testwait.Until(t, "the end of the restart", func() bool { return r.shared.Restarts.Load() > restarts })
	if why := r.shared.LastRestart.String(); !strings.Contains(why, "handed over") || int(r.shared.Worker.Load()) != first {
		t.Errorf("a restart: %q", why)
	}
	syscall.Kill(first, syscall.SIGKILL)
	if err := r.await(t); err == nil || !strings.Contains(err.Error(), "cannot be made again from here") {
		t.Errorf("it ended with %v", err)
	}
}
