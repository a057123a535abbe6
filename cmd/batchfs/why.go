package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/doctor"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/fs"
	"batchfs/fs/mount"
)

// maxTried limits the bytes that why reads, because batches.bin may be as large as all tokens.
const maxTried = 256 << 20

func whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why PATH",
		Short: "Explain why a path in a mount cannot be read",
		Long: `Read PATH, and explain the error if that fails. A program that reads the path sees
only an errno, such as ENOENT, EINVAL, ESTALE or EIO. For ` + "`next`" + `, next.npy and so on,
the same batch is read below batch/, because a read of next would take it. Of a file
larger than 256 MiB, only the beginning is read. The exit status is 1 if the path
cannot be read.

The status.json of a mount lists the last ten paths that did not exist, and the path
of the mount's log.`,
		Example: "  batchfs why /mnt/batches/train/rank=8,world=8/next",
		Args:    cobra.ExactArgs(1),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			m, below, err := mount.Containing(args[0])
			if err != nil {
				return err
			}
			// Opening a file of a stuck mount would hang.
			if _, err := doctor.Diagnose(m); err != nil {
				return err
			}
			size, err := tryRead(args[0])
			switch {
			case err != nil:
				path := filepath.Clean(args[0])
				if whole := m.Whole(); whole != nil { // a bind mount of a part has no status.json
					m, path = whole, filepath.Join(whole.Mountpoint, below)
				}
				why := strings.TrimSuffix(reason(m, path, err), fmt.Sprintf(" (%v)", err))
				return fmt.Errorf("%s: %s (%w)", args[0], why, err)
			case size > maxTried:
				printf(cmd.OutOrStdout(), "the first %s of %s can be read; try a batch for the rest, such as batch/17\n",
					terminal.FormatBytes(maxTried), args[0])
			default:
				printf(cmd.OutOrStdout(), "%s can be read\n", args[0])
			}
			return nil
		}),
	}
}

// tryRead reads the first maxTried bytes of a file, and returns its size. Its error does not name
// the path.
func tryRead(path string) (size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, errors.Unwrap(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.IsDir() {
		return 0, errors.Unwrap(err)
	}
	dir, name := filepath.Split(path)
	if suffix, isNext := strings.CutPrefix(name, "next"); isNext {
		cursor, err := os.ReadFile(dir + "cursor")
		if err != nil {
			return 0, errors.Unwrap(err)
		}
		return tryRead(dir + "batch/" + strings.TrimSpace(string(cursor)) + suffix)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(file, maxTried))
	return info.Size(), errors.Unwrap(err)
}

// reason explains the error of tryRead: with what status.json says about a name in the path that
// does not exist, or else with the last error of the path's sequence.
func reason(m *mount.Mounted, path string, failure error) string {
	var status struct {
		BadNames  []fs.BadName `json:"bad_names"`
		Sequences map[string]struct {
			Number    int
			LastError string `json:"last_error"`
		}
	}
	text, _ := os.ReadFile(filepath.Join(m.Mountpoint, "status.json"))
	json.Unmarshal(text, &status) // on an error, status stays empty
	missing, stat := "", syscall.Stat_t{}
	for syscall.Lstat(path, &stat) != nil && path != filepath.Dir(path) {
		path, missing = filepath.Dir(path), filepath.Base(path)
	}
	missing = string([]rune(missing)) // invalid UTF-8 is replaced, as in what Unmarshal returns
	// Compare numbers, because a path may write the settings of a sequence in many ways.
	sequence := fs.SequenceOf(stat.Ino)
	if errors.Is(failure, syscall.ENOENT) || errors.Is(failure, syscall.EINVAL) {
		inBatch := filepath.Base(path) == "batch"
		for _, bad := range status.BadNames {
			dir, name := filepath.Split(bad.Path)
			if bad.Sequence == sequence && name == missing && (filepath.Base(dir) == "batch") == inBatch {
				return bad.Why
			}
		}
		return siblingNames(path)
	}
	// These have causes of their own, whatever the last error of the sequence is.
	switch {
	case errors.Is(failure, syscall.ENOTDIR):
		return filepath.Base(path) + " is a file, which has nothing below it"
	case errors.Is(failure, syscall.ENAMETOOLONG):
		return "no file has such a long name"
	case errors.Is(failure, syscall.EDQUOT):
		return "this user has as many settings directories as mount.settings_per_user allows; use fewer, or raise it and run batchfs restart"
	case errors.Is(failure, syscall.ENOSPC):
		return "all users together have too many settings directories; those whose cursor has moved end only with the mount: unmount and mount again"
	case errors.Is(failure, syscall.EACCES) && !m.AllowOther:
		return fmt.Sprintf("only user %d, who mounted it, may read it, unless it is mounted with mount.allow_other", m.Owner)
	case errors.Is(failure, syscall.EACCES):
		return "mount.mode, mount.uid and mount.gid let only other users read it"
	}
	for _, s := range status.Sequences {
		if s.Number == sequence && s.LastError != "" {
			return s.LastError
		}
	}
	return "see the log of the mount"
}

// siblingNames lists the names in a directory. They explain a failed lookup that status.json does
// not record because the kernel answered it from its cache.
func siblingNames(dir string) string {
	if filepath.Base(dir) == "batch" {
		return "files of batches are called 17, 17.npy, 17.safetensors and 17.json, or 17.mask.npy for an array mask"
	}
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return "there are " + strings.Join(names, ", ")
}
