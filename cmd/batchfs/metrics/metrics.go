// Package metrics exports the figures of a mount in the text format of Prometheus, as the file
// metrics in the mount and over HTTP. Any process of the mount can serve them.
package metrics

import (
	"bytes"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"batchfs/fs/figures"
	"batchfs/fs/state"
)

// Handler returns a handler that serves the current metrics. It is safe for concurrent use.
func Handler(shared *state.Shared) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{shared})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// textUnit is the granularity of Text's length, in bytes. Because of the padding, the file's size
// rarely changes between stat and read.
const textUnit = 4096

// Text returns the current metrics, padded with empty lines to a multiple of 4096 bytes.
func Text(shared *state.Shared) []byte {
	w := responseBuffer{header: http.Header{}}
	Handler(shared).ServeHTTP(&w, &http.Request{Method: http.MethodGet, Header: http.Header{}})
	return append(w.Bytes(), bytes.Repeat([]byte("\n"), textUnit-w.Len()%textUnit)...)
}

// A responseBuffer is an http.ResponseWriter that keeps the body.
type responseBuffer struct {
	bytes.Buffer
	header http.Header
}

func (b *responseBuffer) Header() http.Header { return b.header }
func (b *responseBuffer) WriteHeader(int)     {}

type collector struct{ *state.Shared }

type (
	mount    = *figures.Mount
	sequence = *figures.Sequence
)

// A metric has one value per mount (T is mount) or one per sequence (T is sequence).
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
	if _, isOfSequence := any(*new(T)).(sequence); isOfSequence {
		labels = sequenceLabels
	}
	return metric[T]{describe(name, help, labels...), prometheus.GaugeValue, func(t T) float64 { return float64(value(t)) }}
}

func counter[T any, N int64 | uint64 | float64](name, help string, value func(T) N) metric[T] {
	m := gauge(name+"_total", help, value)
	m.kind = prometheus.CounterValue
	return m
}

var mountMetrics = []metric[mount]{
	gauge("start_time_seconds", "Start time of the mount, in seconds since 1970.", func(m mount) float64 { return m.Began }),
	gauge("worker_silent_seconds", "Time since the worker last answered its supervisor.", func(m mount) float64 { return m.Silent }),
	counter("requests", "Kernel requests that were answered.", func(m mount) uint64 { return m.Requests }),
	counter("takeovers", "Number of times that another worker took over.", func(m mount) uint64 { return m.Takeovers }),
	counter("worker_crashes", "Workers that crashed or hung.", func(m mount) uint64 { return m.Crashes }),
	counter("unmapped_reads", "Reads of token files that could not be mapped, and were read with pread.", func(m mount) int64 { return m.Unmapped }),
	gauge("requests_waiting", "Requests that wait until other requests have finished using token files.", func(m mount) int64 { return m.Waiting }),
	gauge("longest_wait_seconds", "How long the longest request has waited for token files, if more than a second.",
		func(m mount) float64 { return m.LongestWait }),
	gauge("cache_bytes", "Bytes in the block cache, which other mounts may share.", func(m mount) int64 { return m.Store.Used }),
	gauge("cache_limit_bytes", "Maximum size of the block cache (store.cache_bytes); 0 without a cache.", func(m mount) int64 { return m.Store.Limit }),
	gauge("cache_needed_bytes", "Bytes of blocks that the cache's readers need for one epoch.", func(m mount) int64 { return m.Store.Needed }),
	gauge("cache_stored_bytes", "Bytes of needed blocks that are in the cache.", func(m mount) int64 { return m.Store.Stored }),
	gauge("cache_disk_free_bytes", "Free bytes on the disk of the block cache.", func(m mount) int64 { return m.Store.DiskFree }),
	gauge("cache_disk_bytes", "Size of the disk of the block cache.", func(m mount) int64 { return m.Store.Disk }),
	counter("cache_hits", "Reads of blocks that were in the cache.", func(m mount) int64 { return m.Store.Hits }),
	counter("cache_waits", "Reads that waited for a block to be fetched.", func(m mount) int64 { return m.Store.Waits }),
	counter("cache_wait_seconds", "Time that reads waited for blocks to be fetched.", func(m mount) float64 { return m.Store.WaitSeconds }),
	counter("cache_full_blocks", "Fetched blocks that did not fit into the cache.", func(m mount) int64 { return m.Store.Full }),
	counter("cache_present_blocks", "Fetched blocks that another process had written first.", func(m mount) int64 { return m.Store.Present }),
	counter("cache_failed_blocks", "Fetched blocks that were not cached because the directory could not be written.",
		func(m mount) int64 { return m.Store.Failed }),
	counter("cache_slow_blocks", "Fetched blocks that were not cached because the disk was too slow.", func(m mount) int64 { return m.Store.Slow }),
	counter("store_fetched_bytes", "Bytes fetched from stores.", func(m mount) int64 { return m.Store.Fetched }),
	counter("store_retries", "Requests to stores that were retries.", func(m mount) int64 { return m.Store.Retries }),
	counter("store_errors", "Requests to stores that failed with status 429 or 5xx, or without a response.", func(m mount) int64 { return m.Store.Errors }),
}

var sequenceMetrics = []metric[sequence]{
	gauge("cursor", "Number of the batch that the next reader of next gets.", func(s sequence) uint64 { return s.Cursor }),
	counter("batches", "Batches that readers began to read.", func(s sequence) uint64 { return s.Batches }),
	counter("reads", "Requests that were answered with data of batches.", func(s sequence) uint64 { return s.Reads }),
	counter("ready_reads", "Requests that were answered from prefetched batches.", func(s sequence) uint64 { return s.Ready }),
	counter("read_bytes", "Bytes of batches that readers received.", func(s sequence) uint64 { return s.Bytes }),
	counter("reader_wait_seconds", "Time that readers of next waited, from their second request on.", func(s sequence) float64 { return s.Waited }),
	counter("reader_gap_seconds", "Time that readers of next spent between requests.", func(s sequence) float64 { return s.Gap }),
	counter("returned_numbers", "Batch numbers that failed reads returned to the cursor.", func(s sequence) uint64 { return s.Returned }),
	readErrors,
}

var (
	sequenceLabels = []string{"split", "settings"}
	readErrors     = counter("read_errors", "Requests that failed.", func(s sequence) uint64 { return s.Errors })
	buildInfo      = describe("build_info", "Version of batchfs that serves the mount.", "version")
	splitInfo      = describe("split_info", "Fingerprint of the tokens of a split.", "split", "fingerprint")
	resident       = describe("process_resident_memory_bytes", "Resident memory of the mount's processes.", "process")
	storeDuration  = describe("store_request_duration_seconds", "Time from a request to a store to the header of its response.")
	readWait       = describe("read_wait_seconds", "Time that requests for next waited in the worker for their reply.", sequenceLabels...)
	sourceRows     = describe("source_rows_total", "Rows from each of the first 64 sources of a mixture, in batches that readers began to read.", "split", "source")
	sourceWeight   = describe("source_weight_ratio", "Configured fraction of rows from each of the first 64 sources of a mixture, in "+
		"its current stage.", "split", "source")
	phase   = describe("stage", "Number of the stage, in info.json, of the batch that a reader of a mixture began last.", "split")
	leftOut = describe("sequences_left_out", "Open settings directories without metrics, because there are too many.")
)

// Describe sends nothing, because the set of metrics depends on the mount.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(to chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	}
	mount := figures.Of(c.Shared)
	for _, m := range mountMetrics {
		send(m.desc, m.kind, m.value(mount))
	}
	send(buildInfo, prometheus.GaugeValue, 1, mount.Version)
	for _, p := range figures.Processes(c.Shared) {
		send(resident, prometheus.GaugeValue, float64(p.Resident), p.Name)
	}
	to <- histogram(storeDuration, mount.Store.ResponseSeconds, mount.Store.ResponseTimes[:], func(i int) time.Duration { return time.Millisecond << i })
	send(readErrors.desc, readErrors.kind, float64(mount.Errors), "", "")
	open := 0
	for s := range figures.Sequences(c.Shared) {
		if open++; open <= maxSequences {
			collectSequence(s, to, send)
		}
	}
	send(leftOut, prometheus.GaugeValue, float64(max(open-maxSequences, 0)))
}

// maxSequences limits how many sequences have metrics.
const maxSequences = 1000

func collectSequence(s sequence, to chan<- prometheus.Metric, send func(*prometheus.Desc, prometheus.ValueType, float64, ...string)) {
	if s.Settings == "" {
		send(splitInfo, prometheus.GaugeValue, 1, s.Split, s.Fingerprint)
	}
	if len(s.Sources) > 0 {
		send(phase, prometheus.GaugeValue, float64(s.Phase), s.Split)
	}
	for _, source := range s.Sources {
		send(sourceRows, prometheus.CounterValue, float64(source.Rows), s.Split, source.Name)
		send(sourceWeight, prometheus.GaugeValue, source.Weight, s.Split, source.Name)
	}
	for _, m := range sequenceMetrics {
		send(m.desc, m.kind, m.value(s), s.Split, s.Settings)
	}
	to <- histogram(readWait, s.WaitSeconds, s.Waits[:], func(i int) time.Duration { return state.WaitBounds[i] }, s.Split, s.Settings)
}

// histogram returns a Prometheus histogram in which pairs of buckets are merged. The last bucket
// has no bound.
func histogram(desc *prometheus.Desc, sum float64, buckets []uint64, bound func(i int) time.Duration, labels ...string) prometheus.Metric {
	total, below := uint64(0), map[float64]uint64{}
	for i, n := range buckets {
		if total += n; i%2 == 1 && i < len(buckets)-1 {
			below[bound(i).Seconds()] = total
		}
	}
	return prometheus.MustNewConstHistogram(desc, total, sum, below, labels...)
}
