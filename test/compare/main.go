// Compare measures the processor time that two builds of batchfs take to serve a batch. Both are mounted at once, and read alternately.
//
//	compare REF NOW    two programs
//
// It fails if NOW takes more than 1.05 of the time of REF, p < 0.05.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
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
	long   = 200 * time.Millisecond // one file of one program is read at a time
	most   = 1.05
	sure   = 0.05
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: compare REF NOW")
	}
	if err := compare(os.Args[1], os.Args[2]); err != nil {
		log.Fatal("compare: ", err)
	}
}

// A way is an access and a file that is read, and what it cost in each round.
type way struct {
	access, file string
	programs     [2]*reader // REF and NOW
	ratios       []float64  // of NOW to REF
}

func compare(programs ...string) error {
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tokens := filepath.Join(dir, "train.bin")
	if err := os.WriteFile(tokens, make([]byte, tokenBytes), 0o644); err != nil {
		return err
	}
	var ways []*way
	for _, access := range []string{"pread", "remap"} {
		next, batches := &way{access: access, file: "next"}, &way{access: access, file: "batches.bin"}
		ways = append(ways, next, batches)
		for i, program := range programs {
			m, err := mount(program, access, tokens, filepath.Join(dir, fmt.Sprint(access, i)))
			if err != nil {
				return err
			}
			defer m.unmount()
			for _, w := range []*way{next, batches} {
				if w.programs[i], err = m.open(w.file); err != nil {
					return err
				}
				defer w.programs[i].file.Close()
			}
		}
	}
	for round := range rounds + 1 {
		fmt.Fprintf(os.Stderr, "\rround %d of %d", round, rounds)
		for _, w := range ways {
			if err := w.measure(round); err != nil {
				return err
			}
		}
	}
	fmt.Println("\nprocessor time of the workers for a batch, now over ref: median [95% interval]")
	slower := false
	for _, w := range ways {
		slower = w.print() || slower
	}
	if slower {
		return fmt.Errorf("more than %v of the time of %s", most, programs[0])
	}
	return nil
}

// measure reads with both programs. The round says which is first, and the first round warms up.
func (w *way) measure(round int) (err error) {
	var cost [2]float64
	for i := range cost {
		i = (i + round) % 2
		if cost[i], err = w.programs[i].measure(); err != nil {
			return err
		}
	}
	if round > 0 {
		w.ratios = append(w.ratios, cost[1]/cost[0])
	}
	return nil
}

// print prints the median of the ratios, with the interval that the ranks of a binomial distribution give, and says whether a sign
// test holds the median to be above most.
func (w *way) print() (slower bool) {
	slices.Sort(w.ratios)
	n := len(w.ratios)
	above := n - slices.IndexFunc(append(w.ratios, math.Inf(1)), func(x float64) bool { return x > most })
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
	fmt.Printf("%-6s %-12s %.3f [%.3f, %.3f]%s\n", w.access, w.file, (w.ratios[n/2]+w.ratios[(n-1)/2])/2, w.ratios[low], w.ratios[n-1-low], verdict)
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
	dir string
	cmd *exec.Cmd
}

// mount returns once the mount answers.
func mount(program, access, tokens, dir string) (*mounted, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	args := []string{"mount", dir}
	for key, value := range map[string]any{
		"batch.batch_size": batchSize, "batch.block_size": blockSize, "batch.steps": 100_000_000, "batch.token_dtype": "uint16",
		"splits.train.tokens": tokens, "memory.access": access,
	} {
		args = append(args, "--set", fmt.Sprintf("%s=%v", key, value))
	}
	m := &mounted{dir: dir, cmd: exec.Command(program, args...)}
	m.cmd.Dir = dir + "/.." // where there is no config.toml
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.cmd.Stderr = m.cmd.Stdout
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(time.Minute, m.stop)
	defer late.Stop()
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "stop with Ctrl-C") {
			go io.Copy(io.Discard, out)
			return m, nil
		}
		fmt.Fprintln(&said, lines.Text())
	}
	m.cmd.Wait()
	return nil, fmt.Errorf("%s has not mounted within a minute: %s", program, &said)
}

func (m *mounted) stop() { m.cmd.Process.Signal(syscall.SIGTERM) }

func (m *mounted) unmount() {
	m.stop()
	m.cmd.Wait()
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
	at   int64 // of batches.bin
}

func (m *mounted) open(name string) (*reader, error) {
	f, err := os.Open(filepath.Join(m.dir, "train", name))
	return &reader{mounted: m, file: f}, err
}

// measure returns the processor time for a batch, in nanoseconds.
func (r *reader) measure() (float64, error) {
	buf := make([]byte, batchBytes)
	before, err := r.processorTime()
	if err != nil {
		return 0, err
	}
	batches := 0
	for end := time.Now().Add(long); time.Now().Before(end); batches++ {
		if n, err := r.file.ReadAt(buf, r.at); n < batchBytes && err != io.EOF {
			return 0, fmt.Errorf("%s: %d bytes of a batch: %w", r.file.Name(), n, err)
		}
		if filepath.Base(r.file.Name()) != "next" { // which always begins at 0
			r.at += batchBytes
		}
	}
	after, err := r.processorTime()
	unix.Fadvise(int(r.file.Fd()), 0, 0, unix.FADV_DONTNEED) // no batch is read twice
	return float64(after-before) / float64(batches), err
}
