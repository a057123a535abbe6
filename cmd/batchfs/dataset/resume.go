package dataset

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"batchfs/sampler"
)

// Continues reports whether batches 0 to k equal those of the sequence with the given identity. The
// schedules may differ in rows after batch k, and one may have more sources.
func (d *Dataset) Continues(identity string, k uint64) bool {
	// Rows are numbered within the share of a host.
	rows := uint64(d.Sequence.BatchSize * d.Sequence.World / d.Sequence.Hosts())
	return continues(identity, d.Identity(), rowsThrough(k*rows+rows-1))
}

// continues reports whether the sequences with two identities have the same batches up to a row of
// their schedules; see sampler.Sequence.ScheduleRow.
func continues(then, now string, end uint64) bool {
	a, b := strings.Fields(then), strings.Fields(now)
	if len(a) != 3 || len(b) != 3 || a[0] != b[0] {
		return slices.Equal(a, b)
	}
	return sameSources(a[1], b[1]) && sameSchedule(a[2], b[2], end)
}

// sameSources reports whether two lists of hashes, separated by commas, agree on the sources that
// both have.
func sameSources(then, now string) bool {
	a, b := strings.Split(then, ","), strings.Split(now, ",")
	known := min(len(a), len(b))
	return slices.Equal(a[:known], b[:known])
}

// sameSchedule reports whether two descriptions of schedules agree on the rows before end.
func sameSchedule(then, now string, end uint64) bool {
	if then == now {
		return true
	}
	a, err := sampler.ParseSchedule(then)
	b, otherErr := sampler.ParseSchedule(now)
	if cmp.Or(err, otherErr) != nil {
		return false // one of the splits has no schedule
	}
	row, diverges := a.DivergesAt(b)
	return !diverges || row >= end
}

// A State is the state of a run, as Python's state_dict returns it: the position, and rowSettings.
// Values are strings and json.Numbers. A description of a reader's sequence also has its identity,
// rank and dtype.
type State map[string]any

// A Resumption says where a split continues with the rows that follow a state.
type Resumption struct {
	Malformed   string   `json:"malformed"`   // what is wrong with the saved state, or empty
	Differences []string `json:"differences"` // settings that must not differ, with both values
	Step        uint64   `json:"step"`        // number of the batch with the next row
	Rest        uint64   `json:"rest"`        // rows of that batch that precede the next row
}

// Resume compares the saved state of a run with the state of a split, at any step. If both have an
// identity, the batches before the saved state must be the same, too.
func Resume(then, now State) Resumption {
	then, now = then.complete(), now.complete()
	malformed := cmp.Or(then.malformed(now), now.malformed(now))
	r := Resumption{Malformed: malformed, Differences: []string{}} // [] in JSON, not null
	if r.Malformed == "" {
		r.Step, r.Rest = then.number("row")/now.rowsPerStep(), then.number("row")%now.rowsPerStep()
		r.Differences = append(r.Differences, then.differences(now)...)
	}
	return r
}

// addedSettings has the settings that are newer than the first saved states, with the values that
// have no effect. A state has these keys only with other values.
var addedSettings = State{"too_long": string(sampler.Cut)}

// complete returns s with all settings.
func (s State) complete() State {
	all := maps.Clone(addedSettings)
	maps.Copy(all, s)
	if rows, tooLong, ok := strings.Cut(all.text("rows"), "+"); ok { // see state_at in _state.py
		all["rows"], all["too_long"] = rows, tooLong
	}
	return all
}

// number returns the value of a key whose values are numbers from 0 on.
func (s State) number(key string) uint64 {
	number, _ := s[key].(json.Number)
	n, _ := strconv.ParseUint(number.String(), 10, 64)
	return n
}

func (s State) text(key string) string {
	text, _ := s[key].(string)
	return text
}

// rowsPerStep returns the number of rows of a batch, over all ranks.
func (s State) rowsPerStep() uint64 { return s.number("batch_size") * s.number("world") }

// positionLimits has the smallest and the largest value of each number that says where a run is.
var positionLimits = map[string][2]uint64{
	"step": {0, sampler.MaxBatches}, "row": {0, math.MaxUint64},
	"batch_size": {1, sampler.MaxRows}, "world": {1, sampler.MaxRows}, "local_world": {1, sampler.MaxRows},
}

// malformed returns what is wrong with a saved state, or an empty string. Its keys and the types of
// their values must be those of now.
func (s State) malformed(now State) string {
	if version, ok := s["version"].(json.Number); ok && version != now["version"] {
		return fmt.Sprintf("the state has version %s, and this batchfs reads version %s: use the one that saved it", version, now["version"])
	}
	fix := ": load what state_dict() returned, as it was"
	if _, ok := s["identity"]; ok { // s is from info.json, not a state that someone loads
		fix = ""
	}
	required := maps.Clone(now)
	for key := range positionLimits {
		required[key] = nil
	}
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(s)), func(key string) bool { _, ok := required[key]; return ok })
	if _, ok := s["row"]; !ok && len(others) > 0 { // s may be a whole checkpoint
		return fmt.Sprintf("the state is not one of a split, but has the keys %q", others[:min(len(others), 5)]) + fix
	}
	if lacks := s.missing(required); lacks != "" {
		return "the state lacks " + lacks + fix
	}
	if unknown := now.missing(s); unknown != "" {
		return "the state has an unknown key, " + unknown + fix
	}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		rule := "an integer"
		limit, limited := positionLimits[key]
		if _, ok := now[key].(string); ok && !limited {
			if _, ok := s[key].(string); ok {
				continue
			}
			rule = "a string"
		} else if number, _ := s[key].(json.Number); wholeNumber.MatchString(number.String()) {
			n, err := strconv.ParseUint(number.String(), 10, 64)
			if !limited || err == nil && n >= limit[0] && n <= limit[1] {
				continue
			}
			rule = fmt.Sprintf("from %d to %d", limit[0], limit[1])
		}
		value, _ := json.Marshal(s[key])
		return fmt.Sprintf("%s in the state must be %s (got %s)", key, rule, value)
	}
	if rows := s.rowsPerStep(); rows > sampler.MaxRows {
		return fmt.Sprintf("batch_size times world in the state must be at most %d (got %d)", sampler.MaxRows, rows)
	} else if row, step := s.number("row"), s.number("step"); row/rows != step || row%rows > 0 {
		return fmt.Sprintf("row in the state must be step times batch_size times world, %d (got %d)", step*rows, row)
	}
	return ""
}

var wholeNumber = regexp.MustCompile(`^-?[0-9]+$`)

// missing lists the keys of t that s lacks.
func (s State) missing(t State) string {
	var keys []string
	for key := range t {
		if _, ok := s[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

// isScheduled reports whether the split of s has stages or max_epochs.
func (s State) isScheduled() bool { return strings.Contains(s.text("weights"), "=") }

// differences lists the settings that differ, although the rows that follow s depend on them.
func (s State) differences(now State) (list []string) {
	end := s.number("row")
	if now.number("shuffle_block") > 0 { // the schedule numbers the rows of one host
		end /= now.number("world") / now.number("local_world")
	}
	_, sameBatches := now["identity"]
	if sameBatches && continues(s.text("identity"), now.text("identity"), end) {
		return nil
	}
	isScheduled, newTokens := now.isScheduled(), false
	if isScheduled && !s.isScheduled() {
		return []string{"the split had neither stages nor max_epochs, and now has them"}
	} else if s.isScheduled() && !isScheduled {
		return []string{"the split had stages or max_epochs, and now has neither"}
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		may := false
		switch key {
		case "step", "row", "identity":
			may = true
		case "batch_size", "world", "local_world":
			// The torch orders draw all rows of a rank's batch together, so other batches have
			// other rows.
			may = !sameBatches && !isTorch(sampler.Order(now.text("order")))
		case "weights":
			may = isScheduled && sameSchedule(s.text(key), now.text(key), end)
		case "fingerprint", "formats":
			may = isScheduled && sameSources(s.text(key), now.text(key))
		}
		switch {
		case may || s[key] == now[key]:
		case key == "formats" && newTokens: // the formats contain their sizes
		case key == "formats":
			list = append(list, "the token files are read differently (format, tensor, token_dtype, shape, or which files each source has)")
		default:
			list = append(list, fmt.Sprintf("%s was %s and is %s", key, quoted(s[key]), quoted(now[key])))
			newTokens = newTokens || key == "fingerprint"
		}
	}
	if s.indexDecides(now) {
		list = append(list, "the indexes of documents next to the token files, which the fingerprint now covers, decide where documents end instead of eot")
	}
	if now.number("shuffle_block") > 0 && s.number("world")*now.number("local_world") != now.number("world")*s.number("local_world") {
		list = append(list, fmt.Sprintf("the number of hosts, world/local_world, was %s/%s and is %s/%s", s["world"], s["local_world"],
			now["world"], now["local_world"]))
	}
	if sameBatches && list == nil {
		list = append(list, "identity was "+quoted(s["identity"])+" and is "+quoted(now["identity"]))
	}
	return list
}

// indexDecides reports whether documents ended after eot in s, and now end where an index says.
func (s State) indexDecides(now State) bool {
	same := s["rows"] == now["rows"] && s["documents"] == now["documents"] && s["mask_targets"] == now["mask_targets"]
	isNew := now.text("fingerprint") == "" || now.text("fingerprint") != s.text("fingerprint")
	return same && isNew && now["eot"] == json.Number("-1") && s["eot"] != now["eot"]
}

func quoted(value any) string {
	if text, ok := value.(string); ok {
		return "'" + text + "'"
	}
	return fmt.Sprint(value)
}
