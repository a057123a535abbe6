package command

import "github.com/spf13/cobra"

// DirCompletion completes arguments with names of directories.
var DirCompletion = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)

// HideDefault hides a numeric flag's default, which only means that the flag is not set.
func HideDefault(cmd *cobra.Command, name string) { cmd.Flags().Lookup(name).DefValue = "0" }
