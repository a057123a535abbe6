package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/fs/figures"
)

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the mounts on this machine",
		Long: `List every batchfs mount on this machine, in any state. A mount that hangs does not
delay the list, because no mount is accessed.`,
		Example: "  batchfs list",
		Args:    cobra.NoArgs,
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			mounts, err := figures.Mounts("")
			if err != nil {
				return err
			}
			if len(mounts) == 0 {
				printf(cmd.OutOrStdout(), "no batchfs is mounted\n")
				return nil
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			defer table.Flush()
			fmt.Fprintln(table, "MOUNTPOINT\tSTATE\tSUPERVISOR\tUSER\tUP\tVERSION\tSEQUENCES\tMEMORY")
			for _, m := range mounts {
				up := ""
				if m.Uptime > 0 {
					up = time.Duration(m.Uptime * float64(time.Second)).Round(time.Second).String()
				}
				printf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%d\t%s\n", m.Mountpoint, m.State, m.Supervisor, m.User, up,
					m.Version, len(m.Sequences), terminal.FormatBytes(m.Resident()))
			}
			return nil
		}),
	}
}
