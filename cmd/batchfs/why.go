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
		Short: "Explain why a path in a mount cannot be read",
		Long: `Open PATH, read its first bytes, and explain the error if that fails. A program that
reads the path sees only an errno, such as ENOENT, EINVAL, ESTALE or EIO. The files
` + "`next`" + `, next.npy and so on are opened but not read, because a read would take the next
batch. The exit status is 1 if the path cannot be read.

The status.json of a mount lists the last ten paths that did not exist, and the path
of the mount's log.`,
		Example: "  batchfs why /mnt/batches/train/rank=8,world=8/next",
		Args:    cobra.ExactArgs(1),
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			m, below, err := requireMount(args[0])
			if err != nil {
				return err
			}
			if _, err := diagnose(m); err != nil { // opening a file of a stuck mount would hang
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

// tryRead opens a file and reads its first bytes, unless that would take a batch. Its error does
// not name the path.
func tryRead(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || info.IsDir() || strings.HasPrefix(filepath.Base(path), "next") {
		return errors.Unwrap(err)
	}
	if _, err = file.Read(make([]byte, 64<<10)); err == io.EOF {
		return nil
	}
	return errors.Unwrap(err)
}

// recordedReason returns what status.json says about a path below the mount's root: why a name in
// the path does not exist, or else the last error of its sequence. It returns an empty string if
// there is neither.
func recordedReason(m *mount.Mounted, below string) (why string) {
	var status struct {
		BadNames []struct{ Path, Why string } `json:"bad_names"`
		Splits   map[string]struct {
			LastError string `json:"last_error"`
		}
	}
	text, _ := os.ReadFile(filepath.Join(m.Mountpoint, "status.json"))
	json.Unmarshal(text, &status) // on an error, status stays empty
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

// siblingNames lists the names in the deepest existing directory of a path. They explain a failed
// lookup that status.json does not record because the kernel answered it from its cache.
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
