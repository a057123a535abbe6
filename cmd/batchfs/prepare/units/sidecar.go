package units

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"time"

	"batchfs/cmd/batchfs/vocabulary"
)

// A Sidecar records what a unit has become. A task writes it after the files of the unit, so if
// there is a sidecar, the unit is done.
type Sidecar struct {
	Unit   int                         `json:"unit"`
	Digest string                      `json:"digest"` // of the unit; see Plan.Digest
	Splits map[string]vocabulary.Split `json:"splits"` // with at most one shard each
	Files  []File                      `json:"files"`  // the shards, and the files next to them
	Notes  json.RawMessage             `json:"notes"`  // of prepare
	Texts  string                      `json:"texts_sha256"`
	// EOT has the counts of each split with --ids, because they are judged for all units together.
	EOT map[string]EOTCounts `json:"eot,omitempty"`
	// Bytes is the size of the unit's inputs, as stored.
	Bytes    int64     `json:"bytes"`
	Seconds  float64   `json:"seconds"`
	Finished time.Time `json:"finished"`
}

// Total returns the numbers of tokens and documents in all splits.
func (s *Sidecar) Total() (tokens, documents int64) {
	for _, split := range s.Splits {
		tokens += split.Tokens
		documents += split.Documents
	}
	return tokens, documents
}

// EOTCounts counts the end-of-text tokens of a split, and where they are.
type EOTCounts struct {
	// EOTTokens counts those inside documents or, with --ids, all of them, because only at the end
	// is it known whether each document begins or ends with one.
	EOTTokens int64 `json:"eot_inside"`
	EOTBegins int64 `json:"eot_begins,omitempty"` // documents that begin with one
	EOTEnds   int64 `json:"eot_ends,omitempty"`   // documents that end with one
}

// Add adds the counts of more documents.
func (c *EOTCounts) Add(more EOTCounts) {
	c.EOTTokens += more.EOTTokens
	c.EOTBegins += more.EOTBegins
	c.EOTEnds += more.EOTEnds
}

// Inside returns the number of end-of-text tokens other than those that begin or end documents,
// whichever are more.
func (c *EOTCounts) Inside() int64 { return c.EOTTokens - max(c.EOTBegins, c.EOTEnds) }

// A File is a file of a unit, as it was when the task wrote it.
type File struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	State
}

// BytesVersion is the version of the bytes that a plan leads to. It is raised only when they
// change, so that a job that has begun can continue with another build.
const BytesVersion = 1

// Dir is the directory of the sidecars, in the output directory.
const Dir = vocabulary.UnitsDir

// SidecarName returns the name of the sidecar of a unit, in the output directory. It has the digest
// of the unit, so that nobody takes the work of another plan for this one's.
func (p *Plan) SidecarName(unit int) string { return sidecarName(unit, p.Digest(unit)) }

// Name returns the name of a sidecar, in the output directory.
func (s *Sidecar) Name() string { return sidecarName(s.Unit, s.Digest) }

func sidecarName(unit int, digest string) string {
	return path.Join(Dir, fmt.Sprintf("%s-%.16s-v%d.json", Name(unit), digest, BytesVersion))
}

var sidecarPattern = regexp.MustCompile(`^` + regexp.QuoteMeta(Dir) + `/(\d{6})-[0-9a-f]{16}-v(\d+)\.json$`)

// Done returns the name of each unit's sidecar, going by the names of the files in the output
// directory. It is empty if the unit is not done. The error names a sidecar of the same number that
// another plan or version has made.
func (p *Plan) Done(files map[string]State) (names []string, err error) {
	names = make([]string, len(p.Units))
	var foreign []string
	for name := range files {
		match := sidecarPattern.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		unit, _ := strconv.Atoi(match[1])
		switch {
		case unit < len(p.Units) && name == p.SidecarName(unit):
			names[unit] = name
		case unit < len(p.Units) && p.Stricter != nil && name == sidecarName(unit, p.digestWith(p.Stricter, unit)):
			names[unit] = cmp.Or(names[unit], name)
		default:
			foreign = append(foreign, name)
		}
	}
	if len(foreign) == 0 {
		return names, nil
	}
	slices.Sort(foreign)
	match := sidecarPattern.FindStringSubmatch(foreign[0])
	unit, _ := strconv.Atoi(match[1])
	reason := "its inputs, the tokenizer or another option differ"
	switch {
	case match[2] != strconv.Itoa(BytesVersion):
		reason = fmt.Sprintf("it has version %s of the tokens, and this batchfs makes version %d", match[2], BytesVersion)
	case unit >= len(p.Units):
		reason = fmt.Sprintf("this plan has only %d units", len(p.Units))
	}
	return nil, fmt.Errorf("unit %s: %s is from another plan, because %s: use the plan that it was made with, or another --out", match[1], foreign[0], reason)
}

// Parse parses the sidecar of a unit that has this name.
func Parse(unit int, name string, text []byte) (*Sidecar, error) {
	s := new(Sidecar)
	err := json.Unmarshal(text, s)
	if err == nil && (s.Unit != unit || s.Name() != name) {
		err = fmt.Errorf("it is that of unit %s with digest %.16s", Name(s.Unit), s.Digest)
	}
	if err != nil {
		return nil, fmt.Errorf("unit %s: %s is broken: %w: remove it, and run the task of this unit again", Name(unit), name, err)
	}
	return s, nil
}

// A Summary says how far a plan is, according to the sidecars.
type Summary struct {
	Units, Done           int
	Bytes, DoneBytes      int64 // of inputs
	Tokens, Documents     int64
	Missing               []int         // units
	Rate                  float64       // bytes per second of all tasks together, or 0
	Left                  time.Duration // at this rate, or 0
	Slowest               []*Sidecar
	FirstBegun, LastEnded time.Time
}

// Summarize returns a summary. Units without a sidecar are nil.
func (p *Plan) Summarize(sidecars []*Sidecar) *Summary {
	s := &Summary{Units: len(p.Units)}
	for i, u := range p.Units {
		s.Bytes += u.Bytes
		sidecar := sidecars[i]
		if sidecar == nil {
			s.Missing = append(s.Missing, i)
			continue
		}
		s.Done++
		s.DoneBytes += u.Bytes
		tokens, documents := sidecar.Total()
		s.Tokens += tokens
		s.Documents += documents
		begun := sidecar.Finished.Add(-time.Duration(sidecar.Seconds * float64(time.Second)))
		if s.FirstBegun.IsZero() || begun.Before(s.FirstBegun) {
			s.FirstBegun = begun
		}
		if sidecar.Finished.After(s.LastEnded) {
			s.LastEnded = sidecar.Finished
		}
		s.Slowest = append(s.Slowest, sidecar)
	}
	slices.SortStableFunc(s.Slowest, func(a, b *Sidecar) int { return cmp.Compare(b.Seconds, a.Seconds) })
	s.Slowest = s.Slowest[:min(3, len(s.Slowest))]
	if took := s.LastEnded.Sub(s.FirstBegun).Seconds(); took > 0 {
		s.Rate = float64(s.DoneBytes) / took
	}
	if s.Rate > 0 {
		s.Left = time.Duration(float64(s.Bytes-s.DoneBytes) / s.Rate * float64(time.Second)).Round(time.Second)
	}
	return s
}
