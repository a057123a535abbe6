package readers

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// The library reads the .safetensors files of batches, and finds the bytes of the batch and its origin.
func TestSafetensors(t *testing.T) {
	if out, err := e2e.Command(t, e2e.Python, "-c", "import safetensors.numpy").CombinedOutput(); err != nil {
		e2e.Lack(t, "no safetensors, pip install safetensors: %s", out)
	}
	config, _ := e2e.Small(t, 1)
	m := e2e.Mount(t, "-c", config)
	for _, dir := range []string{
		"train", "train/dtype=int64", "train/layout=tokens", "train/layout=tokens,dtype=int64",
		"val/rank=2,world=3,dtype=uint32",
	} {
		t.Run(dir, func(t *testing.T) {
			expect := func(k int, what string, got []string) {
				t.Helper()
				if want := tensors(t, m, dir, k); !slices.Equal(got, want) {
					t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
			path := func(file string) string { return m.Path(dir + "/" + file + ".safetensors") }
			for _, k := range []int{17, 1<<40 - 1} {
				file := fmt.Sprintf("batch/%d", k)
				expect(k, file, e2e.Read(t, "safetensors_file", path(file)))
			}
			expect(0, "next", e2e.Read(t, "safetensors_bytes", path("next")))
			e2e.Equal(t, "the cursor", m.Cursor(t, dir), "1")
		})
	}
}

// tensors returns the tensors and the metadata of batch k, from batch/<k> and info.json, as clients/readers.py prints them.
func tensors(t *testing.T, m *e2e.Mounted, dir string, k int) (lines []string) {
	t.Helper()
	var info struct {
		DType, Sequence, Fingerprint string
		Shape                        []int
	}
	e2e.NoError(t, json.Unmarshal([]byte(e2e.Run(t, "cat", m.Path(dir+"/info.json"))), &info))
	raw := []byte(e2e.Run(t, "cat", m.Path(fmt.Sprintf("%s/batch/%d", dir, k))))
	arrays := map[string][]byte{"tokens": raw}
	if len(info.Shape) == 3 {
		arrays = map[string][]byte{"x": raw[:len(raw)/2], "y": raw[len(raw)/2:]}
		info.Shape = info.Shape[1:]
	}
	for _, name := range slices.Sorted(maps.Keys(arrays)) {
		lines = append(lines, fmt.Sprintf("%s %s %d %s", name, info.DType, info.Shape, e2e.Line(arrays[name])))
	}
	metadata := map[string]string{"batch": fmt.Sprint(k), "sequence": info.Sequence, "fingerprint": info.Fingerprint}
	return append(lines, string(e2e.Must(json.Marshal(metadata))(t)))
}
