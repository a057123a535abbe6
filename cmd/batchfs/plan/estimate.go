package plan

import (
	"cmp"
	"fmt"
	"math"

	"batchfs/cmd/batchfs/terminal"
	"batchfs/sampler"
)

// An Estimate is what a run needs. Rates are of a second, and of a host unless they say otherwise.
type Estimate struct {
	Tokens        int64           `json:"tokens"`
	Bytes         int64           `json:"bytes"`
	Objects       int             `json:"objects"`
	Blocks        int64           `json:"blocks"`
	BlockBytes    int64           `json:"block_bytes"`
	Order         string          `json:"order"`
	Hosts         int             `json:"hosts"`
	GPUs          int             `json:"gpus"`
	BatchSize     int             `json:"batch_size"`
	BlockSize     int             `json:"block_size"`
	StepSeconds   float64         `json:"step_seconds"`
	StepTokens    int64           `json:"step_tokens"` // of all hosts
	EpochSteps    uint64          `json:"epoch_steps"`
	Steps         uint64          `json:"steps"`
	Epochs        float64         `json:"epochs"`
	RunSeconds    float64         `json:"run_seconds"`
	BatchBytes    int64           `json:"batch_bytes"` // that a rank reads in a step
	BatchBlocks   float64         `json:"batch_blocks"`
	StepBlocks    float64         `json:"step_blocks"`
	ReadRate      float64         `json:"read_rate"` // bytes that trainers read
	First         Traffic         `json:"first_epoch"`
	Later         Traffic         `json:"later_epochs"`
	Requests      float64         `json:"requests"` // of the run, of all hosts, with those to mount
	Fetched       float64         `json:"fetched_bytes"`
	Price         float64         `json:"price"`         // of these, in dollars
	HostRequests  float64         `json:"host_requests"` // of the run, without those to mount
	HostFetched   float64         `json:"host_fetched_bytes"`
	CacheBytes    int64           `json:"cache_bytes"`
	ShareBytes    float64         `json:"share_bytes"` // the blocks that a host needs in the run
	Caches        []Cache         `json:"caches"`
	MountRequests int             `json:"mount_requests"`      // of a host, each time that it mounts
	MountSeconds  float64         `json:"mount_seconds"`       // of a host alone
	FleetMount    float64         `json:"fleet_mount_seconds"` // of all hosts at once
	FirstBatch    float64         `json:"first_batch_seconds"`
	Sources       []Source        `json:"sources"`
	Timeline      []TimelinePoint `json:"timeline"`
	Verdicts      []Verdict       `json:"verdicts"`
}

// Traffic is what a host fetches from the store in an epoch.
type Traffic struct {
	Mean     float64 `json:"bytes_mean"`
	Peak     float64 `json:"bytes_peak"`
	Requests float64 `json:"requests_mean"`
	Most     float64 `json:"requests_peak"`
}

// A Cache is a size of the block cache, and what share of the blocks that a host needs again, in later epochs, it then has.
type Cache struct {
	Bytes float64 `json:"bytes"`
	Hits  float64 `json:"hits"`
}

// A Source is one of the corpus, and how often the run goes through it.
type Source struct {
	Name   string  `json:"name"`
	Tokens int64   `json:"tokens"`
	Weight float64 `json:"share"` // of all rows
	Epochs float64 `json:"epochs"`
}

// A TimelinePoint is the mean rate from the one before to a step.
type TimelinePoint struct {
	Step  uint64  `json:"step"`
	Bytes float64 `json:"bytes"`
}

// A Verdict says whether something is within its limit, and otherwise what helps.
type Verdict struct {
	OK   bool   `json:"ok"`
	Says string `json:"says"`
}

type limits struct{ bandwidth, requests float64 }

// A timeline has so many parts of an epoch, unless that has fewer steps.
const parts = 10

// estimate returns what a run of so many steps needs, by what was counted.
func (o *options) estimate(c *corpus, n *count, epoch, steps uint64, limits limits) *Estimate {
	q := c.sequence
	seconds := o.step.Seconds()
	needs := &Estimate{
		Bytes: n.bytes, Blocks: n.blocks, BlockBytes: c.blocks.BlockBytes, Order: string(q.Order), Hosts: c.hosts, GPUs: c.ranks,
		BatchSize: q.BatchSize, BlockSize: int(c.step()), StepSeconds: seconds, EpochSteps: epoch, Steps: steps,
		Epochs: float64(steps) / float64(epoch), RunSeconds: float64(steps) * seconds, BatchBytes: q.Batch().Bytes(),
		BatchBlocks: n.perBatch, StepBlocks: n.perStep, CacheBytes: c.blocks.Limit,
	}
	needs.StepTokens = int64(q.BatchSize) * int64(q.World) * int64(c.step())
	needs.ReadRate = float64(needs.BatchBytes) * float64(c.ranks) / seconds
	for i, s := range c.sources {
		rows, of := q.Weight(i)
		source := Source{Name: s.name, Tokens: s.arrays[0].Len(), Weight: float64(rows) / float64(of)}
		source.Epochs = float64(steps) * c.rowsPerStep(i) / float64(s.windows)
		needs.Tokens += source.Tokens
		needs.Sources = append(needs.Sources, source)
		for _, a := range s.arrays {
			needs.Objects += len(a.Files())
		}
	}
	needs.fetch(n)
	needs.cacheSizes(n)
	needs.open(c, n, o.latency.Seconds(), limits)

	hosts := float64(c.hosts)
	needs.Requests = hosts * (needs.HostRequests + float64(needs.MountRequests))
	needs.Fetched = hosts * needs.HostFetched
	needs.Price = needs.Requests/1000*o.getPrice + needs.Fetched/1e9*o.gbPrice
	needs.judge(c, o.latency.Seconds(), limits)
	return needs
}

func (n *Estimate) fetch(counted *count) {
	bins := min(parts, n.EpochSteps)
	timeline := make([]Traffic, (counted.steps+n.EpochSteps-1)/n.EpochSteps*bins)
	counted.fetches(n.CacheBytes, func(t touch) {
		bin := &timeline[t.step*bins/n.EpochSteps]
		bin.Mean += t.bytes
		bin.Requests += t.blocks
		if t.step < n.Steps {
			n.HostFetched += t.bytes
			n.HostRequests += t.blocks
		}
	})
	long := float64(n.EpochSteps) * n.StepSeconds / float64(bins)
	for i, bin := range timeline {
		to, of := &n.First, float64(bins)
		if uint64(i) >= bins {
			to, of = &n.Later, float64(len(timeline))-float64(bins)
		}
		to.Mean += bin.Mean / long / of
		to.Requests += bin.Requests / long / of
		to.Peak, to.Most = max(to.Peak, bin.Mean/long), max(to.Most, bin.Requests/long)
		n.Timeline = append(n.Timeline, TimelinePoint{uint64(i+1) * n.EpochSteps / bins, bin.Mean / long})
	}
	// At the beginning, nothing is kept.
	most := counted.cold / n.StepSeconds
	n.First.Peak, n.First.Most = max(n.First.Peak, most*counted.blockBytes()), max(n.First.Most, most)
	if n.Steps > counted.steps { // the epochs after those that were counted
		rest := float64(n.Steps-counted.steps) * n.StepSeconds
		n.HostFetched += n.Later.Mean * rest
		n.HostRequests += n.Later.Requests * rest
	}
}

func (n *Estimate) cacheSizes(counted *count) {
	again := 0.0
	for _, t := range counted.touches {
		if t.step == t.first && t.step < n.Steps {
			n.ShareBytes += t.bytes
		}
		if t.step >= n.EpochSteps {
			again += t.blocks
		}
	}
	for _, share := range []float64{0.1, 0.25, 0.5, 0.75, 1} {
		cache, missed := Cache{Bytes: share * n.ShareBytes}, 0.0
		counted.fetches(int64(math.Ceil(cache.Bytes)), func(t touch) {
			if t.step >= n.EpochSteps {
				missed += t.blocks
			}
		})
		if again > 0 {
			cache.Hits = 1 - missed/again
		}
		n.Caches = append(n.Caches, cache)
	}
}

// open sets what it takes to mount, and to read the first batch.
func (n *Estimate) open(c *corpus, counted *count, latency float64, limits limits) {
	// Objects are listed, a thousand with a request, and opened 32 at a time: each is looked at, an index beside it too, and its first bytes and
	// then samples are read.
	samples := max(2, 64/max(n.Objects, 1))
	n.MountRequests = cmp.Or(c.opened, (n.Objects+999)/1000+n.Objects*(2+samples))
	n.MountSeconds = 4 * math.Ceil(float64(n.Objects)/32) * latency
	n.FleetMount = max(n.MountSeconds, float64(c.hosts)*float64(n.MountRequests)/limits.requests)
	rounds := math.Ceil(float64(counted.first) / float64(c.blocks.MaxPrefetches()))
	n.FirstBatch = max(rounds*latency, float64(counted.first)*counted.blockBytes()/limits.bandwidth)
}

// judge says what is within its limit, and what helps where it is not.
func (n *Estimate) judge(c *corpus, latency float64, limits limits) {
	say := func(ok bool, text, help string) {
		if !ok {
			text += ": " + help
		}
		n.Verdicts = append(n.Verdicts, Verdict{ok, text})
	}
	peak, most := max(n.First.Peak, n.Later.Peak), max(n.First.Most, n.Later.Most)
	nearer, keep, fill := n.help(c)
	used := n.ReadRate / float64(c.sequence.DType.Size()) * float64(c.sources[0].arrays[0].DType().Size())
	if c.sequence.Layout == sampler.XY {
		used /= 2 // x and y are the same tokens
	}
	waste := n.First.Mean / used
	say(waste <= 2, fmt.Sprintf("the store sends %s bytes for each that trainers read", short(waste)), "a block has few rows of a batch: "+nearer)
	if !math.IsInf(limits.bandwidth, 1) {
		say(peak <= limits.bandwidth, fmt.Sprintf("a host receives %s/s at its peak, and --bandwidth is %s/s", rate(peak), rate(limits.bandwidth)),
			fill+", or "+nearer)
	}
	all := most * float64(c.hosts)
	say(all <= limits.requests, fmt.Sprintf("all hosts send %s requests a second at their peak, and --requests is %s", short(all), short(limits.requests)),
		fmt.Sprintf("set store.block_bytes above %d, spread the objects over more prefixes, or %s", n.BlockBytes, nearer))
	mounting := fmt.Sprintf("all hosts that mount at once, also anew after a reboot, send %s requests, which takes %s with --requests %s",
		short(float64(n.MountRequests)*float64(c.hosts)), lasting(n.FleetMount), short(limits.requests))
	say(n.FleetMount <= n.MountSeconds+60, mounting,
		fmt.Sprintf("one alone takes %s; make objects of more tokens, or mount some hosts after others", lasting(n.MountSeconds)))
	// While a request takes its time, so many must be under way.
	under, atOnce := most*latency, float64(c.blocks.MaxPrefetches())
	help := fmt.Sprintf("set memory.ahead_bytes = %d, and memory.budget to twice that", int64(math.Ceil(under))*n.BlockBytes*2)
	if under > 32 {
		help = fmt.Sprintf("32 may be at most, and trainers will wait for the store; %s, or %s", fill, nearer)
	}
	say(under <= atOnce, fmt.Sprintf("%s blocks are under way at the peak, and %s may be", short(under), short(atOnce)), help)
	if fits := float64(n.CacheBytes) >= n.ShareBytes; fits || n.Epochs > 1 {
		room := min(float64(n.CacheBytes)/max(n.ShareBytes, 1), 1)
		say(fits, fmt.Sprintf("the block cache has room for %s of what a host needs, %s", percent(room), rate(n.ShareBytes)), keep)
	}
	if float64(n.MountRequests) > n.HostRequests {
		say(false, fmt.Sprintf("more requests open the objects than read them, %d of a host", n.MountRequests), "make objects of more tokens")
	}
}

// help is what brings rows nearer to each other, what keeps all that a host needs, and what fetches it before the run.
func (n *Estimate) help(c *corpus) (nearer, keep, fill string) {
	nearer = `set batch.order = "shuffle" and batch.shuffle_block = "64MiB"`
	keep = fmt.Sprintf("set store.cache_dir, and store.cache_bytes = %.0f", math.Ceil(n.ShareBytes))
	if c.sequence.ShuffleBlock == 0 {
		return nearer, keep, "fill store.cache_dir before the run (batchfs cache fill)"
	}
	nearer = "set a smaller batch.shuffle_block"
	if float64(n.CacheBytes) < n.ShareBytes {
		nearer = keep
	}
	fill = fmt.Sprintf("fill each host's share before the run, with one of its ranks: batchfs cache fill -c config.toml --rank RANK --world %d --local-world %d",
		c.sequence.World, c.ranks)
	return nearer, keep, fill
}

func rate(bytes float64) string { return terminal.Size(int64(bytes)) }
