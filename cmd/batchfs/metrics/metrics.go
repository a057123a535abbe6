// Package metrics shows what the processes of a mount count, in the text format of Prometheus: in the mount's file metrics, and over HTTP.
// It reads the shared memory alone, so any process of the mount may serve it, and nothing is lost when a worker dies.
package metrics

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"batchfs/fs/state"
	"batchfs/internal/process"
)

// Handler answers each request with the metrics of that moment.
func Handler(shared *state.Shared) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{shared})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// A file's size should not change between stat and read because a number grew: it is a multiple of this.
const step = 4096

// Text is what Handler answers, and empty lines behind it.
func Text(shared *state.Shared) []byte {
	w := page{header: http.Header{}}
	Handler(shared).ServeHTTP(&w, &http.Request{Method: http.MethodGet, Header: http.Header{}})
	return append(w.Bytes(), bytes.Repeat([]byte("\n"), step-w.Len()%step)...)
}

type page struct {
	bytes.Buffer
	header http.Header
}

func (p *page) Header() http.Header { return p.header }
func (p *page) WriteHeader(int)     {}

type collector struct{ *state.Shared }

type (
	shared        = *state.Shared
	sequenceState = *state.SequenceState
)

// A metric has one value of a mount, or one of each sequence.
type metric[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(T) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("batchfs_"+name, help, labels, nil)
}

func gauge[T any, N int64 | uint64 | float64](name, help string, value func(T) N) metric[T] {
	var labels []string
	if _, isOfSequence := any(*new(T)).(sequenceState); isOfSequence {
		labels = sequenceLabels
	}
	return metric[T]{describe(name, help, labels...), prometheus.GaugeValue, func(of T) float64 { return float64(value(of)) }}
}

func counter[T any, N int64 | uint64 | float64](name, help string, value func(T) N) metric[T] {
	m := gauge(name+"_total", help, value)
	m.kind = prometheus.CounterValue
	return m
}

var ofMount = []metric[shared]{
	gauge("start_time_seconds", "When the mount was made, in seconds since 1970.", func(s shared) float64 { return seconds(s.Began) }),
	gauge("worker_silent_seconds", "How long ago the worker last answered its supervisor.", func(s shared) float64 { return s.SinceHeartbeat().Seconds() }),
	counter("requests", "Requests of the kernel that were answered.", func(s shared) uint64 { return s.Replies.Load() }),
	counter("takeovers", "How often another worker took over.", func(s shared) uint64 { return max(s.Workers.Load(), 1) - 1 }),
	counter("worker_crashes", "Workers that ended by themselves, or hung.", func(s shared) uint64 { return s.Crashes.Load() }),
	gauge("requests_waiting", "Requests that wait because others use token files.", func(s shared) int64 { return s.Gauges.Waiting.Load() }),
	gauge("longest_wait_seconds", "How long the longest request has waited for token files, if for more than a second.", longestWait),
	gauge("cache_bytes", "Bytes in the directory of blocks, of all its mounts.", func(s shared) int64 { return s.Gauges.CacheUsed.Load() }),
	gauge("cache_limit_bytes", "store.cache_bytes; 0 without a directory of blocks.", func(s shared) int64 { return s.Gauges.CacheLimit.Load() }),
	gauge("cache_needed_bytes", "Bytes of blocks that an epoch of its readers needs.", func(s shared) int64 { return s.Gauges.CacheNeeded.Load() }),
	gauge("cache_kept_bytes", "Bytes of these that are there.", func(s shared) int64 { return s.Gauges.CacheStored.Load() }),
	gauge("cache_disk_free_bytes", "Free bytes of the disk of the directory of blocks.", func(s shared) int64 { return s.Gauges.CacheFree.Load() }),
	gauge("cache_disk_bytes", "Bytes of that disk.", func(s shared) int64 { return s.Gauges.CacheDisk.Load() }),
	counter("cache_hits", "Reads of blocks that were there.", func(s shared) int64 { return s.Blocks.Hits.Load() }),
	counter("cache_waits", "Reads of blocks that were fetched meanwhile.", func(s shared) int64 { return s.Blocks.Waits.Load() }),
	counter("cache_wait_seconds", "How long these waited.", func(s shared) float64 { return seconds(s.Blocks.Waited.Load()) }),
	counter("cache_unkept_blocks", "Fetched blocks for which the directory had no room.", func(s shared) int64 { return s.Blocks.Full.Load() }),
	counter("cache_present_blocks", "Fetched blocks that another process had written first.", func(s shared) int64 { return s.Writes.Present.Load() }),
	counter("cache_failed_blocks", "Fetched blocks that were not kept because the directory could not be written.", func(s shared) int64 { return s.Writes.Failed.Load() }),
	counter("cache_slow_blocks", "Fetched blocks that were not kept because its disk was too slow.", func(s shared) int64 { return s.Writes.Slow.Load() }),
	counter("store_fetched_bytes", "Bytes of objects that were fetched.", func(s shared) int64 { return s.Store.Bytes.Load() }),
	counter("store_retries", "Attempts after one that failed.", func(s shared) int64 { return s.Store.Retries.Load() }),
	counter("store_errors", "Requests to stores with an answer of 429 or 5xx, or none.", func(s shared) int64 { return s.Store.Errors.Load() }),
}

var ofSequence = []metric[sequenceState]{
	gauge("cursor", "The number of the batch that the next reader of next takes.", sequenceState.Next),
	counter("batches", "Batches that readers began to get.", func(e sequenceState) uint64 { return e.Begun.Load() }),
	counter("reads", "Requests that were answered with batches.", func(e sequenceState) uint64 { return e.Reads.Load() }),
	counter("ready_reads", "Requests that were answered with batches that were ready.", func(e sequenceState) uint64 { return e.Ready.Load() }),
	counter("read_bytes", "Bytes of batches that readers got.", func(e sequenceState) uint64 { return e.Bytes.Load() }),
	counter("reader_wait_seconds", "How long readers of next waited, from their second request on.", func(e sequenceState) float64 { return seconds(e.Waited.Load()) }),
	counter("reader_gap_seconds", "How long readers of next did something else in between.", func(e sequenceState) float64 { return seconds(e.Gap.Load()) }),
	counter("given_back", "Batch numbers that went back to the cursor.", func(e sequenceState) uint64 { return e.NumbersReturned.Load() }),
	errorsOf,
}

var (
	sequenceLabels = []string{"split", "settings"}
	errorsOf       = counter("read_errors", "Requests that were answered with an error.", func(e sequenceState) uint64 { return e.Errors.Load() })
	buildInfo      = describe("build_info", "The version that serves.", "version")
	splitInfo      = describe("split_info", "The fingerprint of the tokens of a split.", "split", "fingerprint")
	resident       = describe("process_resident_memory_bytes", "Resident memory of the mount's processes.", "process")
	storeDuration  = describe("store_request_duration_seconds", "From a request to a store to the head of its answer.")
	readWait       = describe("read_wait_seconds", "How long requests for next waited in the worker until they were answered.", sequenceLabels...)
	sourceRows     = describe("source_rows_total", "Rows of batches that readers began to get, of each source of a mixture.", "split", "source")
	sourceWeight   = describe("source_share_ratio", "The part of the rows that a source should have.", "split", "source")
	leftOut        = describe("sequences_left_out", "Directories of settings that are open and have no metrics, because there are so many.")
)

func seconds[N int64 | uint64](nanoseconds N) float64 {
	return float64(nanoseconds) / float64(time.Second)
}

func longestWait(s shared) (longest float64) {
	for _, d := range s.Waiting() {
		longest = max(longest, d.Seconds())
	}
	return longest
}

// Describe sends nothing: what there is depends on the mount.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(to chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	}
	for _, m := range ofMount {
		send(m.desc, m.kind, m.value(c.Shared))
	}
	send(buildInfo, prometheus.GaugeValue, 1, c.Program())
	for _, p := range Processes(c.Shared) {
		send(resident, prometheus.GaugeValue, float64(p.Resident), p.Name)
	}
	to <- histogram(storeDuration, seconds(c.Store.Nanos.Load()), len(c.Store.Buckets), func(i int) (float64, uint64) {
		return (time.Millisecond << i).Seconds(), c.Store.Buckets[i].Load()
	})
	c.collectSequences(to, send)
}

// maxSequences bounds the sequences that have metrics.
const maxSequences = 1000

func (c collector) collectSequences(to chan<- prometheus.Metric, send func(*prometheus.Desc, prometheus.ValueType, float64, ...string)) {
	send(errorsOf.desc, errorsOf.kind, errorsOf.value(&c.Sequences[0]), "", "")
	open := Open(c.Shared)
	for _, s := range open[:min(len(open), maxSequences)] {
		if s.Settings == "" {
			send(splitInfo, prometheus.GaugeValue, 1, s.Split, c.Fingerprint(s.Number))
			for i := range c.Sources[s.Number] {
				of, number := &c.Sources[s.Number][i], strconv.Itoa(i)
				if share := of.Weight(); share > 0 {
					send(sourceRows, prometheus.CounterValue, float64(of.Rows.Load()), s.Split, number)
					send(sourceWeight, prometheus.GaugeValue, share, s.Split, number)
				}
			}
		}
		for _, m := range ofSequence {
			send(m.desc, m.kind, m.value(s.SequenceState), s.Split, s.Settings)
		}
		w := &s.Waits
		to <- histogram(readWait, seconds(w.Sum.Load()), len(w.Buckets), func(i int) (float64, uint64) {
			return state.WaitBounds[min(i, len(state.WaitBounds)-1)].Seconds(), w.Buckets[i].Load()
		}, s.Split, s.Settings)
	}
	send(leftOut, prometheus.GaugeValue, float64(max(len(open)-maxSequences, 0)))
}

// histogram has every second bound of some buckets; the last bucket has none.
func histogram(desc *prometheus.Desc, sum float64, buckets int, bucket func(i int) (bound float64, n uint64), labels ...string) prometheus.Metric {
	total, below := uint64(0), map[float64]uint64{}
	for i := range buckets {
		bound, n := bucket(i)
		if total += n; i%2 == 1 && i < buckets-1 {
			below[bound] = total
		}
	}
	return prometheus.MustNewConstHistogram(desc, total, sum, below, labels...)
}

// SequenceStats has the state of a sequence that is open: a split, or one under settings whose
// files the kernel knows.
type SequenceStats struct {
	*state.SequenceState
	Number          int
	Split, Settings string
}

// Open are the sequences that are open. Another process may add and remove some meanwhile, so no two have one name.
func Open(shared *state.Shared) (open []SequenceStats) {
	seen := map[string]bool{}
	for n := range shared.SequencesUsed() {
		e := &shared.Sequences[n+1]
		name := strings.ToValidUTF8(e.Name(), "?")
		split, settings, inPath := strings.Cut(name, "/")
		if !e.Used() || name == "" || seen[name] || inPath && e.Lookups.Load() == 0 {
			continue
		}
		seen[name] = true
		open = append(open, SequenceStats{e, n + 1, split, settings})
	}
	return open
}

// A Process is one of a mount.
type Process struct {
	Name     string `json:"name"`
	PID      int    `json:"pid"`
	Resident int64  `json:"resident_bytes"`
}

// Processes are the processes of a mount that live.
func Processes(shared *state.Shared) (all []Process) {
	seen := map[int64]bool{0: true}
	for _, p := range []struct {
		name string
		pid  int64
	}{{"supervisor", shared.Supervisor.Load()}, {"worker", shared.Worker.Load()}, {"standby", shared.Standby.Load()}} {
		if bytes := process.Resident(int(p.pid)); bytes > 0 && !seen[p.pid] {
			seen[p.pid] = true
			all = append(all, Process{p.name, int(p.pid), bytes})
		}
	}
	return all
}
