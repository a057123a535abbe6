package sampler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/localfile"
	"batchfs/test/e2e"
)

type hostsCase struct {
	fileLens                           []int
	axes                               []int
	join                               bool
	shuffleBlock                       int64
	hosts                              int
	ranksPerHost, batchSize, blockSize int
	layout                             Layout
}

func (s hostsCase) settings(rank int) Settings {
	return Settings{Name: "train", BatchSize: s.batchSize, BlockSize: s.blockSize, DType: Native, Layout: s.layout, Order: Shuffle, Seed: 3,
		Rank: rank, World: s.hosts * s.ranksPerHost, ShuffleBlock: s.shuffleBlock, LocalWorld: s.ranksPerHost}
}

func (s hostsCase) ranks(tokens []Source) (list []*Sequence, err error) {
	first, err := New(tokens, s.settings(0))
	if err != nil {
		return nil, err
	}
	for rank := range s.hosts * s.ranksPerHost {
		q, err := first.With(s.settings(rank))
		if err != nil {
			return nil, err
		}
		list = append(list, q)
	}
	return list, nil
}

func randomHosts(r *rand.Rand) hostsCase {
	s := hostsCase{join: r.IntN(2) == 0, hosts: 1 + r.IntN(5), ranksPerHost: 1 + r.IntN(3), batchSize: 1 + r.IntN(4), blockSize: 1 + r.IntN(9), layout: Tokens}
	s.shuffleBlock = int64(1 + r.IntN(100))
	if r.IntN(3) == 0 {
		s.layout, s.axes = Rows, []int{3} // makes most blocks end within an element
	}
	for range 1 + r.IntN(5) {
		s.fileLens = append(s.fileLens, s.blockSize+1+r.IntN(1+r.IntN(400)))
		if r.IntN(3) == 0 {
			s.fileLens = append(s.fileLens, 1+r.IntN(s.blockSize))
		}
	}
	return s
}

func (s hostsCase) open(t *testing.T) []Source {
	numbers := slices.Clone(s.fileLens)
	for i := range numbers {
		numbers[i] *= max(1, 3*len(s.axes))
	}
	paths := writeFiles(t, 2, numbers...)
	return openSources(t, [][]string{paths}, cache.Options{DType: array.Uint16, Axes: s.axes, Join: s.join, Reading: localfile.Options{Access: localfile.Pread}, Matched: asMatched(paths)})
}

// An epoch of a host has each window of its share once, whatever the number of ranks, and every
// epoch has the same share in a new order. Cuts are at blocks of a file, so no two hosts need the
// same block.
func TestSharesOfHosts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	shared, several := 0, 0
	for range attempts(100, e2e.NormalOrSoak(300, 1000)) {
		s := randomHosts(r)
		tokens := s.open(t)
		ranks, err := s.ranks(tokens)
		if err != nil {
			if !strings.Contains(err.Error(), "shuffle_block = ") || !strings.Contains(err.Error(), "world") {
				t.Fatalf("%+v: %v", s, err)
			}
			continue
		}
		shared++
		size, step := ranks[0].newWindowSpec().len, ranks[0].newWindowSpec().stride
		owner := map[[2]int64]int{} // numbers of hosts, plus one, by file and block
		least, covered := int64(1<<62), int64(0)
		for host := range s.hosts {
			var epochs [3][]int64
			n := ranks[host*s.ranksPerHost].RowsPerEpoch()
			least, covered = min(least, (n+int64(s.batchSize*s.ranksPerHost)-1)/int64(s.batchSize*s.ranksPerHost)), covered+n*step
			for k := range uint64(3*n/int64(s.batchSize*s.ranksPerHost) + 1) {
				for local := range s.ranksPerHost {
					q := ranks[host*s.ranksPerHost+local]
					for j := range s.batchSize {
						if epoch := q.Epoch(k, j); epoch < 3 {
							epochs[epoch] = append(epochs[epoch], rowStart(q, k, j))
						}
					}
				}
			}
			if n > 20 && slices.Equal(epochs[0], epochs[1]) {
				t.Errorf("%+v: two epochs of host %d are in one order", s, host)
			}
			for e := range epochs {
				slices.Sort(epochs[e])
			}
			var want []int64
			_, from := cutAt(tokens[0].Main, s.shuffleBlock, host, s.hosts)
			to, _ := cutAt(tokens[0].Main, s.shuffleBlock, host+1, s.hosts)
			for _, run := range tokens[0].Main.Extents() {
				for start := max(run.Start, from); start+size <= min(run.Start+run.Len, to); start += step {
					want = append(want, start)
				}
			}
			if a, b := ranks[host*s.ranksPerHost].NeededElements(0); a != want[0] || b != want[len(want)-1]+size {
				t.Fatalf("%+v: host %d needs elements %d to %d, want %d to %d", s, host, a, b, want[0], want[len(want)-1]+size)
			}
			for e, got := range epochs {
				if !slices.Equal(got, want) {
					t.Fatalf("%+v: epoch %d of host %d has %v, want %v", s, e, host, got, want)
				}
			}
			if from > 0 {
				several++
			}
			width := int64(2 * max(1, 3*len(s.axes)))
			for _, start := range want {
				for pos := start; pos < start+size; pos++ {
					place, file := int64(0), 0
					for place = pos; place >= int64(s.fileLens[file]); file++ {
						place -= int64(s.fileLens[file])
					}
					for _, byteOf := range []int64{place * width, (place+1)*width - 1} {
						block := [2]int64{int64(file), byteOf / s.shuffleBlock}
						if other := owner[block]; other > 0 && other != host+1 {
							t.Fatalf("%+v: hosts %d and %d both have block %d of file %d", s, other-1, host, block[1], file)
						}
						owner[block] = host + 1
					}
				}
			}
		}
		// Shares miss less than a window at each cut, and at the end of each extent.
		gaps := int64(s.hosts - 1 + len(tokens[0].Main.Extents()))
		if left := tokens[0].Main.Len() - covered; left > gaps*size {
			t.Errorf("%+v: %d elements are in no share, at %d cuts and ends", s, left, gaps)
		}
		for _, q := range ranks {
			if q.BatchesPerEpoch() != least {
				t.Errorf("%+v: rank %d has %d batches an epoch, want the least of all hosts, %d", s, q.Rank, q.BatchesPerEpoch(), least)
			}
		}
	}
	if shared < 50 || several < 50 {
		t.Errorf("only %d sources, with %d cuts, which shows little", shared, several)
	}
}

// With 512 hosts and 10^9 windows, no share exceeds the mean by more than 2%.
func TestSharesOfManyHosts(t *testing.T) {
	const windows, hosts = int64(1e9), 512
	dir := t.TempDir()
	var paths []string
	for i, part := range []int64{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5} {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("%02d.bin", i)))
		f, err := os.Create(paths[i])
		must(t, err)
		must(t, f.Truncate(windows*2048/44*part/2*2)) // a hole, which takes no disk space
		must(t, f.Close())
	}
	s := hostsCase{hosts: hosts, ranksPerHost: 8, shuffleBlock: 64 << 20, batchSize: 4, blockSize: 1024, layout: XY}
	tokens := openSources(t, [][]string{paths}, cache.Options{DType: array.Uint16, Reading: localfile.Options{Access: localfile.Pread}})
	first, err := New(tokens, s.settings(0))
	must(t, err)
	most, sum := int64(0), int64(0)
	for host := range hosts {
		q, err := first.With(s.settings(host * 8))
		must(t, err)
		most, sum = max(most, q.RowsPerEpoch()), sum+q.RowsPerEpoch()
		if pos := rowStart(q, 1<<30, 1); pos < tokens[0].Main.Len()/hosts*int64(host)-(64<<20) || pos > tokens[0].Main.Len()/hosts*int64(host+1)+(64<<20) {
			t.Fatalf("host %d reads at %d", host, pos)
		}
	}
	if ratio := float64(most) * hosts / float64(sum); ratio > 1.02 || sum < windows-hosts*2 {
		t.Errorf("%d windows in all, and the largest share is %.4f of the mean", sum, ratio)
	}
}

// TestStatisticsOfShuffleBlock compares shuffle_block with plain shuffle, for a share of 16 GiB.
// Run it with -v for the table.
func TestStatisticsOfShuffleBlock(t *testing.T) {
	const (
		windows = int64(8 << 20)
		batch   = 512
		quarter = windows / 4
	)
	t.Logf("%-28s %22s %18s %22s", "shuffle_block", "neighbours correlate", "document spreads", "quarter of a batch")
	for _, block := range []int64{0, 16 << 20, 64 << 20, 256 << 20} {
		tokens := []Source{{Main: &stubArray{dtype: array.Uint16, extents: []array.Extent{{Len: windows*1024 + 1}}}}}
		s := hostsCase{hosts: 1, ranksPerHost: 1, shuffleBlock: block, batchSize: batch, blockSize: 1024, layout: XY}.settings(0)
		q, err := New(tokens, s)
		must(t, err)
		// Correlation of successive rows, and variance of the fraction of a batch in one quarter.
		var product, square, variance float64
		batches := attempts(500, 2000)
		for i := range uint64(batches) {
			k, last, fraction := i*uint64(windows/batch)/uint64(batches), 0.0, 0.0
			for j := range batch {
				pos := rowStart(q, k, j) / 1024
				place := float64(pos)/float64(windows) - 0.5
				if j > 0 {
					product, square = product+place*last, square+place*place
				}
				if last = place; pos/quarter == 1 {
					fraction += 1.0 / batch
				}
			}
			variance += (fraction - 0.25) * (fraction - 0.25) / float64(batches)
		}
		// Distance in the epoch between the first and last of a document's 32 windows.
		spread := 0.0
		documents := int64(attempts(200, 1000))
		for d := range documents {
			first, last := uint64(windows), uint64(0)
			for i := range int64(32) {
				hits := find(t, q, 0, (d*(windows/documents)+i)*1024+1, 0, func(int64, int64) bool { return true })
				first, last = min(first, hits[0].Row), max(last, hits[0].Row)
			}
			spread += float64(last-first) / float64(windows) / float64(documents)
		}
		correlation, deviation := product/square, math.Sqrt(variance)
		t.Logf("%-28s %22.3f %17.1f%% %16.1f%% ± %.1f", fmt.Sprint(block>>20, " MiB"), correlation, 100*spread, 25.0, 100*deviation)
		if block == 0 && (math.Abs(correlation) > 0.01 || spread < 0.9 || deviation > 0.03) || block > 0 && (correlation > 0.2 || deviation > 0.2) {
			t.Errorf("with blocks of %d: neighbours correlate by %.3f, a document spreads over %.3f, and a quarter deviates by %.3f", block, correlation, spread, deviation)
		}
	}
}
