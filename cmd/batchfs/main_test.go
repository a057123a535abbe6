package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"batchfs/fs"
	"batchfs/sampler"
)

// Two packages that do not know each other bound the numbers of batches.
func TestNumbersEndAtTheSamePlace(t *testing.T) {
	if fs.MaxBatches != sampler.MaxBatches {
		t.Errorf("fs has %d, sampler has %d", fs.MaxBatches, sampler.MaxBatches)
	}
}

func TestEveryCommandHasExamples(t *testing.T) {
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if !cmd.Hidden && !strings.Contains(cmd.Example, "  batchfs ") {
			t.Errorf("%s: %q", cmd.CommandPath(), cmd.Example)
		}
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(rootCommand())
}
