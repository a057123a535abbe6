package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
)

// resumeCommand returns the hidden command that the Python package asks where a run continues. It
// needs neither a mount nor token files: a state can be loaded from a pipe, or after a mount has
// ended.
func resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "resume",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var states struct{ Then, Now dataset.State }
			in := json.NewDecoder(cmd.InOrStdin())
			in.UseNumber()
			if err := in.Decode(&states); err != nil {
				return err
			}
			return terminal.WriteJSON(cmd.OutOrStdout(), dataset.Resume(states.Then, states.Now))
		},
	}
}
