package config

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// manySources returns two configurations of a split with n sources, one with tables and one with a
// list. last is the weight of the last source.
func manySources(n int, last string) (tables, list string) {
	var t, l strings.Builder
	for i := range n {
		weight := "1"
		if i == n-1 {
			weight = last
		}
		fmt.Fprintf(&t, "[[splits.train.sources]]\ntokens = \"%d.bin\"\nweight = %s\n", i, weight)
		fmt.Fprintf(&l, "  {tokens = \"%d.bin\", weight = %s, arrays = []},\n", i, weight)
	}
	return t.String(), "[splits.train]\nsources = [\n" + l.String() + "]\n"
}

// Processor time to decode grows linearly with the number of sources, even if an error must name a
// line.
func TestDecodeManySources(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpuTime := func() time.Duration {
		var used unix.Timespec
		testfiles.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used))
		return time.Duration(used.Nano())
	}
	took := func(text, want string) time.Duration {
		var times []time.Duration
		for range 3 {
			began := cpuTime()
			_, err := decodeText(text)
			times = append(times, cpuTime()-began)
			if got := fmt.Sprint(err); !strings.HasPrefix(got, want) {
				t.Fatalf("error %s, want %s", got, want)
			}
		}
		return slices.Min(times)
	}
	for _, weight := range []string{"1", "-1"} {
		fewTables, fewInList := manySources(500, weight)
		manyTables, manyInList := manySources(4000, weight)
		wants := []string{"config.toml:1500: ", "config.toml:12000: ", "config.toml:2: "}
		if weight == "1" {
			wants = []string{"<nil>", "<nil>", "<nil>"}
		}
		if few, many := took(fewTables, wants[0]), took(manyTables, wants[1]); many > 30*few {
			t.Errorf("weight %s: 4000 tables take %v, 500 take %v", weight, many, few)
		}
		if few, many := took(fewInList, wants[2]), took(manyInList, wants[2]); many > 30*few {
			t.Errorf("weight %s: a list of 4000 takes %v, of 500 %v", weight, many, few)
		}
	}
}
