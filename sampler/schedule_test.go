package sampler

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"batchfs/cache/array"
	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// A simulatedSchedule is the input of testdata/simulate.py, and what the sampler needs for it.
type simulatedSchedule struct {
	Stages    []simulatedStage `json:"stages"`
	MaxEpochs []float64        `json:"max_epochs"`
	Rows      []int64          `json:"rows"` // in an epoch of each source
	Hosts     int              `json:"hosts"`
	Only      *int             `json:"only"`
	Count     uint64           `json:"count"`

	sources  []Source
	settings Settings
	alone    [][]*Sequence // each source as a split of its own, by host
}

type simulatedStage struct {
	Row     uint64    `json:"row"`
	Weights []float64 `json:"weights"`
}

func randomWeights(r *rand.Rand, sources int) []float64 {
	weights, six := make([]float64, sources), r.IntN(100) == 0
	for i := range weights {
		weights[i] = max(0, float64(r.IntN(14)-4)) / 10
		if six && weights[i] > 0 {
			weights[i] = float64(r.IntN(1_000_000)) / 1e6
		}
	}
	weights[r.IntN(sources)] += 0.5
	return weights
}

func randomSchedule(t *testing.T, r *rand.Rand) *simulatedSchedule {
	n := 1 + r.IntN(8)
	s := &simulatedSchedule{MaxEpochs: make([]float64, n), Hosts: 1, Rows: make([]int64, n), alone: make([][]*Sequence, n)}
	q := Settings{Name: "train", BatchSize: 1, BlockSize: 1 + r.IntN(9), DType: Native, Layout: XY, Seed: r.Uint64(), World: 1,
		Order: []Order{Random, Shuffle, Sequential}[r.IntN(3)], MaxEpochs: s.MaxEpochs}
	if r.IntN(3) == 0 {
		q.Rows = documentKinds[r.IntN(3)]
	} else if q.Order == Shuffle && r.IntN(2) == 0 {
		q.ShuffleBlock, s.Hosts, q.LocalWorld = 64, 1+r.IntN(3), 1
		q.World = s.Hosts
	}
	for i := range n {
		s.sources = append(s.sources, documentSource(array.Uint32, append(randomDocuments(r, 3+r.IntN(40), 20), 0)))
		ends := s.sources[i].Documents.(documentEnds)
		ends[len(ends)-1] = ends[len(ends)-2] + 100
		s.sources[i] = documentSource(array.Uint32, ends)
		if r.IntN(2) == 0 {
			s.MaxEpochs[i] = float64(r.IntN(4000)) / 1000
		}
	}
	row := uint64(0)
	for range 1 + r.IntN(50) {
		stage := simulatedStage{row, randomWeights(r, n)}
		from := Stage{FirstRow: row, Weights: stage.Weights}
		if row > 0 && r.IntN(2) == 0 {
			from = Stage{FromTokens: row*uint64(q.BlockSize) - r.Uint64N(uint64(q.BlockSize)), Weights: stage.Weights}
		}
		s.Stages, q.Stages = append(s.Stages, stage), append(q.Stages, from)
		row += 1 + r.Uint64N(1+r.Uint64N(150))
	}
	s.Count = row + 100
	if r.IntN(8) == 0 {
		q.Only = 1 + r.IntN(n)
		s.Only = new(q.Only - 1)
	}
	if len(s.Stages) == 1 && n > 1 && r.IntN(2) == 0 {
		q.Stages, q.Weights = nil, s.Stages[0].Weights
	}
	s.settings = q
	for i := range n {
		only := q
		only.Name, only.Stages, only.Weights, only.MaxEpochs, only.Only = "train/"+string(rune('0'+i)), nil, nil, nil, 0
		for only.Rank = range s.Hosts {
			alone, err := New(s.sources[i:i+1], only)
			must(t, err)
			s.alone[i] = append(s.alone[i], alone)
			if rows := alone.RowsPerEpoch(); only.Rank == 0 || rows < s.Rows[i] {
				s.Rows[i] = rows
			}
		}
	}
	return s
}

// Rows are those that a simulation finds by walking from row to row, whatever the batch size and
// the world. Within a stage, each source has its part of the rows, to within one.
func TestRowsAreThoseOfASimulation(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var schedules []*simulatedSchedule
	for range attempts(30, e2e.NormalOrSoak(100, 1000)) {
		schedules = append(schedules, randomSchedule(t, r))
	}
	raw, err := json.Marshal(schedules)
	must(t, err)
	simulate := testwait.Job(t, "python3", "testdata/simulate.py")
	simulate.Stdin = bytes.NewReader(raw)
	raw, err = simulate.Output()
	must(t, err)
	var walks [][][3]uint64 // source, row in it, stage
	must(t, json.Unmarshal(raw, &walks))
	for i, s := range schedules {
		q, err := New(s.sources, s.settings)
		if len(walks[i]) == 0 && err != nil && strings.Contains(err.Error(), "max_epochs leaves 0 rows") {
			continue
		}
		must(t, err)
		for range 3 {
			s.check(t, r, q, walks[i])
		}
	}
}

// check compares the rows of all ranks, under a random batch size and world, with a simulation.
func (s *simulatedSchedule) check(t *testing.T, r *rand.Rand, base *Sequence, walk [][3]uint64) {
	t.Helper()
	settings, local := s.settings, 1+r.IntN(3)
	settings.BatchSize, settings.World = 1+r.IntN(9), local*s.Hosts
	if settings.ShuffleBlock > 0 {
		settings.LocalWorld = local
	}
	batch := uint64(settings.BatchSize * local)
	ended := uint64(len(walk)) < s.Count
	var ranks []*Sequence
	for settings.Rank = range settings.World {
		q, err := base.With(settings)
		if err != nil {
			if ended && uint64(len(walk)) < batch && strings.Contains(err.Error(), "max_epochs leaves") {
				return
			}
			t.Fatalf("%+v: %v", settings, err)
		}
		ranks = append(ranks, q)
	}
	if batches := ranks[0].Batches(); ended && batches != uint64(len(walk))/batch || !ended && batches < s.Count/batch {
		t.Fatalf("%+v: %d batches, want %d rows, or more: %v", settings, batches, len(walk), !ended)
	}
	drawn, inBatch := make([]uint64, len(s.sources)), make([]uint64, len(s.sources))
	var start Phase
	for row, want := range walk[:uint64(len(walk))/batch*batch] {
		row, source, index, stage := uint64(row), int(want[0]), want[1], int(want[2])
		rank, host := int(row%batch/uint64(settings.BatchSize)), r.IntN(s.Hosts)
		q, k, j := ranks[host*local+rank], row/batch, int(row%uint64(settings.BatchSize))
		if q.schedule.Phases[stage].Row == row {
			start = q.Phases()[stage]
			if !slices.Equal(start.Before, drawn) || q.Row(start.Batch, q.BatchSize-1) < q.Row(k, j) || start.Batch > k {
				t.Fatalf("%+v: stage %d begins with %+v, want %v at row %d", settings, stage, start, drawn, row)
			}
		}
		alone := s.alone[source][host]
		got, pos := q.Start(k, j)
		if got != source || pos != rowStart(alone, index, 0) || q.Epoch(k, j) != index/uint64(alone.RowsPerEpoch()) ||
			q.PhaseOf(k, j) != stage || q.ScheduleRow(k, j) != row || q.schedule.rowOf(source, index) != row {
			t.Fatalf("%+v: row %d is at %d of source %d, in stage %d, want row %d of source %d, in stage %d",
				settings, row, pos, got, q.PhaseOf(k, j), index, source, stage)
		}
		drawn[source]++
		n := int(row-start.Row) + 1
		for i, rows := range start.Rows {
			if lag := n*rows - int(drawn[i]-start.Before[i])*start.Period; lag <= -start.Period || lag >= start.Period {
				t.Fatalf("%+v: %d of the first %d rows of stage %d are source %d's", settings, drawn[i]-start.Before[i], n, stage, i)
			}
		}
		if inBatch[source]++; j == settings.BatchSize-1 {
			for i := range inBatch {
				if got := q.RowsOf(i, k); got != inBatch[i] {
					t.Fatalf("%+v: %d rows of batch %d are source %d's, want %d", settings, got, k, i, inBatch[i])
				}
			}
			clear(inBatch)
		}
	}
}

// DivergesAt finds the first row that differs, and none that does not.
func TestDivergesAt(t *testing.T) {
	r, diverged := rand.New(rand.NewPCG(7, 8)), 0
	for range attempts(100, e2e.NormalOrSoak(200, 2000)) {
		s := randomSchedule(t, r)
		a, b := s.settings, s.settings
		a.MaxEpochs, b.MaxEpochs = slices.Clone(s.MaxEpochs), slices.Clone(s.MaxEpochs)
		b.Stages = slices.Clone(a.Stages)
		sources := s.sources
		if i := r.IntN(len(s.sources)); r.IntN(2) == 0 {
			b.MaxEpochs[i] = max(0, b.MaxEpochs[i]+r.Float64()-0.5)
		}
		if len(b.Stages) > 0 {
			i := r.IntN(len(b.Stages))
			b.Stages[i].Weights = slices.Clone(b.Stages[i].Weights)
			b.Stages[i].Weights[r.IntN(len(s.sources))] += float64(r.IntN(2))
			if b.Only == 0 && r.IntN(2) == 0 { // a new source, drawn from a later stage on
				sources, b.MaxEpochs = append(slices.Clone(sources), sources[0]), append(b.MaxEpochs, 0)
				for n := range b.Stages {
					b.Stages[n].Weights = append(slices.Clone(b.Stages[n].Weights), float64(max(0, n-i)))
				}
			}
		}
		p, err := New(s.sources, a)
		q, other := New(sources, b)
		if err != nil || other != nil {
			continue // too few rows for a batch
		}
		want, differs := uint64(0), false
		end := min(p.schedule.End, q.schedule.End)
		for ; want < s.Count && !differs && (want < end || p.schedule.End != q.schedule.End); want++ {
			if differs = want >= end; !differs {
				x, i := p.schedule.sourceOf(want)
				y, j := q.schedule.sourceOf(want)
				differs = x != y || i != j
			}
		}
		for _, pair := range [][2]*Sequence{{p, q}, {q, p}} {
			if row, diverges := pair[0].DivergesAt(pair[1]); differs && (!diverges || row != want-1) || !differs && diverges && row < want {
				t.Fatalf("%+v and %+v differ at row %d: %v, want %d: %v", a, b, row, diverges, want-1, differs)
			}
		}
		if differs {
			diverged++
		}
		checkDescriptions(t, p.schedule, q.schedule)
		if same, diverges := p.DivergesAt(p); diverges {
			t.Fatalf("%+v differs from itself at row %d", a, same)
		}
	}
	if diverged < attempts(20, e2e.NormalOrSoak(50, 500)) {
		t.Errorf("only %d pairs differ", diverged)
	}
}

// checkDescriptions checks that DivergesAt compares descriptions like the schedules themselves,
// except that descriptions have no end.
func checkDescriptions(t *testing.T, a, b *Schedule) {
	t.Helper()
	p, err := ParseSchedule(a.String())
	must(t, err)
	q, err := ParseSchedule(b.String())
	must(t, err)
	want, wantDiverges := a.DivergesAt(b)
	if row, diverges := p.DivergesAt(q); want < min(a.End, b.End) && (row != want || diverges != wantDiverges) {
		t.Fatalf("%v and %v differ at row %d: %v, want %d: %v", p, q, row, diverges, want, wantDiverges)
	}
	if p.String() != a.String() {
		t.Fatalf("%v is described as %v", a, p)
	}
}

func TestParseScheduleRejects(t *testing.T) {
	for _, text := range []string{"", "7:3", "1=1", "0=", "0=0", "0=0:0", "0=1:-1", "0=1,0=2", "0=1,9=1,8=1", "0=1,9", "=1", "0=a", "0=1:1048576", "0=99999999999999999999", "-1=1"} {
		if s, err := ParseSchedule(text); err == nil {
			t.Errorf("%q is parsed as %v", text, s)
		}
	}
}

// A schedule that another process receives needs no computation, and its rows are the same. All
// sequences share it.
func TestSchedulesAreShared(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range attempts(20, 200) {
		s := randomSchedule(t, r)
		q, err := New(s.sources, s.settings)
		if err != nil {
			continue
		}
		var wire bytes.Buffer
		must(t, gob.NewEncoder(&wire).Encode(q.Schedule()))
		received := new(Schedule)
		must(t, gob.NewDecoder(&wire).Decode(received))
		p, err := NewWithSchedule(s.sources, s.settings, received)
		must(t, err)
		if _, diverges := p.DivergesAt(q); diverges || !reflect.DeepEqual(p.Phases(), q.Phases()) || p.Batches() != q.Batches() {
			t.Fatalf("%+v: stages %v were passed as %v", s.settings, q.Phases(), p.Phases())
		}
		other := p.Settings
		other.Seed++
		if with, err := p.With(other); err != nil || with.schedule != p.schedule {
			t.Fatalf("%+v: the schedule was computed again (error %v)", other, err)
		}
	}
}

func TestStagesAreChecked(t *testing.T) {
	stages := func(list ...Stage) func(*Settings) { return func(s *Settings) { s.Stages = list } }
	both := []float64{1, 1}
	for _, test := range []struct {
		change func(*Settings)
		want   string
	}{
		{stages(Stage{Weights: both}, Stage{FirstRow: 9, Weights: []float64{1, 1e-7}}), "stage 2: weight 1e-07 of source 1: less than a millionth"},
		{stages(Stage{Weights: []float64{1}}), "stage 1: 1 weights for 2 sources"},
		{func(s *Settings) { s.MaxEpochs = []float64{0.1, 0.1} }, "max_epochs leaves 2 rows, less than a batch of all ranks, 4; raise max_epochs"},
		{func(s *Settings) { s.Only = 3 }, "source 2: there are 2 sources"},
	} {
		s := Settings{BatchSize: 4, BlockSize: 8, DType: Native, Layout: XY, Order: Random, World: 1, Weights: both}
		test.change(&s)
		if _, err := New(stubSources(array.Uint16, []int64{100}, []int64{100}), s); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error %v, want %s", s, err, test.want)
		}
	}
	// After a restart, a path may have a block size that puts a stage of the mount too early.
	s := Settings{BatchSize: 4, BlockSize: 8, DType: Native, Layout: XY, Order: Random, World: 1,
		Stages: []Stage{{Weights: both}, {FirstRow: 9, Weights: []float64{1, 0}}, {FromTokens: 33, Weights: []float64{0, 1}}}}
	q, err := New(stubSources(array.Uint16, []int64{100}, []int64{100}), s)
	must(t, err)
	if list := q.Phases(); len(list) != 2 || list[1].Row != 9 || list[1].Configured != 2 {
		t.Errorf("stages %+v, want the first one, and the last one from row 9", list)
	}
}

// Patterns of many stages take no more memory than Tables allow.
func TestPatternsStayWithinTables(t *testing.T) {
	const limit = 30 << 20
	sources, tables := stubSources(array.Uint16, []int64{100}, []int64{100}), NewTables(limit)
	s := Settings{BatchSize: 1, BlockSize: 8, DType: Native, Layout: XY, Order: Random, World: 1}
	for i := range uint64(4) {
		sources[i%2].Tables = tables
		s.Stages = append(s.Stages, Stage{FirstRow: i * 10, Weights: []float64{999_983, float64(700_001 + i)}})
	}
	q, err := New(sources, s)
	must(t, err)
	for k := range uint64(80) {
		q.Start(k%40, 0)
		if tables.Bytes() > limit {
			t.Fatalf("after batch %d, tables have %d bytes", k%40, tables.Bytes())
		}
	}
}
