package dataset

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
)

func TestReadable(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 5000, "b.bin": 5000})
	testfiles.Write(t, map[string]string{"config.toml": `batch.block_size = 16
batch.token_dtype = "uint32"
[splits.fixed]
tokens = ["a.bin", "b.bin"]
[splits.follows]
tokens = ["a.bin", "b.bin"]
on_change = "follow"
`})
	s := takeSnapshot(t)
	c, err := s.Config()
	must(t, err)
	readable := func(split string) string {
		i := slices.IndexFunc(c.Splits, func(s *config.Split) bool { return s.Name == split })
		d, err := s.Readable(c.Splits[i], NewOpener(c))
		switch {
		case errors.Is(err, syscall.ESTALE):
			return "stale"
		case errors.Is(err, os.ErrNotExist):
			return "gone"
		case err != nil:
			return err.Error()
		}
		return fmt.Sprint(d.Len(), " tokens")
	}
	for _, test := range []struct {
		change         func()
		fixed, follows string
	}{
		{func() {}, "10000 tokens", "10000 tokens"},
		{func() { testfiles.Positions(t, map[string]int{"b.bin": 6000}) }, "stale", "11000 tokens"},
		{func() { testfiles.Write(t, map[string]string{"b.bin": ""}) }, "stale", "stale"},
		{func() { os.Remove("b.bin") }, "gone", "gone"},
	} {
		test.change()
		if fixed, follows := readable("fixed"), readable("follows"); fixed != test.fixed || follows != test.follows {
			t.Errorf("%s and %s, want %s and %s", fixed, follows, test.fixed, test.follows)
		}
	}
}
