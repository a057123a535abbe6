package test

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Rows of any array, and arrays beside the tokens, of any dtype, further axes, files and source, are in every file what a reference
// computes that shares no code with the program, from any byte on. BATCHFS_SEED repeats a run.
func TestArraysAgreeWithReference(t *testing.T) {
	chance := rand.New(rand.NewPCG(randomSeed(t), 0))
	splits, many := newRandomSplits(t, chance), 10
	if testing.Short() {
		many = 4
	}
	var sequences [][2]any
	for i := range many {
		name := fmt.Sprintf("split%d", i)
		split, of := splits.add(name)
		directory, under := split.path(chance, of)
		sequences = append(sequences, [2]any{name, of}, [2]any{filepath.Join(name, directory), under})
	}
	m := mount(t, "-c", splits.write(""))
	for i := range sequences {
		sequences[i][0] = m.path(sequences[i][0].(string))
	}
	file := filepath.Join(t.TempDir(), "sequences.json")
	write(t, file, jsonOf(t, sequences))
	cmd := exec.Command(python, "clients/differential.py", file, fmt.Sprint(chance.Uint32()), fmt.Sprint(100*many))
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "failed") {
		t.Errorf("%v\n%s", err, out)
	}
}
