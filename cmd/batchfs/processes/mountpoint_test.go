package processes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/config"
	"batchfs/internal/require"
)

// isInside follows links, wherever they are in the path, and sees files that do not exist yet.
func TestIsInside(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	mountpoint := filepath.Join(dir, "real", "mnt")
	require.NoError(t, errors.Join(os.MkdirAll(mountpoint, 0o755), os.Symlink("real", filepath.Join(dir, "link")),
		os.Symlink("real/mnt", filepath.Join(dir, "to-mnt")), os.Symlink("real/mnt/log", filepath.Join(dir, "to-log"))))
	t.Chdir(filepath.Join(dir, "link")) // also sets PWD, as shells do
	for file, want := range map[string]bool{
		mountpoint:                true,
		mountpoint + "/log":       true,
		mountpoint + "/a/b/cache": true,
		"mnt":                     true,
		"mnt/log":                 true,
		"../link/mnt/a/b":         true,
		dir + "/to-mnt/a/b":       true,
		dir + "/to-log":           true,
		mountpoint + "2":          false,
		"mnt2/a/b":                false,
		"log":                     false,
		"mnt/../log":              false,
		"/":                       false,
	} {
		if isInside(mountpoint, file) != want {
			t.Errorf("%s is inside %s: %v, want %v", file, mountpoint, !want, want)
		}
	}
}

// The command to create a mountpoint does not create a directory called ~, or $HOME as services and
// containers pass it.
func TestUnexpandedMountpoint(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll("$HOME/made", 0o755))
	for path, fails := range map[string]bool{"~/mnt": true, "$HOME/mnt": true, "${HOME}/mnt": true, "$HOME/made": false} {
		_, err := CheckMountpoint(&config.Config{Mountpoint: path}, "")
		const want = "mountpoint: ~ and variables are not expanded here: write the path out"
		if (err != nil) != fails || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want an error: %v", path, err, fails)
		}
	}
}
