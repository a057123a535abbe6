package cache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cache/array"
	"batchfs/cache/localfile"
)

// BenchmarkAccess reads 12 windows of 1025 tokens from a warm file with each access, and reports
// the processor time as a multiple of that with pread: go test ./cache -run '^$' -bench Access
func BenchmarkAccess(b *testing.B) {
	paths := writeFiles(b, 2, 32<<20)
	for _, readers := range []int{1, 8} {
		var withPread float64
		for _, access := range []localfile.Access{localfile.Pread, localfile.Remap, localfile.Advise} {
			b.Run(fmt.Sprintf("%s,readers=%d", access, readers), func(b *testing.B) {
				tokens := open(b, paths, Options{DType: array.Uint16, Reading: localfile.Options{Access: access}})
				before := processorTime(b)
				var running sync.WaitGroup
				for range readers {
					running.Go(func() {
						windows := make([]array.Window, 12)
						for range b.N {
							for i := range windows {
								windows[i] = array.Window{Start: rand.Int64N(tokens.Len() - 1025), Len: 1025}
							}
							if err := tokens.Read(windows, func(int, []byte) error { return nil }); err != nil {
								b.Error(err)
							}
						}
					})
				}
				running.Wait()
				took := float64(processorTime(b)-before) / float64(b.N*readers)
				if access == localfile.Pread {
					withPread = took
				}
				b.ReportMetric(took/1000, "µs-cpu/read")
				b.ReportMetric(took/withPread, "x-pread")
			})
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
