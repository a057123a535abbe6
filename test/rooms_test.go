package test

import (
	"slices"
	"strings"
	"testing"
)

// Imports point one way, and each outside package enters in one place.
func TestRooms(t *testing.T) {
	allowed := map[string][]string{
		"batchfs/cache":       nil,
		"batchfs/sampler":     {"batchfs/cache"},
		"batchfs/fs":          nil,
		"batchfs/cmd/batchfs": {"batchfs/cache", "batchfs/fs", "batchfs/sampler"},
	}
	home := map[string]string{
		"github.com/hanwen/go-fuse/v2/fuse": "batchfs/fs",
		"github.com/moby/sys/mountinfo":     "batchfs/fs",
		"github.com/BurntSushi/toml":        "batchfs/cmd/batchfs",
		"github.com/spf13/cobra":            "batchfs/cmd/batchfs",
		"github.com/schollz/progressbar/v3": "batchfs/cmd/batchfs",
	}
	for room, rooms := range allowed {
		for _, imported := range strings.Fields(run(t, "go", "list", "-f", `{{join .Imports " "}}`, room)) {
			if strings.HasPrefix(imported, "batchfs/") && !slices.Contains(rooms, imported) {
				t.Errorf("%s imports %s", room, imported)
			}
			if strings.Contains(imported, ".") && !strings.HasPrefix(imported, "golang.org/x/") && home[imported] != room {
				t.Errorf("%s imports %s, which enters in %q", room, imported, home[imported])
			}
		}
	}
}
