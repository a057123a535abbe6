package sampler

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// A Phase is a part of a sequence in which the weights of the sources don't change: a configured
// stage, or what remains of it when a source has used up its MaxEpochs.
type Phase struct {
	Row        uint64   // first row of the schedule; see Sequence.ScheduleRow
	Batch      uint64   // first batch of this sequence with a row of the phase or a later one
	Configured int      // index in Settings.Stages; 0 without Stages
	Rows       []int    // rows of each source in a period
	Period     int      // in rows
	Before     []uint64 // rows of each source, on all ranks of an epoch group, before the phase
}

// Fraction returns the fraction of the phase's rows that come from a source.
func (p *Phase) Fraction(source int) float64 {
	return float64(p.Rows[source]) / float64(p.Period)
}

// A Schedule says which source each row comes from. It can be encoded for another process; see
// NewWithSchedule.
type Schedule struct {
	Phases []Phase // without Batch
	End    uint64  // number of rows; math.MaxUint64: no end

	mixtures []*mixture // one for each phase
}

// A mixer shares mixtures and schedules among the sequences of the same sources.
type mixer struct {
	tables    *Tables
	mixtures  weakCache[string, mixture]
	schedules weakCache[scheduleKey, Schedule]
}

// A scheduleKey holds the settings that a schedule depends on, except those that With ignores.
type scheduleKey struct {
	windowSpec
	blockSize    int
	shuffleBlock int64
	hosts, only  int
}

func (m *mixer) mixture(quotas []int) *mixture {
	mix, _ := m.mixtures.get(fmt.Sprint(quotas), func() (*mixture, error) { return newMixture(quotas, m.tables), nil })
	return mix
}

// findSchedule returns the schedule of q, whose sources are bound. known is the same schedule from
// another process, or nil.
func (q *Sequence) findSchedule(known *Schedule) (*Schedule, error) {
	key := scheduleKey{q.newWindowSpec(), q.BlockSize, q.ShuffleBlock, q.Hosts(), q.Only}
	return q.mixer.schedules.get(key, func() (*Schedule, error) {
		if known == nil {
			return q.newSchedule()
		}
		s := &Schedule{Phases: known.Phases, End: known.End}
		for _, p := range s.Phases {
			s.mixtures = append(s.mixtures, q.mixer.mixture(p.Rows))
		}
		return s, nil
	})
}

func (q *Sequence) newSchedule() (*Schedule, error) {
	stages, err := q.configuredStages()
	if err != nil {
		return nil, err
	}
	limits, err := q.rowLimits()
	if err != nil {
		return nil, err
	}
	s, row, before := &Schedule{End: math.MaxUint64}, uint64(0), make([]uint64, len(q.sources))
	for i := 0; i < len(stages); {
		next := uint64(math.MaxUint64)
		if i+1 < len(stages) {
			next = stages[i+1].FirstRow
		}
		if row >= next {
			i++
			continue
		}
		weights := slices.Clone(stages[i].Weights)
		for source, limit := range limits {
			if before[source] == limit {
				weights[source] = 0
			}
		}
		if slices.Max(weights) == 0 {
			s.End = row
			break
		}
		quotas, err := apportion(weights)
		if err != nil {
			return nil, q.stageError(i, err)
		}
		m := q.mixer.mixture(quotas)
		s.Phases = append(s.Phases, Phase{Row: row, Configured: i, Rows: quotas, Period: m.period, Before: before})
		s.mixtures = append(s.mixtures, m)
		for source, limit := range limits {
			if limit < math.MaxUint64 {
				next = row + m.rowsFor(source, limit-before[source], next-row)
			}
		}
		if next == math.MaxUint64 {
			break
		}
		counts := m.beforeAll(next - row)
		for source := range counts {
			counts[source] += before[source]
		}
		row, before = next, counts
	}
	return s, nil
}

// configuredStages returns the stages with their first rows in the schedule.
func (q *Sequence) configuredStages() ([]Stage, error) {
	stages := slices.Clone(q.Stages)
	if stages == nil {
		stages = []Stage{{Weights: q.Weights}}
	}
	for i := range stages {
		stage := &stages[i]
		if len(stage.Weights) != len(q.sources) {
			return nil, q.stageError(i, fmt.Errorf("%d weights for %d sources", len(stage.Weights), len(q.sources)))
		}
		first, hosts := stage.BeginsAt(q.BlockSize), uint64(q.Hosts())
		stage.FirstRow = first/hosts + min(first%hosts, 1)
	}
	if q.Only > 0 {
		weights := make([]float64, len(q.sources))
		weights[q.Only-1] = 1
		stages = []Stage{{Weights: weights}}
	}
	return stages, nil
}

// stageError names configured stage i in an error.
func (s *Settings) stageError(i int, err error) error {
	if s.Stages == nil {
		return err
	}
	return fmt.Errorf("stage %d: %w", i+1, err)
}

// rowLimits returns MaxEpochs in rows, as math.MaxUint64 for a source without a limit.
func (q *Sequence) rowLimits() ([]uint64, error) {
	limits := slices.Repeat([]uint64{math.MaxUint64}, len(q.sources))
	for i, epochs := range q.MaxEpochs {
		least := int64(math.MaxInt64)
		for host := range q.Hosts() {
			share, err := q.sources[i].hostShareOf(q.Settings, host)
			if err != nil {
				return nil, err
			}
			least = min(least, share.windows)
		}
		rows, whole := decimal(epochs), new(big.Int)
		rows.Mul(rows, new(big.Rat).SetInt64(least))
		if whole.Div(rows.Num(), rows.Denom()); epochs > 0 && whole.IsUint64() {
			limits[i] = whole.Uint64()
		}
	}
	return limits, nil
}

// phaseOf returns the index of a row's phase.
func (s *Schedule) phaseOf(row uint64) (i int) {
	for n := len(s.Phases); n > 1; {
		half := n / 2
		if s.Phases[i+half].Row <= row {
			i += half
		}
		n -= half
	}
	return i
}

// endOf returns the first row after a phase.
func (s *Schedule) endOf(phase int) uint64 {
	if phase+1 < len(s.Phases) {
		return s.Phases[phase+1].Row
	}
	return s.End
}

// sourceOf returns the source of a row, and how many rows of that source precede it.
func (s *Schedule) sourceOf(row uint64) (source int, index uint64) {
	i := s.phaseOf(row)
	p := &s.Phases[i]
	source, index = s.mixtures[i].sourceOf(row - p.Row)
	return source, p.Before[source] + index
}

// rowOf is the inverse of sourceOf for rows that are drawn.
func (s *Schedule) rowOf(source int, index uint64) uint64 {
	i := sort.Search(len(s.Phases), func(i int) bool { return s.Phases[i].Before[source] > index }) - 1
	p := &s.Phases[i]
	return p.Row + s.mixtures[i].rowOf(source, index-p.Before[source])
}

// before returns how many of the first n rows come from a source.
func (s *Schedule) before(source int, n uint64) uint64 {
	i := s.phaseOf(n)
	p := &s.Phases[i]
	return p.Before[source] + s.mixtures[i].before(source, n-p.Row)
}

// draws reports whether any row comes from a source.
func (s *Schedule) draws(source int) bool {
	return slices.ContainsFunc(s.Phases, func(p Phase) bool { return p.Rows[source] > 0 })
}

// Phases returns the phases of the sequence: one, unless Stages or MaxEpochs are set. The
// caller must not change their slices.
func (q *Sequence) Phases() []Phase {
	list := slices.Clone(q.schedule.Phases)
	ranks, _ := q.epochGroup()
	for i := range list {
		if next := q.ScheduleRow(0, q.BatchSize); list[i].Row >= next {
			list[i].Batch = (list[i].Row-next)/uint64(q.BatchSize*ranks) + 1
		}
	}
	return list
}

// UsedUpAt returns the source whose MaxEpochs are used up where a phase begins, or -1 if a
// configured stage begins there.
func (q *Sequence) UsedUpAt(phase int) (source int) {
	list := q.schedule.Phases
	if phase > 0 && list[phase].Configured == list[phase-1].Configured {
		for source, rows := range list[phase].Rows {
			if rows == 0 && list[phase-1].Rows[source] > 0 {
				return source
			}
		}
	}
	return -1
}

// Schedule returns the schedule of the sequence. The caller must not change it.
func (q *Sequence) Schedule() *Schedule { return q.schedule }

// ScheduleRow returns the number of row j of batch k in the schedule: among all rows or, with
// ShuffleBlock, among those of its host.
func (q *Sequence) ScheduleRow(k uint64, j int) uint64 {
	ranks, host := q.epochGroup()
	return (k*uint64(ranks)+uint64(q.Rank-host*ranks))*uint64(q.BatchSize) + uint64(j)
}

// PhaseOf returns the index in Phases of the phase of row j of batch k.
func (q *Sequence) PhaseOf(k uint64, j int) int { return q.schedule.phaseOf(q.ScheduleRow(k, j)) }

// Batches returns the number of batches: MaxBatches, unless MaxEpochs limits every source. It is
// the same on all ranks.
func (q *Sequence) Batches() uint64 { return q.batches }

// DivergesAt returns the first row of the schedule (see ScheduleRow) that q and r, which have the
// same settings except for their stages, limits and added sources, take from different places. It
// reports false if there is none.
func (q *Sequence) DivergesAt(r *Sequence) (row uint64, diverges bool) {
	if q.mixed() != r.mixed() {
		return 0, true // their random numbers differ
	}
	return q.schedule.DivergesAt(r.schedule)
}

// DivergesAt returns the first row that two schedules of the same sources take from different ones.
// One of them may have further sources. It reports false if there is no such row.
func (s *Schedule) DivergesAt(t *Schedule) (row uint64, diverges bool) {
	for row < min(s.End, t.End) {
		i, j := s.phaseOf(row), t.phaseOf(row)
		m, n, end := s.mixtures[i], t.mixtures[j], min(s.endOf(i), t.endOf(j))
		inS, inT, common := row-s.Phases[i].Row, row-t.Phases[j].Row, min(len(m.quotas), len(n.quotas))
		if m.period != n.period || inS%uint64(m.period) != inT%uint64(m.period) || !slices.Equal(m.quotas[:common], n.quotas[:common]) {
			// If the first m.period + n.period rows are equal, all are (Fine and Wilf, 1965).
			for k := range min(end-row, uint64(m.period+n.period)) {
				a, _ := m.sourceOf(inS + k)
				if b, _ := n.sourceOf(inT + k); a != b {
					return row + k, true
				}
			}
		}
		row = end
	}
	return row, s.End != t.End
}

// String describes which source each row comes from, for example "0=9:1,1000=1:1": from row 0 on, 9
// of 10 rows come from the first source, and from row 1000 on, 1 of 2. A phase that goes on with
// the periods of the phase before it is left out, and so is the end.
func (s *Schedule) String() string {
	var list []string
	last, begin := "", uint64(0)
	for _, at := range s.Phases {
		var rows []string
		for _, n := range at.Rows {
			rows = append(rows, strconv.Itoa(n))
		}
		for rows[len(rows)-1] == "0" { // further sources of later phases must change nothing
			rows = rows[:len(rows)-1]
		}
		if text := strings.Join(rows, ":"); text != last || (at.Row-begin)%uint64(at.Period) > 0 {
			list = append(list, fmt.Sprintf("%d=%s", at.Row, text))
			last, begin = text, at.Row
		}
	}
	return strings.Join(list, ",")
}

// ParseSchedule returns the schedule that String describes, without an end, for DivergesAt alone.
func ParseSchedule(text string) (*Schedule, error) {
	s, tables := &Schedule{End: math.MaxUint64}, NewTables(defaultTableBytes)
	for i, stage := range strings.Split(text, ",") {
		begin, rows, _ := strings.Cut(stage, "=")
		row, err := strconv.ParseUint(begin, 10, 64)
		if err != nil || (i == 0) != (row == 0) || i > 0 && row <= s.Phases[i-1].Row {
			return nil, fmt.Errorf("stage %q of schedule %q: must begin with a row and =, the first one with 0=, and later ones at later rows", stage, text)
		}
		var quotas []int
		period := 0
		for _, quota := range strings.Split(rows, ":") {
			n, err := strconv.ParseUint(quota, 10, 32)
			if period += int(n); err != nil || period > maxPeriod {
				return nil, fmt.Errorf("stage %q of schedule %q: must have the rows of each source, at most %d in total", stage, text, maxPeriod)
			}
			quotas = append(quotas, int(n))
		}
		if period == 0 {
			return nil, fmt.Errorf("stage %q of schedule %q: must have rows", stage, text)
		}
		s.Phases = append(s.Phases, Phase{Row: row, Rows: quotas, Period: period})
		s.mixtures = append(s.mixtures, newMixture(quotas, tables))
	}
	return s, nil
}
