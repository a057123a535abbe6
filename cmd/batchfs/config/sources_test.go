package config

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/sampler"
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

// A schedule has the same stages however it is written, and a mistake in it is reported with its
// line.
func TestStages(t *testing.T) {
	const sources = "[[splits.mix.sources]]\nname = 'web'\ntokens = 'a.bin'\n[[splits.mix.sources]]\nname = 'math'\ntokens = 'b.bin'\nmax_epochs = 4\n"
	const first = sources + "[[splits.mix.stages]]\nweights = {web = 9, math = 1}\n"
	second := func(lines string) string { return first + "[[splits.mix.stages]]\nweights = {math = 0.5}\n" + lines }
	want := []sampler.Stage{{Weights: []float64{9, 1}}, {FromTokens: 250e9, Weights: []float64{0, 0.5}}}
	for _, from := range []string{"'250B'", "'250G'", "'0.25T'", "'250000M'", "250_000_000_000", "250e9"} {
		c, err := decodeText(second("from_tokens = " + from))
		testfiles.NoError(t, err)
		if s := c.Splits[0]; !reflect.DeepEqual(s.Stages, want) || s.Weights != nil || !slices.Equal(s.MaxEpochs, []float64{0, 4}) || !s.Scheduled() {
			t.Errorf("from_tokens = %s: %+v, max_epochs %v", from, s.Stages, s.MaxEpochs)
		}
	}
	const table = "must be a table of sources and numbers, 0 or above and not all 0, as in {web = 9, math = 1} (got "
	const whole = `must be a whole number of tokens above 0, as in "250B" (k, M, B or G, T) (got `
	for text, want := range map[string]string{
		second(""): "10: splits.mix.stages.1: must have either from_tokens or from_row (got none)",
		second("from_row = 7\nfrom_tokens = 7000"): "10: splits.mix.stages.1: must have either from_tokens or from_row (got both)",
		second("from_row = 0"):                     "12: splits.mix.stages.1.from_row: must be a whole number from 1 to ",
		second("from_tokens = '1.5'"):              "12: splits.mix.stages.1.from_tokens: " + whole + `"1.5")`,
		second("from_tokens = '1e9'"):              "12: splits.mix.stages.1.from_tokens: " + whole + `"1e9")`,
		second("from_tokens = '99999999T'"):        "12: splits.mix.stages.1.from_tokens: " + whole,
		first + "from_row = 7":                     "8: splits.mix.stages.0: the first stage begins at row 0; leave out from_tokens and from_row",
		second("from_row = 7\n[[splits.mix.stages]]\nfrom_tokens = 7000\nweights.web = 1"):              "13: splits.mix.stages.2: must begin after row 7, where the stage before it begins (got row 7)",
		sources + "[[splits.mix.stages]]\nweights = {\nwbe = 9, math = 1}":                              `9: splits.mix.stages.0.weights.wbe: split mix has no source "wbe"; its sources are web, math`,
		sources + "[[splits.mix.stages]]\nweights = {web = 0}":                                          "9: splits.mix.stages.0.weights: " + table + "{web = 0})",
		sources + "[[splits.mix.stages]]\nweights = {web = '9', math = 1}":                              "9: splits.mix.stages.0.weights: " + table + `{math = 1, web = "9"})`,
		sources + "[[splits.mix.stages]]\nweights = {web = -1}":                                         "9: splits.mix.stages.0.weights: " + table + "{web = -1})",
		sources + "[[splits.mix.stages]]\nfrom_row = 1":                                                 "8: splits.mix.stages.0: must have weights, a table of sources",
		sources + "[splits.mix.stages]\nweights.web = 1":                                                "8: splits.mix.stages: must be a list of tables, as in [{weights = {web = 9, math = 1}}] (got a table)",
		"batch.layout = 'rows'\n" + second("from_tokens = 7000"):                                        "11: splits.mix.stages.1: layout rows has no tokens; replace from_tokens with from_row",
		"batch.order = 'torch'\n" + first:                                                               "1: batch.order: order torch draws from one array of tokens and cannot mix sources; choose another order",
		"batch.order = 'torch'\n[[splits.mix.sources]]\ntokens = 'a.bin'\nweight = 1\nmax_epochs = 2\n": "1: batch.order: order torch draws without end from one array of tokens; choose another order, or leave out max_epochs and source",
		sources: "1: splits.mix.sources.0: must have weight, a number, 0 or above (got none)",
		strings.Replace(first, "name = 'math'", "weight = 1", 1): "5: splits.mix.sources.1.weight: split mix has stages, which have the weights of its sources; leave out weight, or stages",
		train + "stages = [{weights = {web = 1}}]":               "3: splits.train.stages: split train has no sources; list its files as [[splits.train.sources]]",
	} {
		wantError(t, "config.toml:"+want, text)
	}
	c, err := decodeText(second("from_row = 7\n[[splits.mix.stages]]\nfrom_tokens = 16384\nweights.web = 1"))
	testfiles.NoError(t, err)
	if _, err := c.Splits[0].With("block_size=4096"); fmt.Sprint(err) != "mix/block_size=4096: stages.2: must begin after row 7, where the stage before it begins (got row 4)" {
		t.Error(err)
	}
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
