package test

import (
	"slices"
	"strings"
	"testing"
)

// Imports point one way, and each outside package enters in one place.
func TestRooms(t *testing.T) {
	allowed := map[string][]string{
		"batchfs/cache":             nil,
		"batchfs/sampler":           {"batchfs/cache"},
		"batchfs/fs":                nil,
		"batchfs/cmd/batchfs":       {"batchfs/cache", "batchfs/cmd/batchfs/bench", "batchfs/fs", "batchfs/sampler"},
		"batchfs/cmd/batchfs/bench": {"batchfs/cache", "batchfs/sampler"},
	}
	home := map[string]string{ // of a module's packages; they may also enter in the rooms below it
		"github.com/hanwen/go-fuse":      "batchfs/fs",
		"github.com/moby/sys/mountinfo":  "batchfs/fs",
		"github.com/BurntSushi/toml":     "batchfs/cmd/batchfs",
		"github.com/spf13/cobra":         "batchfs/cmd/batchfs",
		"github.com/schollz/progressbar": "batchfs/cmd/batchfs",
		"github.com/coreos/go-systemd":   "batchfs/cmd/batchfs",
		"gonum.org/v1/plot":              "batchfs/cmd/batchfs/bench",
	}
	for room, rooms := range allowed {
		for _, imported := range strings.Fields(run(t, "go", "list", "-f", `{{join .Imports " "}}`, room)) {
			if strings.HasPrefix(imported, "batchfs/") && !slices.Contains(rooms, imported) {
				t.Errorf("%s imports %s", room, imported)
			}
			if !strings.Contains(imported, ".") || strings.HasPrefix(imported, "golang.org/x/") {
				continue
			}
			at := ""
			for module, room := range home {
				if strings.HasPrefix(imported+"/", module+"/") {
					at = room
				}
			}
			if at == "" || !strings.HasPrefix(room+"/", at+"/") {
				t.Errorf("%s imports %s, which enters in %q", room, imported, at)
			}
		}
	}
}
