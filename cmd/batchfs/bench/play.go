package bench

import (
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/terminal"
	"batchfs/internal/jsonbytes"
)

//go:embed bench.py
var benchPy string

// A bench measures scenes with one trainer and one set of token files.
type bench struct {
	*stage
	host               hostInfo
	sets               []string
	warmFile, coldFile string
	python             *trainer
	coldWasCached      bool
}

// A hostInfo describes the machine that was measured.
type hostInfo struct {
	Cores     int     `json:"cores"`
	Load      float64 `json:"load"` // load average of the last minute, at the start; 0 is best
	Kernel    string  `json:"kernel"`
	Go        string  `json:"go"`
	Python    string  `json:"python"`
	NumPy     string  `json:"numpy"`
	Torch     string  `json:"torch"`
	ColdBytes int64   `json:"cold_file_bytes"`
	WarmBytes int64   `json:"warm_file_bytes"`
}

func (o *options) runBatches(s *stage) (*report, error) {
	b := &bench{stage: s, sets: o.sets, host: hostInfo{Cores: runtime.NumCPU(), Go: runtime.Version()}}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	b.host.Kernel = strings.TrimSpace(string(kernel))
	fmt.Sscan(string(load), &b.host.Load)
	var err error
	if b.python, err = s.startTrainer(o.python); err != nil {
		return nil, err
	}
	if err := b.python.read(&b.host); err != nil {
		return nil, fmt.Errorf("%w; does the Python that --python names have NumPy?", err)
	}
	if err := b.prepareFiles(o); err != nil {
		return nil, err
	}
	scenes := o.scenes(b.host.Torch != "")
	for _, sc := range scenes {
		if err := b.play(sc); err != nil {
			return nil, err
		}
	}
	return &report{Host: b.host, ColdWasCached: b.coldWasCached, Scenes: scenes}, nil
}

// prepareFiles sets the token files. Warm scenes read the given file or a new one, and cold scenes
// a large one.
func (b *bench) prepareFiles(o *options) (err error) {
	b.warmFile, err = filepath.Abs(o.tokens) // a daemon has another working directory
	if o.tokens == "" {
		b.warmFile, err = b.createTokens("tokens.bin", o.bytes)
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(b.warmFile)
	if err != nil {
		return err
	}
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return err
	}
	if uint64(info.Size()) > memory.Totalram*uint64(memory.Unit)/2 {
		return fmt.Errorf("%s: is more than half of this machine's memory, but must fit in the page cache: use part of it (head -c 4G)", b.warmFile)
	}
	b.coldFile = b.warmFile
	if info.Size() < o.bytes {
		b.coldFile, err = b.createTokens("cold.bin", o.bytes)
	}
	b.host.WarmBytes, b.host.ColdBytes = info.Size(), max(info.Size(), o.bytes)
	return err
}

func (b *bench) play(sc *scene) error {
	bar := b.progress(fmt.Sprintf("%s: %d ways to get batches, %d rounds", sc.Name, len(sc.Ways), sc.rounds), int64(len(sc.Ways)*sc.rounds), terminal.Steps)
	defer bar.Finish()
	tokens := b.coldFile
	if !sc.Cold {
		tokens = b.warmFile
		if err := warmUp(tokens); err != nil {
			return err
		}
	}
	order := slices.Clone(sc.Ways)
	for range sc.rounds {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, w := range order {
			if err := b.playOnce(sc, tokens, w); err != nil {
				return fmt.Errorf("%s: %w", w.Name, err)
			}
			bar.Add(1)
		}
	}
	sc.summarize()
	return nil
}

// playOnce measures one way once, with a new mount. If a mount lived on, pages of a cold file that
// it maps would stay in the page cache.
func (b *bench) playOnce(sc *scene, tokens string, w *way) (err error) {
	c := trainerCommand{Kind: w.Kind, Path: jsonbytes.String(tokens), Batch: sc.Batch, Block: sc.Block, Steps: sc.maxSteps,
		Seconds: sc.maxSeconds, Compute: sc.Compute.Seconds()}
	if w.Access != "" {
		d, err := b.mount(tokens, append(slices.Clone(b.sets), "memory.access="+w.Access)...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.stop()) }()
		c.Path = jsonbytes.String(fmt.Sprintf("%s/train/seed=%d,steps=1000000,batch_size=%d,block_size=%d,dtype=uint16,layout=xy",
			d.mountpoint, rand.Uint32(), sc.Batch, sc.Block))
	}
	if !sc.Cold {
		c.Untimed = min(24, sc.maxSteps) // enough to fill the processor's caches, as in a long run
	} else if err := dropPages(tokens); err != nil {
		return err
	}
	before := diskBytesRead(b.python.cmd.Process.Pid)
	b.python.write(c)
	var waits []float64
	if err := b.python.read(&waits); err != nil {
		return err
	}
	w.waits = append(w.waits, waits...)
	w.Rounds = append(w.Rounds, sc.typicalWait(waits))
	if read := diskBytesRead(b.python.cmd.Process.Pid) - before; sc.Cold && w.Kind == "nanogpt" && read < int64(2*sc.Batch*sc.Block*len(waits)) {
		b.coldWasCached = true
	}
	return nil
}
