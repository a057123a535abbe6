package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

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
