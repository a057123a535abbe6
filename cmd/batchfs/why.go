package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"batchfs/fs/mount"
)

func whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why PATH",
		Short: "Say why a path in a mount cannot be read",
		Long: `Open a path in a mount, and read its first bytes, except of next, which would take a batch. Where that fails the exit status is 1, and
the error says what a program is told as ENOENT, EINVAL, ESTALE or EIO.

status.json of a mount has the last ten names that were not there, and names its log.`,
		Example: "  batchfs why /mnt/batches/train/rank=8,world=8/next",
		Args:    cobra.ExactArgs(1),
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			m, below, err := requireMount(args[0])
			if err != nil {
				return err
			}
			if _, err := diagnose(m); err != nil { // to open a file could hang
				return err
			}
			if err := tryRead(args[0]); err != nil {
				return fmt.Errorf("%s: %s (%w)", args[0], cmp.Or(recordedReason(m, filepath.Clean(below)+"/"), siblingNames(args[0])), err)
			}
			printf(cmd.OutOrStdout(), "%s can be read\n", args[0])
			return nil
		}),
	}
}

func tryRead(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err) // without the path
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || info.IsDir() || strings.HasPrefix(filepath.Base(path), "next") {
		return err
	}
	if _, err = file.Read(make([]byte, 64<<10)); err == io.EOF {
		return nil
	}
	return errors.Unwrap(err)
}

// recordedReason is what status.json says of a name on the way to a path in the mount, or of the sequence that the path leads to, or "".
func recordedReason(m *mount.Mounted, below string) (why string) {
	var status struct {
		BadNames []struct{ Path, Why string } `json:"bad_names"`
		Splits   map[string]struct {
			LastError string `json:"last_error"`
		}
	}
	text, _ := os.ReadFile(filepath.Join(m.Mountpoint, "status.json"))
	json.Unmarshal(text, &status) // where it cannot be read, it says nothing
	for _, bad := range status.BadNames {
		if strings.HasPrefix(below, bad.Path+"/") {
			return bad.Why
		}
	}
	longest := ""
	for name, s := range status.Splits {
		if strings.HasPrefix(below, name+"/") && len(name) > len(longest) {
			longest, why = name, s.LastError
		}
	}
	return why
}

// siblingNames are the names in the last directory of a path that there is: the kernel remembers which are not there, and asks no more.
func siblingNames(path string) string {
	var names []string
	for dir := filepath.Dir(path); names == nil && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return "there are " + strings.Join(names, ", ")
}
