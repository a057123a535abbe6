package bench

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// maxReaders is how many processes read at once, at most.
const maxReaders = 4

// A contender is one way to get batches.
type contender struct {
	Kind    string `json:"kind"`   // as bench.py and bench-reader call it
	Reader  string `json:"reader"` // python or go
	Access  string `json:"access"` // of a mount, or of a gather; empty: a loader in the trainer
	DType   string `json:"dtype"`  // as the file in the mount has it
	Layout  string `json:"layout"`
	Workers int    `json:"workers"`
	Readers int    `json:"readers"` // processes at once
}

var names = map[string]string{
	"nanogpt":       "nanoGPT get_batch (memmap per batch)",
	"nanogpt_kept":  "nanoGPT get_batch, one memmap kept",
	"pread_rows":    "one pread per row, one astype",
	"memmap_slices": "slices of a kept memmap, one astype",
	"dataloader":    "DataLoader, %d workers",
	"gather":        "gather in Go, no mount",
	"ordinary":      "as many bytes of an ordinary file",
	"next_read":     "next, open().read()",
	"next_open":     "next, os.open + os.read + os.close",
	"next_kept":     "next kept open",
	"by_number":     "batch/<k>, opened each",
	"batches_bin":   "batches.bin in order",
	"batches_npy":   "batches.npy mapped, in order",
}

func (c contender) String() string {
	name := names[c.Kind]
	if c.Kind == "dataloader" {
		name = fmt.Sprintf(name, c.Workers)
	}
	if c.Access != "" {
		name += ", " + c.Access
	}
	if c.DType != "uint16" {
		name += ", " + c.DType
	}
	if c.Layout != "xy" {
		name += ", layout " + c.Layout
	}
	if c.Readers > 1 {
		name += fmt.Sprintf(", %d readers", c.Readers)
	}
	return name
}

// The groups of contenders.
const (
	inTrainer = "in the trainer's process"
	limit     = "without a mount or Python"
	mounted   = "from a mount, in Python"
	compiled  = "from a mount, compiled reader"
)

// groups is in the order of the report.
var groups = []string{inTrainer, limit, mounted, compiled}

func (c contender) group() string {
	switch {
	case c.Kind == "gather" || c.Kind == "ordinary":
		return limit
	case c.Access == "":
		return inTrainer
	case c.Reader == "go":
		return compiled
	}
	return mounted
}

func loader(kind string, workers int) contender {
	return contender{Kind: kind, Reader: "python", DType: "uint16", Layout: "xy", Workers: workers, Readers: 1}
}

func mount(kind, access string) contender {
	return contender{Kind: kind, Reader: "python", Access: access, DType: "uint16", Layout: "xy", Readers: 1}
}

func compiledReader(kind, access string) contender {
	return contender{Kind: kind, Reader: "go", Access: access, DType: "uint16", Layout: "xy", Readers: 1}
}

func (c contender) readBy(readers int) contender {
	c.Readers = readers
	return c
}

func (c contender) as(dtype, layout string) contender {
	c.DType, c.Layout = dtype, layout
	return c
}

// wholeRows is a mount of layout tokens. Its x and y are views of one array, as those of the fastest loaders in the trainer are.
func wholeRows(kind, access string) contender { return mount(kind, access).as("uint16", "tokens") }

// across makes a contender of each kind with each access.
func across(make func(kind, access string) contender, accesses []string, kinds ...string) (all []contender) {
	for _, kind := range kinds {
		for _, access := range accesses {
			all = append(all, make(kind, access))
		}
	}
	return all
}

func int64s(list []contender) (all []contender) {
	for _, c := range list {
		all = append(all, c.as("int64", c.Layout))
	}
	return all
}

var (
	nanoGPT  = loader("nanogpt", 0)
	workers  = loader("dataloader", 2)
	fastest  = []contender{loader("pread_rows", 0), loader("memmap_slices", 0)}
	ordinary = compiledReader("ordinary", "").as("int64", "xy")

	allAccess = []string{"pread", "remap", "advise"}
	twoAccess = allAccess[:2]
	fromMount = []string{"batches_bin", "batches_npy", "next_kept", "next_open", "next_read", "by_number"}
)

// A scene is a condition under which contenders are compared.
type scene struct {
	Name    string        `json:"name"`
	Batch   int           `json:"batch_size"`
	Block   int           `json:"block_size"`
	Compute time.Duration `json:"compute_ns"` // before every batch
	Cold    bool          `json:"cold"`       // the token file is dropped from the page cache before every run

	rounds     int
	steps      int     // a run ends after so many batches
	seconds    float64 // or after so long
	contenders []contender
}

const (
	backToBack   = "back to back"
	afterCompute = "after 3 ms of compute"
	large        = "back to back, 8 MiB"
	cold         = "cold, after 5 ms of compute"
)

// scenes returns the scenes of a bench: in short, everything that is promised; with --full, every combination.
func (o *options) scenes(torch bool) []scene {
	warm := scene{Name: backToBack, Batch: 12, Block: 1024, rounds: 5, steps: 1 << 20, seconds: 0.12}
	compute := scene{Name: afterCompute, Batch: 12, Block: 1024, Compute: 3 * time.Millisecond, rounds: 5, steps: 40, seconds: 10}
	big := scene{Name: large, Batch: 512, Block: 1024, rounds: 3, steps: 1 << 20, seconds: 0.2}
	// Not longer: nanoGPT's loader reads so much that the file would not stay cold.
	drop := scene{Name: cold, Batch: 12, Block: 1024, Compute: 5 * time.Millisecond, Cold: true, rounds: 2, steps: 250, seconds: 1.5}

	loaders := append([]contender{nanoGPT, loader("nanogpt_kept", 0)}, fastest...)
	if torch {
		loaders = append(loaders, loader("dataloader", 0), workers)
	}
	gathers := across(compiledReader, allAccess, "gather")
	readers := twoAccess
	if o.full {
		readers = allAccess
		plain := across(mount, allAccess, fromMount...)
		every := slices.Concat(loaders, gathers, int64s(gathers), plain, int64s(plain))
		for _, c := range plain {
			every = append(every, c.as("uint16", "tokens"))
		}
		every = append(every, across(compiledReader, allAccess, "next_open", "by_number")...)
		warm.contenders = every
		compute.contenders = append(every, across(compiledReader, allAccess, "next_kept", "batches_bin")...)
		some := across(mount, allAccess, "batches_bin", "next_kept", "by_number")
		big.contenders = slices.Concat(loaders, []contender{ordinary}, gathers, int64s(gathers), some, int64s(some),
			int64s(across(compiledReader, allAccess, "next_kept", "batches_bin")))
		drop.contenders = slices.Concat(loaders, gathers[:2], plain)
		warm.seconds, compute.rounds, big.rounds = 0.25, 5, 5
		drop.rounds, drop.steps, drop.seconds = 3, 200, 5
	} else {
		warm.contenders = slices.Concat(loaders, gathers,
			across(mount, twoAccess, fromMount[:5]...), across(mount, twoAccess[:1], "by_number"))
		compute.contenders = slices.Concat(loaders, gathers,
			across(mount, allAccess, fromMount[:4]...), across(mount, twoAccess[:1], fromMount[4:]...),
			across(wholeRows, allAccess, fromMount[:2]...))
		big.contenders = append(int64s(slices.Concat(across(compiledReader, twoAccess, "gather", "next_kept"), across(mount, twoAccess[:1], "next_kept"))),
			nanoGPT, ordinary)
		drop.contenders = slices.Concat([]contender{nanoGPT, fastest[0]}, gathers[:1], across(mount, twoAccess, "batches_bin", "next_kept"))
	}
	for _, n := range []int{1, 2, maxReaders} {
		inPython := func(kind, access string) contender { return mount(kind, access).readBy(n) }
		inGo := func(kind, access string) contender { return compiledReader(kind, access).readBy(n) }
		if n > 1 && (o.full || n == maxReaders) {
			warm.contenders = slices.Concat(warm.contenders, across(inPython, readers, "next_kept", "batches_bin"))
		}
		if n == 1 || o.full {
			warm.contenders = slices.Concat(warm.contenders, across(inGo, readers, "next_kept", "batches_bin"))
		}
	}
	scenes := []scene{warm, compute, big, drop}
	for i := range scenes {
		scenes[i].rounds = cmp.Or(o.rounds, scenes[i].rounds)
		scenes[i].steps = cmp.Or(o.steps, scenes[i].steps)
	}
	return scenes
}
