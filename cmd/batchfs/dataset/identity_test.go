package dataset

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/sampler"
)

func writeIdentityFiles(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 820, "b.bin": 820, "big.bin": 40_000, "c.bin": 90})
	var ends []byte
	for i := range uint64(40) {
		ends = binary.LittleEndian.AppendUint64(ends, (i+1)*(i+2)/2)
	}
	a := string(testfiles.Bytes(t, "a.bin", 0, 4*820))
	testfiles.Write(t, map[string]string{"a.bin.index": string(ends), "b.bin.index": string(ends), "rng.bin": testfiles.TorchState(0),
		"other.bin": testfiles.TorchState(40, 1), "a.mask": a[:820], "b.mask": a[820:1640], "two.safetensors": twoTensors(a)})
}

func twoTensors(data string) string {
	header := `{"p":{"dtype":"I32","shape":[400],"data_offsets":[0,1600]},"q":{"dtype":"I32","shape":[400],"data_offsets":[1600,3200]}}`
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + data[:3200]
}

const (
	maskArray = "arrays = [{name = 'mask', files = 'a.mask', dtype = 'uint8'}]"
	shuffle   = "order = 'shuffle'"
	torch     = "order = 'torch'"
	tensor    = "tokens = 'two.safetensors'\ntoken_dtype = 'int32'\ntensor = 'p'"
	sources   = "sources = [{tokens = 'a.bin', weight = 1}, {tokens = 'b.bin', weight = 3}]"
	staged    = "sources = [{name = 'a', tokens = 'a.bin'}, {name = 'b', tokens = 'b.bin'}]\n" +
		"stages = [{weights = {a = 1, b = 3}}, {from_row = 40, weights = {b = 2}}]"
	host = "tokens = 'big.bin'\nshuffle_block = '64KiB'\nworld = 2\n" + shuffle
)

// identityCases cover each key of a split. lines configure the split, and change replaces or adds a
// line.
var identityCases = []struct{ key, lines, change string }{
	{"split", "", "split = 'other'"},
	{"split", "order = 'sequential'", "split = 'other'"},
	{"batch_size", "", "batch_size = 4"},
	{"block_size", "", "block_size = 5"},
	{"block_size", "layout = 'rows'", "block_size = 5"},
	{"format", "", "format = 'headerless'"},
	{"format", tensor, "format = 'safetensors'"},
	{"tensor", tensor, "tensor = 'q'"},
	{"token_dtype", "dtype = 'int64'", "token_dtype = 'uint16'"},
	{"shape", "layout = 'rows'\nshape = [2]", "shape = [4]"},
	{"vocab_size", "", "vocab_size = 100000"},
	{"dtype", "", "dtype = 'int64'"},
	{"dtype", "", "dtype = 'uint32'"},
	{"layout", "", "layout = 'tokens'"},
	{"layout", "", "layout = 'rows'"},
	{"order", "", shuffle},
	{"order", "", torch},
	{"seed", "", "seed = 9"},
	{"seed", shuffle, "seed = 9"},
	{"seed", "order = 'sequential'", "seed = 9"},
	{"seed", torch, "seed = 9"},
	{"seed", torch, "seed = 4294968633"}, // only 32 bits count
	{"seed", torch + "\ntorch_state = 'rng.bin'", "seed = 9"},
	{"torch_state", torch, "torch_state = 'rng.bin'"},
	{"torch_state", torch + "\ntorch_state = 'rng.bin'", "torch_state = 'other.bin'"},
	{"torch_state", "", "torch_state = 'rng.bin'"},
	{"rank", "world = 4", "rank = 1"},
	{"rank", torch + "\nworld = 4", "rank = 1"},
	{"world", "", "world = 4"},
	{"world", torch, "world = 4"},
	{"shuffle_block", shuffle, "shuffle_block = '64KiB'"},
	{"shuffle_block", shuffle + "\nshuffle_block = '64KiB'", "shuffle_block = 65536"},
	{"local_world", host, "local_world = 2"},
	{"documents", "eot = 7", "documents = true"},
	{"documents", "documents = true", "documents = 'files'"},
	{"document_numbers", "", "document_numbers = false"},
	{"document_numbers", "documents = true", "document_numbers = true"},
	{"document_numbers", "rows = 'packed'", "document_numbers = true"},
	{"eot", "", "eot = 7"},
	{"eot", "order = 'sequential'\ndocuments = true\neot = 8", "eot = 7"}, // the index decides
	{"eot", "tokens = 'c.bin'\norder = 'sequential'\ndocuments = true\neot = 41650", "eot = 41651"},
	{"eot", sources + "\norder = 'sequential'\ndocuments = true\neot = 8", "eot = 7"},
	{"eot", strings.Replace(sources, "b.bin", "c.bin", 1) + "\norder = 'sequential'\ndocuments = true\neot = 41650", "eot = 41651"},
	{"eot", "rows = 'packed'\neot = 8", "eot = 7"},
	{"eot", "rows = 'packed'\ndocuments = 'files'\nbos = 0\neot = 8", "eot = 7"},
	{"bos", "rows = 'document'\ndocuments = 'files'", "bos = 0"},
	{"mask_targets", "order = 'sequential'\ndtype = 'int64'\neot = 7", "mask_targets = true"},
	{"mask_targets", "tokens = 'c.bin'\norder = 'sequential'\ndtype = 'int64'\neot = 41650", "mask_targets = true"},
	{"mask_targets", maskArray + "\ndtype = 'int64'", "mask_targets = 'mask'"},
	{"mask_targets", maskArray + "\ntokens = 'a.mask'\ntoken_dtype = 'uint8'\ndtype = 'int64'", "mask_targets = 'mask'"},
	{"mask_targets", maskArray + "\ndtype = 'int64'\neot = 7\nmask_targets = true", "mask_targets = 'mask'"},
	{"ignore_index", "order = 'sequential'\ndtype = 'int64'\neot = 7\nmask_targets = true", "ignore_index = -1"},
	{"ignore_index", "dtype = 'int64'\neot = 7\nmask_targets = true", "ignore_index = -100"},
	{"ignore_index", "documents = true\neot = 7", "ignore_index = -1"},
	{"rows", "", "rows = 'document'"},
	{"rows", "rows = 'document'", "rows = 'packed'"},
	{"too_long", "", "too_long = 'cut'"},
	{"too_long", "rows = 'packed'", "too_long = 'cut'"},
	{"too_long", "rows = 'packed'", "too_long = 'drop'"},
	{"too_long", "rows = 'packed'\ntoo_long = 'drop'", "too_long = 'truncate'"},
	{"too_long", "rows = 'document'", "too_long = 'truncate'"},
	{"too_long", "rows = 'document-first'", "too_long = 'truncate'"},
	{"too_long", "rows = 'document-first'", "too_long = 'drop'"},
	{"too_long", sources + "\nrows = 'packed'", "too_long = 'drop'"},
	{"too_long", staged + "\nrows = 'packed'", "too_long = 'drop'"},
	{"start", "", "start = 3"},
	{"steps", "", "steps = 3"},
	{"tokens", "", "tokens = 'b.bin'"},
	{"tokens", "", "tokens = ['a.bin', 'b.bin']"},
	{"tokens", "tokens = ['a.bin', 'b.bin']", "tokens = '[ab].bin'"},
	{"join", "", "join = true"},
	{"join", "tokens = ['a.bin', 'b.bin']", "join = true"},
	{"expect_fingerprint", "", "expect_fingerprint = 'FINGERPRINT'"},
	{"sources.tokens", sources, strings.NewReplacer("a.bin", "b.bin", "b.bin", "a.bin").Replace(sources)},
	{"sources.tokens", "sources = [{tokens = ['a.bin', 'b.bin'], weight = 1}, {tokens = 'c.bin', weight = 1}]",
		"sources = [{tokens = 'a.bin', weight = 1}, {tokens = ['b.bin', 'c.bin'], weight = 1}]"},
	{"sources.weight", sources, strings.Replace(sources, "= 1", "= 2", 1)},
	{"sources.weight", sources, strings.NewReplacer("= 1", "= 2", "= 3", "= 6").Replace(sources)},
	{"sources.weight", sources, strings.Replace(sources, "= 1", "= 0", 1)},
	{"sources.name", sources, strings.Replace(sources, "= 1", "= 1, name = 'a'", 1)},
	{"source", sources, "source = '1'"},
	{"sources.vocab_size", sources, strings.Replace(sources, "= 1", "= 1, vocab_size = 100000", 1)},
	{"sources.max_epochs", sources, strings.Replace(sources, "= 3", "= 3, max_epochs = 0.5", 1)},
	{"stages.weights", staged, strings.Replace(staged, "b = 3}", "b = 1}", 1)},
	{"stages.weights", staged, strings.Replace(staged, "{b = 2}", "{b = 4}", 1)},
	{"stages.weights", staged, strings.Replace(staged, "{b = 2}", "{a = 2}", 1)},
	{"stages.from_row", staged, strings.Replace(staged, "from_row = 40", "from_row = 36", 1)},
	{"stages.from_tokens", staged, strings.Replace(staged, "from_row = 40", "from_tokens = 157", 1)},
	{"arrays.name", "", maskArray},
	{"arrays.name", maskArray, strings.Replace(maskArray, "'mask'", "'other'", 1)},
	{"arrays.files", maskArray, strings.Replace(maskArray, "a.mask", "b.mask", 1)},
	{"arrays.at", maskArray, strings.Replace(maskArray, "}", ", at = 'x'}", 1)},
	{"arrays.at", maskArray + "\nlayout = 'rows'", strings.Replace(maskArray, "}", ", at = 'x'}", 1)},
	{"arrays.format", maskArray, strings.Replace(maskArray, "}", ", format = 'headerless'}", 1)},
	{"arrays.dtype", maskArray, strings.Replace(maskArray, "uint8", "int8", 1)},
	{"arrays.shape", "arrays = [{name = 'p', files = 'big.bin', dtype = 'uint8', shape = [4]}]\ntokens = 'big.bin'",
		"arrays = [{name = 'p', files = 'big.bin', dtype = 'uint8', shape = [2, 2]}]"},
	{"arrays.tensor", tensor + "\narrays = [{name = 'p', files = 'two.safetensors', tensor = 'p'}]",
		"arrays = [{name = 'p', files = 'two.safetensors', tensor = 'q'}]"},
}

// openSplitWith opens a split with these lines. A line replaces an earlier one with the same key.
func openSplitWith(t *testing.T, lines string) *Dataset {
	t.Helper()
	const initial = "split = 'train'\ntokens = 'a.bin'\ntoken_dtype = 'uint32'\nbatch_size = 3\nblock_size = 4\n"
	all := map[string]string{}
	for line := range strings.Lines(initial + lines) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " = "); ok {
			all[key] = value
		}
	}
	split := "[splits." + all["split"] + "]\n"
	delete(all, "split")
	if all["sources"] != "" {
		delete(all, "tokens")
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		split += key + " = " + all[key] + "\n"
	}
	return mustOpen(t, split)[0]
}

// sequenceOf returns the arrays and the first 60 batches of a sequence.
func sequenceOf(t *testing.T, d *Dataset) string {
	t.Helper()
	b := d.Sequence.Batch()
	text := fmt.Sprint(b.Arrays)
	for k := range uint64(60) {
		text += string(readBatch(t, d.Sequence.Read, b.Bytes(), k))
	}
	return text
}

// Two sequences have the same identity exactly if their batches have the same bytes, whichever key
// differs and however it is written. The settings in a saved state differ exactly if the rows of a
// run do.
func TestIdentity(t *testing.T) {
	covered := map[string]bool{"on_change": true} // tested in TestIdentityOfFollowed
	keys := keysOfSplits(t)
	writeIdentityFiles(t)
	fingerprint := openSplitWith(t, "").fingerprint
	for _, c := range identityCases {
		a, b := openSplitWith(t, c.lines), openSplitWith(t, c.lines+"\n"+strings.Replace(c.change, "FINGERPRINT", fingerprint, 1))
		if got, want := a.Identity() == b.Identity(), sequenceOf(t, a) == sequenceOf(t, b); got != want {
			t.Errorf("%q and then %q: the identity is the same: %v, and the bytes are: %v", c.lines, c.change, got, want)
		}
		inOneRun := a.Identity() == b.Identity() || slices.Contains([]string{"batch_size", "dtype", "rank", "world", "document_numbers"}, c.key)
		if then, now := a.rowSettings(), b.rowSettings(); maps.Equal(then, now) != inOneRun {
			t.Errorf("%q and then %q: the state may continue: %v; it held %v, and now %v", c.lines, c.change, inOneRun, then, now)
		}
		covered[c.key] = true
	}
	for _, key := range keys {
		if !covered[key] {
			t.Errorf("no case changes %s: does it decide what is in a batch?", key)
		}
	}
}

// A reader of a scheduled split may continue if another source is appended or a later stage
// changes, exactly as long as its batches stay the same. Any other change ends its sequence. The
// same goes for a saved state.
func TestContinues(t *testing.T) {
	writeIdentityFiles(t)
	appended := strings.Replace(staged, "'b.bin'}]", "'b.bin'}, {name = 'c', tokens = 'c.bin'}]", 1)
	grown := strings.Replace(appended, "{b = 2}}]", "{b = 2}}, {from_row = 60, weights = {c = 1}}]", 1)
	then := openSplitWith(t, staged)
	for _, c := range []struct {
		name, now string
		isOther   bool // whether something else than the schedule has changed
	}{
		{"the same", staged, false},
		{"an appended source", appended, false},
		{"an appended stage", grown, false},
		{"the same rows", strings.Replace(staged, "{from_row = 40", "{from_row = 20, weights = {a = 2, b = 6}}, {from_row = 40", 1), false},
		{"another boundary", strings.Replace(staged, "40", "44", 1), false},
		{"a cap", strings.Replace(staged, "'a.bin'", "'a.bin', max_epochs = 0.03", 1), false},
		{"another first stage", strings.Replace(staged, "a = 1", "a = 2", 1), false},
		{"another source", strings.Replace(staged, "b.bin", "c.bin", 1), true},
		{"another order", staged + "\n" + shuffle, true},
		{"too_long without effect", staged + "\ntoo_long = 'cut'", false},
		{"no stages", sources, true},
	} {
		now := openSplitWith(t, c.now)
		size := then.Sequence.Batch().Bytes()
		same := !c.isOther
		for k := range uint64(60) {
			same = same && bytes.Equal(readBatch(t, then.Sequence.Read, size, k), readBatch(t, now.Sequence.Read, size, k))
			if got := now.Continues(then.Identity(), k); got != same {
				t.Errorf("%s: Continues(%d) is %v, want %v; identities %s and %s", c.name, k, got, same, then.Identity(), now.Identity())
			}
			if r := Resume(stateAt(t, then, k+1), stateAt(t, now, 0)); r.Malformed != "" || (len(r.Differences) == 0) != same || r.Step != k+1 || r.Rest != 0 {
				t.Errorf("%s: a state after batch %d resumes as %+v, want %v", c.name, k, r, same)
			}
			if r := Resume(withIdentity(stateAt(t, then, k+1), then), withIdentity(stateAt(t, now, 0), now)); (len(r.Differences) == 0) != same {
				t.Errorf("%s: a reader after batch %d sees the differences %q, want %v", c.name, k, r.Differences, same)
			}
		}
	}
}

// Schedules that differ are told apart up to the last batch, after which row numbers end.
func TestContinuesAtTheLastBatch(t *testing.T) {
	writeIdentityFiles(t)
	large := fmt.Sprintf("\nbatch_size = %d", sampler.MaxRows)
	then, now := openSplitWith(t, staged+large), openSplitWith(t, strings.Replace(staged, "40", "44", 1)+large)
	if now.Continues(then.Identity(), sampler.MaxBatches-1) || !now.Continues(now.Identity(), sampler.MaxBatches-1) {
		t.Error("the last batch continues a sequence with another schedule, or not its own")
	}
}

// A run continues with the state that an earlier version saved, and saves the same one. If this
// fails, mend the code instead of the states. A new key must be in addedSettings.
func TestResumeFromAnEarlierVersion(t *testing.T) {
	writeIdentityFiles(t)
	for lines, saved := range map[string]string{
		shuffle + "\nrank = 1\nworld = 2": `{"arrays":"","batch_size":3,"block_size":4,"bos":-1,"documents":"false","eot":-1,` +
			`"fingerprint":"30574f3e7d599a1195fbb5d95cdaeb7e","formats":"afbb2fbf088f9db57375832f37360a68","ignore_index":0,"join":"false","layout":"xy",` +
			`"local_world":1,"mask_targets":"false","order":"shuffle","row":30,"rows":"windows","seed":1337,"shuffle_block":0,"split":"train","step":5,` +
			`"torch_state":"","version":2,"weights":"","world":2}`,
		staged: `{"arrays":"","batch_size":3,"block_size":4,"bos":-1,"documents":"false","eot":-1,` +
			`"fingerprint":"30574f3e7d599a1195fbb5d95cdaeb7e,12fbc91ea748a154ad34039fbe709fb2",` +
			`"formats":"5d0ee474d7ac902d5cd611eb7b400d61,5d0ee474d7ac902d5cd611eb7b400d61","ignore_index":0,"join":"","layout":"xy",` +
			`"local_world":1,"mask_targets":"false","order":"random","row":15,"rows":"windows","seed":1337,"shuffle_block":0,"split":"train/","step":5,` +
			`"torch_state":"","version":2,"weights":"0=1:3,40=0:1","world":1}`,
	} {
		d := openSplitWith(t, lines)
		if r := Resume(parseState(t, []byte(saved)), stateAt(t, d, 0)); r.Malformed != "" || len(r.Differences) > 0 || r.Step != 5 || r.Rest != 0 {
			t.Errorf("%s: the state of an earlier version resumes as %+v", lines, r)
		}
		if now, err := json.Marshal(stateAt(t, d, 5)); err != nil || string(now) != saved {
			t.Errorf("%s: the state is\n%s, and was in an earlier version\n%s", lines, now, saved)
		}
	}
}

// A state whose numbers cannot be those of a run is rejected, whichever of the two states has them.
func TestResumeRejects(t *testing.T) {
	writeIdentityFiles(t)
	d := openSplitWith(t, "")
	for _, key := range []string{"batch_size", "world", "local_world", "row", "step"} {
		for _, value := range []any{nil, "3", json.Number("0"), json.Number("-1"), json.Number("1.5")} {
			for changed := range 3 { // then, now or both
				then, now := stateAt(t, d, 5), stateAt(t, d, 0)
				for i, s := range []State{then, now} {
					if changed == 2 || changed == i {
						s[key] = value
						if value == nil {
							delete(s, key)
						}
					}
				}
				isStart := value == json.Number("0") && (key == "row" || key == "step") && changed == 1
				if r := Resume(then, now); !strings.Contains(r.Malformed, key) && !isStart {
					t.Errorf("%s is %v in %v and %v: %+v", key, value, then, now, r)
				}
			}
		}
	}
}

// stateAt returns the state that Python saves before a batch.
func stateAt(t *testing.T, d *Dataset, step uint64) State {
	t.Helper()
	q := d.Sequence
	all := d.rowSettings()
	maps.Copy(all, map[string]any{"version": 2, "step": step, "row": step * uint64(q.BatchSize*q.World), "batch_size": q.BatchSize, "world": q.World})
	text, err := json.Marshal(all)
	must(t, err)
	return parseState(t, text)
}

func parseState(t *testing.T, text []byte) (s State) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	must(t, decoder.Decode(&s))
	return s
}

// withIdentity adds to a state what a reader of the sequence depends on.
func withIdentity(s State, d *Dataset) State {
	s["identity"], s["rank"], s["dtype"] = d.Identity(), json.Number(fmt.Sprint(d.Sequence.Rank)), string(d.Sequence.DType)
	return s
}

// keysOfSplits returns the keys that config.toml documents for splits. The keys of sources and
// arrays have a prefix, as in sources.weight.
func keysOfSplits(t *testing.T) (keys []string) {
	t.Helper()
	text, err := os.ReadFile("../../../config.toml")
	must(t, err)
	_, text, _ = bytes.Cut(text, []byte("\n[batch]\n"))
	text, _, _ = bytes.Cut(text, []byte("\n[memory]\n"))
	table := ""
	for _, m := range regexp.MustCompile(`(?m)^(?:# )?(?:\[\[splits\.X\.(\w+)\]\]|(\w+) = .*)$`).FindAllStringSubmatch(string(text), -1) {
		if m[1] != "" {
			table = m[1] + "."
			continue
		}
		keys = append(keys, table+m[2])
	}
	if len(keys) < 30 {
		t.Fatalf("config.toml has only the keys %q", keys)
	}
	return keys
}

func TestIdentityOfFollowed(t *testing.T) {
	const follow = "on_change = 'follow'\n"
	identities := func(lines string) (list []string) {
		writeIdentityFiles(t)
		for range 2 {
			d := openSplitWith(t, lines)
			list = append(list, d.Identity()+fmt.Sprint(d.rowSettings()))
			testfiles.Positions(t, map[string]int{"0.bin": 5, "a.bin": 900})
		}
		return list
	}
	fixed, followed := identities(""), identities(follow)
	if fixed[0] == fixed[1] || followed[0] != followed[1] {
		t.Errorf("of other tokens: fixed %q, followed %q", fixed, followed)
	}
	for _, line := range []string{"seed = 9", "join = true", "token_dtype = 'int32'\ndtype = 'uint32'"} {
		if got := identities(follow + line); got[0] == followed[0] {
			t.Errorf("%s does not change the identity of tokens that are followed", line)
		}
	}
}

// The identity is the same in every version and process: a restart may change the version of
// batchfs that serves a mount, and cat runs in its own process.
func TestIdentityIsTheSameElsewhere(t *testing.T) {
	writeIdentityFiles(t)
	for lines, want := range map[string]string{
		sources + "\n" + shuffle:                              "b0f5b5b4706b4b75072a99b2525f4e94",
		maskArray + "\ndocuments = true\nrank = 1\nworld = 2": "a310d71b2e2b7e404ca46057a0643959",
		torch + "\ntorch_state = 'rng.bin'":                   "0907fdeb8270826560e001bab424350c",
	} {
		d := openSplitWith(t, lines)
		if got := d.Identity(); got != want {
			t.Errorf("%q has the identity %s, want %s", lines, got, want)
		}
		var info struct{ Identity string }
		must(t, json.Unmarshal(d.Info(), &info))
		if again := mountedSequencesOf(t, takeSnapshot(t), nil)[0].batches().Identity(); again != info.Identity || again != want {
			t.Errorf("%q: a worker says %s, info.json %s, want %s", lines, again, info.Identity, want)
		}
	}
}

var update = flag.Bool("update", false, "write testdata/settings.txt")

// The identity, the saved state, the name, the settings in info.json and the schedule of a sequence
// stay the same in every version, because runs and mounts outlive the program that began them. The
// file has a hash of each of them, under several paths of each configuration.
func TestSettingsStay(t *testing.T) {
	const file, regenerate = "testdata/settings.txt", "go test ./cmd/batchfs/dataset -run SettingsStay -update"
	golden, err := filepath.Abs(file)
	must(t, err)
	writeIdentityFiles(t)
	configurations := map[string]bool{}
	for _, c := range identityCases {
		for _, lines := range []string{c.lines, c.lines + "\n" + c.change} {
			if !strings.Contains(lines, "FINGERPRINT") {
				configurations[strings.Trim(lines, "\n")] = true
			}
		}
	}
	paths := []string{"rank=1,world=2", "layout=rows", "order=sequential", "order=torch", "order=shuffle,shuffle_block=64KiB,world=2", "source=1", "block_size=7,dtype=int64"}
	var b strings.Builder
	for _, lines := range slices.Sorted(maps.Keys(configurations)) {
		for _, d := range []*Dataset{openSplitWith(t, lines), openSplitWith(t, lines+"\non_change = 'follow'")} {
			var all [5][]string
			add := func(q *Dataset) {
				state, err := json.Marshal(q.rowSettings())
				must(t, err)
				settings, err := json.Marshal(q.settings())
				must(t, err)
				for i, text := range []string{q.Identity(), string(state), q.sequencePath(), string(settings), q.ScheduleSettings()} {
					all[i] = append(all[i], text)
				}
			}
			add(d)
			for _, path := range paths {
				if q, err := d.With(path); err == nil {
					add(q)
				}
			}
			for _, texts := range all {
				fmt.Fprint(&b, digest(texts)[:8], " ")
			}
			fmt.Fprintf(&b, "%s %q\n", d.Split.OnChange, lines)
		}
	}
	testfiles.CheckGenerated(t, golden, b.String(), regenerate, *update)
}
