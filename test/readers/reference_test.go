package readers

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// The reference is itself held to published numbers, to what PyTorch drew and to the golden file.
func TestReference(t *testing.T) {
	e2e.Long(t)
	if got := e2e.Run(t, e2e.Python, "clients/reference.py", "--selftest"); got != "ok\n" {
		t.Error(got)
	}
}

// Batches of a mount, near and far, in every order and of mixtures, are those of a reference that shares no code with
// the program. So are the places that their rows come from, and the fingerprint of the files.
func TestMountAgreesWithReference(t *testing.T) {
	dir, begins := t.TempDir(), map[string]int{} // of each file, among all of its split
	files := func(split string, width int, lens ...int) (paths []string) {
		begin := 0
		for i, n := range lens {
			paths = append(paths, e2e.Tokens(t, filepath.Join(dir, fmt.Sprintf("%s%d.bin", split, i)), n, width))
			begins[paths[i]], begin = begin, begin+n
		}
		return paths
	}
	state, err := filepath.Abs("../sampler/testdata/torch_rng_state.bin")
	e2e.NoError(t, err)
	type settings = map[string]any
	mixed := files("mixed", 2, 40_000, 65, 1000, 300)
	splits := map[string]settings{
		"one":     {"files": files("one", 2, 200_000)},
		"wide":    {"files": files("wide", 4, 30_000, 65, 900), "token_dtype": "uint32", "dtype": "int64"},
		"joined":  {"files": files("joined", 2, slices.Repeat([]int{5000}, 40)...), "join": true},
		"resumed": {"files": files("resumed", 2, 20_000), "order": "torch", "torch_state": state},
		"mixed": {"sources": []settings{
			{"files": mixed[:2], "weight": 0.7}, {"files": mixed[2:3], "weight": 0.2}, {"files": mixed[3:], "weight": 0.1},
		}},
	}

	config := "batch.block_size = 64\n"
	table := func(head string, s settings) {
		config += head + "\n"
		for key, value := range s {
			if key == "files" {
				key = "tokens"
			}
			if key != "sources" {
				config += fmt.Sprintf("%s = %s\n", key, e2e.JSONOf(t, value)) // of these values, JSON is TOML
			}
		}
	}
	for split, s := range splits {
		table(fmt.Sprintf("[splits.%s]", split), s)
		sources, _ := s["sources"].([]settings)
		for _, source := range sources {
			table(fmt.Sprintf("[[splits.%s.sources]]", split), source)
		}
	}
	configFile := filepath.Join(dir, "config.toml")
	e2e.Write(t, configFile, []byte(config))
	m := e2e.Mount(t, "-c", configFile)

	for _, path := range []string{
		"one", "one/order=shuffle", "one/order=shuffle,seed=3,batch_size=5,rank=1,world=2", "one/order=torch",
		"one/order=torch-2.6,rank=2,world=3", "wide", "wide/order=shuffle,block_size=60,layout=tokens",
		"joined/order=torch", "joined/order=sequential,rank=1,world=2", "mixed", "mixed/order=shuffle",
		"mixed/order=shuffle,batch_size=3,rank=1,world=2", "mixed/order=sequential", "resumed",
		"one/order=shuffle,shuffle_block=65536", "one/order=shuffle,shuffle_block=65537,rank=3,world=6,local_world=2",
		"joined/order=shuffle,shuffle_block=65536,rank=2,world=4", "mixed/order=shuffle,shuffle_block=131072,rank=1,world=3,local_world=3",
		"wide/order=shuffle,block_size=60,layout=tokens,rank=1,world=2,shuffle_block=70000",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			split, keys, _ := strings.Cut(path, "/")
			s := settings{"split": split, "block_size": 64}
			maps.Copy(s, splits[split])
			for _, setting := range strings.FieldsFunc(keys, func(r rune) bool { return r == ',' }) {
				key, value, _ := strings.Cut(setting, "=")
				s[key] = value
				if n, err := strconv.Atoi(value); err == nil {
					s[key] = n
				}
			}
			file := filepath.Join(t.TempDir(), "settings.json")
			e2e.Write(t, file, e2e.JSONOf(t, s))
			reference := func(args ...string) []string {
				return strings.Fields(e2e.Run(t, append([]string{e2e.Python, "clients/reference.py", file}, args...)...))
			}
			if got, want := fingerprint(t, m.Path(path)), reference("--fingerprint")[0]; got != want {
				t.Errorf("fingerprint %s, the reference has %s", got, want)
			}

			// The first are those that next gives too.
			numbers := []string{"0", "1", "2", "17", "1000000", "1099511627775"}
			batches := slices.Collect(slices.Chunk(reference(numbers...), 3))
			sums, origins := []string{"sha256sum"}, []string{"cat"}
			for _, k := range numbers {
				sums, origins = append(sums, m.Path(path+"/batch/"+k)), append(origins, m.Path(path+"/batch/"+k+".json"))
			}
			sums = append(sums, slices.Repeat([]string{m.Path(path + "/next")}, 3)...)
			got := strings.Fields(e2e.Run(t, sums...))
			for i, name := range sums[1:] {
				if want := batches[i%len(numbers)][1]; got[2*i] != want {
					t.Errorf("%s is %s, the reference has %s", name, got[2*i], want)
				}
			}
			decoder := json.NewDecoder(strings.NewReader(e2e.Run(t, origins...)))
			for i, k := range numbers {
				var batch struct {
					Rows []struct {
						File  string
						Start int
					}
				}
				e2e.NoError(t, decoder.Decode(&batch))
				var starts []string
				for _, row := range batch.Rows {
					starts = append(starts, fmt.Sprint(begins[row.File]+row.Start))
				}
				if got := strings.Join(starts, ","); got != batches[i][2] {
					t.Errorf("the rows of batch %s start at %s, the reference has %s", k, got, batches[i][2])
				}
			}
		})
	}
}

// fingerprint is what the info.json of a split says.
func fingerprint(t testing.TB, split string) string {
	t.Helper()
	var info struct{ Fingerprint string }
	e2e.NoError(t, json.Unmarshal([]byte(e2e.Run(t, "cat", filepath.Join(split, "info.json"))), &info))
	return info.Fingerprint
}
