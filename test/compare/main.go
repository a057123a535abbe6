// Compare measures the processor time that two builds of batchfs take to serve a batch. Both are mounted at once, and read in turns.
//
//	compare REF NOW    two programs
//
// It exits with 1 if NOW takes more than 1.05 of the time of REF, p < 0.05.
package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	batchSize, blockSize = 12, 1024
	batchBytes           = 2 * batchSize * blockSize * 2 // x and y, uint16
	tokenBytes           = 256 << 20

	rounds = 50
	turn   = 200 * time.Millisecond // of reading one file of one program
	most   = 1.05
	sure   = 0.05
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: compare REF NOW")
		os.Exit(2)
	}
	slower, err := compare(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(2)
	}
	if slower {
		os.Exit(1)
	}
}

// A row is one way to read, and what it cost in each round.
type row struct {
	access, file string
	programs     [2]*reader // REF and NOW
	ratios       []float64  // of NOW to REF
}

func compare(ref, now string) (slower bool, err error) {
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	tokens := filepath.Join(dir, "train.bin")
	if err := os.WriteFile(tokens, make([]byte, tokenBytes), 0o644); err != nil {
		return false, err
	}
	var rows []*row
	for _, access := range []string{"pread", "remap"} {
		next, batches := &row{access: access, file: "next"}, &row{access: access, file: "batches.bin"}
		rows = append(rows, next, batches)
		for i, program := range []string{ref, now} {
			m, err := mount(program, access, tokens, filepath.Join(dir, fmt.Sprint(access, i)))
			if err != nil {
				return false, err
			}
			defer m.unmount()
			for _, r := range []*row{next, batches} {
				if r.programs[i], err = m.open(r.file); err != nil {
					return false, err
				}
				defer r.programs[i].file.Close()
			}
		}
	}
	for round := range rounds + 1 {
		fmt.Fprintf(os.Stderr, "\rround %d of %d", round, rounds)
		for _, r := range rows {
			var cost [2]float64
			for i := range cost {
				i = (i + round) % 2 // neither is always first
				if cost[i], err = r.programs[i].measure(); err != nil {
					return false, err
				}
			}
			if round > 0 { // the first one warms up
				r.ratios = append(r.ratios, cost[1]/cost[0])
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	fmt.Println("processor time of the workers for a batch, now over ref: median [95% interval]")
	for _, r := range rows {
		slower = r.print() || slower
	}
	return slower, nil
}

// print prints the median of the ratios, with the interval that the ranks of a binomial distribution give, and says whether a sign
// test holds the median to be above most.
func (r *row) print() (slower bool) {
	slices.Sort(r.ratios)
	n := len(r.ratios)
	above := n - slices.IndexFunc(append(r.ratios, math.Inf(1)), func(x float64) bool { return x > most })
	low := 0
	for tail(n, n-low) < sure/2 {
		low++
	}
	low = max(low-1, 0)
	verdict := ""
	p := tail(n, above)
	if slower = p < sure; slower {
		verdict = fmt.Sprintf("  ABOVE %v (p = %.4f)", most, p)
	}
	fmt.Printf("%-6s %-12s %.3f [%.3f, %.3f]%s\n", r.access, r.file, (r.ratios[n/2]+r.ratios[(n-1)/2])/2, r.ratios[low], r.ratios[n-1-low], verdict)
	return slower
}

// tail is the probability that at least k of n fair coins show heads.
func tail(n, k int) (p float64) {
	for ; k <= n; k++ {
		a, _ := math.Lgamma(float64(n + 1))
		b, _ := math.Lgamma(float64(k + 1))
		c, _ := math.Lgamma(float64(n - k + 1))
		p += math.Exp(a - b - c - float64(n)*math.Ln2)
	}
	return p
}

// A mounted is a program that serves a mount.
type mounted struct {
	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// mount returns once the mount answers.
func mount(program, access, tokens, dir string) (*mounted, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	config := fmt.Sprintf("[batch]\nbatch_size = %d\nblock_size = %d\nsteps = 100000000\ntoken_dtype = \"uint16\"\n[splits.train]\ntokens = %q\n[memory]\naccess = %q\n",
		batchSize, blockSize, tokens, access)
	if err := os.WriteFile(dir+".toml", []byte(config), 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(dir + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m := &mounted{dir: dir, cmd: exec.Command(program, "mount", "-c", dir+".toml", dir), done: make(chan struct{})}
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		m.cmd.Wait()
		close(m.done)
	}()
	for deadline := time.After(time.Minute); ; {
		said, _ := os.ReadFile(log.Name())
		if strings.Contains(string(said), "stop with Ctrl-C") {
			return m, nil
		}
		select {
		case <-m.done:
			return nil, fmt.Errorf("%s: %s", program, said)
		case <-deadline:
			m.unmount()
			return nil, fmt.Errorf("%s has not mounted within a minute: %s", program, said)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (m *mounted) unmount() {
	m.cmd.Process.Signal(syscall.SIGTERM)
	<-m.done
}

// processorTime is that of all workers so far.
func (m *mounted) processorTime() (sum time.Duration, err error) {
	var all []string
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.cmd.Process.Pid))
	for _, thread := range threads {
		children, _ := os.ReadFile(thread)
		all = append(all, strings.Fields(string(children))...)
	}
	for _, worker := range all {
		threads, _ := filepath.Glob("/proc/" + worker + "/task/*/schedstat")
		for _, thread := range threads {
			var ran time.Duration
			stat, _ := os.ReadFile(thread)
			fmt.Sscan(string(stat), &ran)
			sum += ran
		}
	}
	if sum == 0 {
		return 0, errors.New("the kernel does not say what processor time a thread took (/proc/PID/schedstat)")
	}
	return sum, nil
}

// A reader reads one batch after the other.
type reader struct {
	*mounted
	file *os.File
	at   int64 // of batches.bin; next always begins at 0
	step int64
}

func (m *mounted) open(name string) (*reader, error) {
	f, err := os.Open(filepath.Join(m.dir, "train", name))
	r := &reader{mounted: m, file: f}
	if name != "next" {
		r.step = batchBytes
	}
	return r, err
}

// measure returns the processor time for a batch, in nanoseconds.
func (r *reader) measure() (float64, error) {
	buf := make([]byte, batchBytes)
	before, err := r.processorTime()
	if err != nil {
		return 0, err
	}
	batches := 0
	for end := time.Now().Add(turn); time.Now().Before(end); batches++ {
		if n, err := r.file.ReadAt(buf, r.at); n < batchBytes && err != io.EOF {
			return 0, fmt.Errorf("%s: %d bytes of a batch: %w", r.file.Name(), n, err)
		}
		r.at += r.step
	}
	after, err := r.processorTime()
	unix.Fadvise(int(r.file.Fd()), 0, 0, unix.FADV_DONTNEED) // no batch is read twice
	return float64(after-before) / float64(batches), err
}
