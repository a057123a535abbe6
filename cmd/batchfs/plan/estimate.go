package plan

import (
	"cmp"
	"fmt"
	"math"

	"batchfs/cmd/batchfs/terminal"
	"batchfs/sampler"
)

// An Estimate is what a run needs. Rates are per second. Tokens to Blocks describe the corpus;
// other numbers are per host unless their comments say otherwise.
type Estimate struct {
	Local             bool      `json:"local"` // whether the files are local
	Tokens            int64     `json:"tokens"`
	Bytes             int64     `json:"bytes"`
	Objects           int       `json:"objects"`
	Blocks            int64     `json:"blocks"`
	BlockBytes        int64     `json:"block_bytes"`
	Order             string    `json:"order"`
	Hosts             int       `json:"hosts"`
	GPUs              int       `json:"gpus"`
	BatchSize         int       `json:"batch_size"`
	BlockSize         int       `json:"block_size"`
	StepSeconds       float64   `json:"step_seconds"`
	StepTokens        int64     `json:"step_tokens"` // sum over hosts
	EpochSteps        uint64    `json:"epoch_steps"`
	Steps             uint64    `json:"steps"`
	Epochs            float64   `json:"epochs"`
	RunSeconds        float64   `json:"run_seconds"`
	BatchBytes        int64     `json:"batch_bytes"` // per rank and step
	BatchBlocks       float64   `json:"batch_blocks"`
	StepBlocks        float64   `json:"step_blocks"`
	ReadRate          float64   `json:"read_rate"` // bytes that trainers read
	FirstEpoch        Traffic   `json:"first_epoch"`
	LaterEpochs       Traffic   `json:"later_epochs"`
	Requests          float64   `json:"requests"`      // sum over hosts, with mounting
	Fetched           float64   `json:"fetched_bytes"` // sum over hosts
	Price             float64   `json:"price"`         // dollars, for Requests and Fetched
	HostRequests      float64   `json:"host_requests"` // of one host, without mounting
	HostFetched       float64   `json:"host_fetched_bytes"`
	CacheBytes        int64     `json:"cache_bytes"`
	WorkingSetBytes   float64   `json:"working_set_bytes"` // size of the blocks needed in the run
	Caches            []Cache   `json:"caches"`
	MountRequests     int       `json:"mount_requests"`
	MountSeconds      float64   `json:"mount_seconds"`       // one host mounts alone
	FleetMountSeconds float64   `json:"fleet_mount_seconds"` // all hosts mount at once
	FirstBatchSeconds float64   `json:"first_batch_seconds"`
	Sources           []Source  `json:"sources"`
	Stages            []Stage   `json:"stages"`
	Timeline          []Part    `json:"timeline"`
	Verdicts          []Verdict `json:"verdicts"`
}

// Traffic is what a host fetches from the store during an epoch, per second.
type Traffic struct {
	Bytes        float64 `json:"bytes_mean"`
	PeakBytes    float64 `json:"bytes_peak"`
	Requests     float64 `json:"requests_mean"`
	PeakRequests float64 `json:"requests_peak"`
}

// A Cache is a size of the block cache in bytes, and the fraction of the blocks needed again in
// later epochs that it holds. An Estimate has none if no epoch follows the first.
type Cache struct {
	Bytes float64 `json:"bytes"`
	Hits  float64 `json:"hits"`
}

// A Part is a part of the run: the mean rates in it, and what the block cache holds at its end. If
// the run is longer than its parts, further epochs are like the last one.
type Part struct {
	End      uint64  `json:"step"` // the first step after it
	Bytes    float64 `json:"bytes"`
	Requests float64 `json:"requests"`
	Cached   float64 `json:"cached_bytes"`
}

// A Source is one source of the corpus, and how many epochs of it the run reads.
type Source struct {
	Name   string  `json:"name"`
	Tokens int64   `json:"tokens"`
	Weight float64 `json:"fraction"` // fraction of all rows
	Epochs float64 `json:"epochs"`
}

// A Stage is a part of the run, and what it reads from each source, in the order of the sources.
type Stage struct {
	Step    uint64        `json:"step"` // the first one with rows of the stage
	Cap     string        `json:"cap"`  // source whose max_epochs are used up there, or ""
	Sources []StageSource `json:"sources"`
}

// A StageSource says how many tokens of a source a stage reads, which fraction of its rows they
// are, and how many epochs of the source the run has read by the end of the stage.
type StageSource struct {
	Tokens   float64 `json:"tokens"`
	Fraction float64 `json:"fraction"`
	Epochs   float64 `json:"epochs"`
}

// A Verdict says whether something is within its limit, and if not, what would help.
type Verdict struct {
	OK   bool   `json:"ok"`
	Text string `json:"says"`
}

type resourceLimits struct{ bandwidth, requests float64 }

// An epoch is divided into epochParts parts, or into fewer if it has fewer steps or if a part would
// have less than partBlocks sampled blocks, so that chance would decide its rates. The peak is the
// highest rate of a part.
const epochParts, partBlocks = 10, 16

func (e *Estimate) addStages(c *corpus) {
	phases := c.sequence.Phases()
	for i, at := range phases {
		if at.Batch >= e.Steps {
			break
		}
		stage, end := Stage{Step: at.Batch}, e.Steps
		if i+1 < len(phases) {
			end = min(end, phases[i+1].Batch)
		}
		if source := c.sequence.UsedUpAt(i); source >= 0 {
			stage.Cap = c.sources[source].name
		}
		for source, s := range c.sources {
			stage.Sources = append(stage.Sources, StageSource{
				Tokens:   c.rowsOf(source, at.Batch, end) * c.stride(),
				Fraction: at.Fraction(source),
				Epochs:   c.rowsOf(source, 0, end) / float64(s.windows),
			})
		}
		e.Stages = append(e.Stages, stage)
	}
}

// newEstimate returns the estimate for a run of this many steps, given the counted blocks.
func (o *options) newEstimate(c *corpus, counted *blockCounts, epoch, steps uint64, limits resourceLimits) *Estimate {
	q := c.sequence
	seconds := o.step.Seconds()
	e := &Estimate{
		Local: c.local, Bytes: counted.corpusBytes, Blocks: counted.corpusBlocks, BlockBytes: c.blockOptions.BlockBytes, Order: string(q.Order), Hosts: c.hosts, GPUs: c.ranksPerHost,
		BatchSize: q.BatchSize, BlockSize: int(c.stride()), StepSeconds: seconds, EpochSteps: epoch, Steps: steps,
		Epochs: float64(steps) / float64(epoch), RunSeconds: float64(steps) * seconds, BatchBytes: q.Batch().Bytes(),
		BatchBlocks: counted.blocksPerBatch, StepBlocks: counted.blocksPerStep, CacheBytes: c.blockOptions.Limit,
	}
	e.StepTokens = int64(q.BatchSize) * int64(q.World) * int64(c.stride())
	e.ReadRate = float64(e.BatchBytes) * float64(c.ranksPerHost) / seconds
	for i, s := range c.sources {
		source := Source{Name: s.name, Tokens: s.arrays[0].Len(), Weight: c.rowsPerStep(i) / float64(q.BatchSize*q.World)}
		source.Epochs = float64(steps) * c.rowsPerStep(i) / float64(s.windows)
		e.Tokens += source.Tokens
		e.Sources = append(e.Sources, source)
		for _, a := range s.arrays {
			e.Objects += len(a.Files())
		}
	}
	e.addStages(c)
	e.estimateTraffic(counted)
	e.estimateCaches(counted)
	e.estimateOpening(c, counted, o.latency.Seconds(), limits)

	hosts := float64(c.hosts)
	e.Requests = hosts * (e.HostRequests + float64(e.MountRequests))
	e.Fetched = hosts * e.HostFetched
	e.Price = e.Requests/1000*o.getPrice + e.Fetched/1e9*o.gbPrice
	if !c.local {
		e.addVerdicts(c, o.latency.Seconds(), limits)
	}
	return e
}

// estimateTraffic estimates what the configured block cache leaves to fetch.
func (e *Estimate) estimateTraffic(counted *blockCounts) {
	sampled := uint64(0)
	for _, m := range counted.misses {
		if m.step == m.firstNeed {
			sampled++
		}
	}
	bins := min(epochParts, e.EpochSteps, max(sampled/partBlocks, 1))
	parts := make([]Part, (counted.steps+e.EpochSteps-1)/e.EpochSteps*bins)
	counted.visitFetches(e.CacheBytes, func(m memoryMiss) {
		bin := &parts[m.step*bins/e.EpochSteps]
		bin.Bytes += m.bytes
		bin.Requests += m.blocks
		if m.step == m.firstNeed {
			bin.Cached += m.bytes
		}
		if m.step < e.Steps {
			e.HostFetched += m.bytes
			e.HostRequests += m.blocks
		}
	})
	binSeconds := float64(e.EpochSteps) * e.StepSeconds / float64(bins)
	cached := 0.0
	for i, bin := range parts {
		traffic, count := &e.FirstEpoch, float64(bins)
		if uint64(i) >= bins {
			traffic, count = &e.LaterEpochs, float64(len(parts))-float64(bins)
		}
		bin.Bytes, bin.Requests = bin.Bytes/binSeconds, bin.Requests/binSeconds
		traffic.Bytes += bin.Bytes / count
		traffic.Requests += bin.Requests / count
		traffic.PeakBytes, traffic.PeakRequests = max(traffic.PeakBytes, bin.Bytes), max(traffic.PeakRequests, bin.Requests)
		// The cache keeps the blocks that were needed first.
		cached = min(cached+bin.Cached, float64(e.CacheBytes))
		if begin := uint64(i) * e.EpochSteps / bins; begin < e.Steps {
			e.Timeline = append(e.Timeline, Part{min(uint64(i+1)*e.EpochSteps/bins, e.Steps), bin.Bytes, bin.Requests, cached})
		}
	}
	// All caches are empty at first.
	most := counted.newBlocksPerStep / e.StepSeconds
	e.FirstEpoch.PeakBytes, e.FirstEpoch.PeakRequests = max(e.FirstEpoch.PeakBytes, most*counted.blockBytes()), max(e.FirstEpoch.PeakRequests, most)
	if e.Steps > counted.steps { // the rest of the run is like the later epochs
		rest := float64(e.Steps-counted.steps) * e.StepSeconds
		e.HostFetched += e.LaterEpochs.Bytes * rest
		e.HostRequests += e.LaterEpochs.Requests * rest
	}
}

// estimateCaches estimates the size of a block cache that holds everything, and the hit rates of
// smaller ones.
func (e *Estimate) estimateCaches(counted *blockCounts) {
	neededAgain := 0.0
	for _, m := range counted.misses {
		if m.step == m.firstNeed && m.step < e.Steps {
			e.WorkingSetBytes += m.bytes
		}
		if m.step >= e.EpochSteps {
			neededAgain += m.blocks
		}
	}
	for _, fraction := range []float64{0.1, 0.25, 0.5, 0.75, 1} {
		if neededAgain == 0 {
			break
		}
		cache, missed := Cache{Bytes: fraction * e.WorkingSetBytes}, 0.0
		counted.visitFetches(int64(math.Ceil(cache.Bytes)), func(m memoryMiss) {
			if m.step >= e.EpochSteps {
				missed += m.blocks
			}
		})
		cache.Hits = 1 - missed/neededAgain
		e.Caches = append(e.Caches, cache)
	}
}

func (e *Estimate) estimateOpening(c *corpus, counted *blockCounts, latency float64, limits resourceLimits) {
	// A list request returns a thousand objects. Opening an object takes four round trips: for its
	// size, for that of its index, for its first bytes, and for samples, which are read
	// concurrently. 32 objects are opened at a time.
	samples := max(2, 64/max(e.Objects, 1))
	e.MountRequests = cmp.Or(c.openRequests, (e.Objects+999)/1000+e.Objects*(2+samples))
	e.MountSeconds = 4 * math.Ceil(float64(e.Objects)/32) * latency
	e.FleetMountSeconds = max(e.MountSeconds, float64(c.hosts)*float64(e.MountRequests)/limits.requests)
	rounds := math.Ceil(float64(counted.firstStepBlocks) / float64(c.blockOptions.MaxPrefetches()))
	e.FirstBatchSeconds = max(rounds*latency, float64(counted.firstStepBlocks)*counted.blockBytes()/limits.bandwidth)
}

// addVerdicts adds a verdict on each limit.
func (e *Estimate) addVerdicts(c *corpus, latency float64, limits resourceLimits) {
	add := func(ok bool, text, help string) {
		if !ok {
			text += ": " + help
		}
		e.Verdicts = append(e.Verdicts, Verdict{ok, text})
	}
	peak, most := max(e.FirstEpoch.PeakBytes, e.LaterEpochs.PeakBytes), max(e.FirstEpoch.PeakRequests, e.LaterEpochs.PeakRequests)
	nearer, keep, fill := e.advice(c)
	used := e.ReadRate / float64(c.sequence.DType.Size()) * float64(c.sources[0].arrays[0].DType().Size())
	if c.sequence.Layout == sampler.XY {
		used /= 2 // the same tokens are in x and y
	}
	waste := e.FirstEpoch.Bytes / used
	add(waste <= 2, fmt.Sprintf("the store sends %s bytes for each byte that trainers read", formatCount(waste)),
		"few rows of a batch are in the same block: "+nearer)
	if !math.IsInf(limits.bandwidth, 1) {
		add(peak <= limits.bandwidth, fmt.Sprintf("a host receives up to %s/s, and --bandwidth is %s/s", terminal.FormatBytes(peak),
			terminal.FormatBytes(limits.bandwidth)),
			fill+", or "+nearer)
	}
	total := most * float64(c.hosts)
	add(total <= limits.requests, fmt.Sprintf("all hosts together send up to %s requests a second, and --requests is %s",
		formatCount(total), formatCount(limits.requests)),
		fmt.Sprintf("set store.block_bytes above %d, spread the objects over more prefixes, or %s", e.BlockBytes, nearer))
	mounting := fmt.Sprintf("if all hosts mount at once, as after a reboot, they send %s requests, which takes %s with --requests %s",
		formatCount(float64(e.MountRequests)*float64(c.hosts)), formatDuration(e.FleetMountSeconds), formatCount(limits.requests))
	add(e.FleetMountSeconds <= e.MountSeconds+60, mounting,
		fmt.Sprintf("one host alone takes %s; put more tokens in each object, or mount hosts one after the other", formatDuration(e.MountSeconds)))
	// Little's law gives the number of requests in flight.
	inFlight, limit := most*latency, float64(c.blockOptions.MaxPrefetches())
	help := fmt.Sprintf("set memory.ahead_bytes = %d, and memory.budget to twice that", int64(math.Ceil(inFlight))*e.BlockBytes*2)
	if inFlight > 32 {
		help = fmt.Sprintf("at most 32 can be in flight, so trainers will wait for the store; %s, or %s", fill, nearer)
	}
	add(inFlight <= limit, fmt.Sprintf("up to %s blocks are in flight, and the limit is %s", formatCount(inFlight), formatCount(limit)), help)
	if fits := float64(e.CacheBytes) >= e.WorkingSetBytes; fits || e.Epochs > 1 {
		room := min(float64(e.CacheBytes)/max(e.WorkingSetBytes, 1), 1)
		add(fits, fmt.Sprintf("the block cache holds %s of the %s that a host needs", formatPercent(room), terminal.FormatBytes(e.WorkingSetBytes)), keep)
	}
	if float64(e.MountRequests) > e.HostRequests {
		add(false, fmt.Sprintf("a host sends more requests to open objects, %d, than to read them", e.MountRequests), "put more tokens in each object")
	}
}

// advice returns three suggestions: to fetch fewer blocks for each batch (nearer), to cache all
// that a host needs (keep), and to fetch it before the run (fill).
func (e *Estimate) advice(c *corpus) (nearer, keep, fill string) {
	nearer = `set batch.order = "shuffle" and batch.shuffle_block = "64MiB"`
	keep = fmt.Sprintf("set store.cache_dir, and store.cache_bytes = %.0f", math.Ceil(e.WorkingSetBytes))
	if c.sequence.ShuffleBlock == 0 {
		return nearer, keep, "fill store.cache_dir before the run (batchfs cache fill)"
	}
	nearer = "set a smaller batch.shuffle_block"
	if float64(e.CacheBytes) < e.WorkingSetBytes {
		nearer = keep
	}
	fill = fmt.Sprintf("fill each host's share before the run, with one of its ranks: batchfs cache fill -c config.toml "+
		"SPLIT/rank=RANK,world=%d,local_world=%d",
		c.sequence.World, c.ranksPerHost)
	return nearer, keep, fill
}
