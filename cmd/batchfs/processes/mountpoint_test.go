package processes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

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
