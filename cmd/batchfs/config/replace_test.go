package config

import (
	"fmt"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

func TestCanReplace(t *testing.T) {
	const fix = "; to change it, unmount and mount again"
	const mixed = "[[splits.mix.sources]]\ntokens = 'a.bin'\nweight = "
	const more = "\n[[splits.mix.sources]]\ntokens = 'b.bin'\nweight = 1\n"
	const noSource = ": source 0 has the files [a.bin] in the mount, but not in the configuration; sources may only be appended: " +
		"put it back in its place, with weight 0 to retire it, or unmount and mount again"
	for _, test := range []struct{ old, new, want string }{
		{train, train, ""},
		{train, "memory.access = 'pread'\nlog.level = 'debug'\nmount.timeout = '1s'\n" + train + "on_change = 'follow'", ""},
		{train, train + "seed = 1337", ""}, // the default
		{train, train + "seed = 7", "splits.train.seed is 1337 in the mount, and the configuration has 7" + fix},
		{train, train + "join = true", "splits.train.join is false in the mount, and the configuration has true" + fix},
		{train + "documents = true", train + "documents = 'files'", "splits.train.documents is true in the mount, and the configuration has files" + fix},
		{train + "documents = 'files'", train + "documents = false", "splits.train.documents is files in the mount, and the configuration has false" + fix},
		{train, "mount.mode = '0400'\n" + train, "mount.mode is 0444 in the mount, and the configuration has 0400" + fix},
		{train, "mount.grace = '1s'\n" + train, "mount.grace is 10s in the mount, and the configuration has 1s" + fix},
		{train, "[splits.train]\ntokens = 'b.bin'", "splits.train.tokens is [a.bin] in the mount, and the configuration has [b.bin]" + fix},
		{train, "[splits.val]\ntokens = 'a.bin'", "splits.train is mounted, but the configuration no longer has it" + fix},
		{train, train + "[splits.val]\ntokens = 'a.bin'", "the configuration has splits that are not mounted" + fix},
		{mixed + "1", mixed + "2" + more, ""},
		{mixed + "1", more + mixed + "1", "config.toml:2: splits.mix.sources" + noSource},
		{mixed + "1" + more, mixed + "1", "config.toml:1: splits.mix.sources" + strings.NewReplacer("source 0", "source 1", "a.bin", "b.bin").Replace(noSource)},
		{mixed + "1", "[splits.mix]\ntokens = 'a.bin'", "config.toml:1: splits.mix" + noSource},
		{mixed + "1", mixed + "1\nname = 'x'" + more + "name = '0'", `config.toml:1: splits.mix.sources: source 1 has the name "0", which source 0 has in the mount; choose another one`},
		{mixed + "2", mixed + "2\nvocab_size = 65\nname = 'web'", ""},
		{train, train + "vocab_size = 65", ""},
	} {
		old, err := decodeText(test.old)
		testfiles.NoError(t, err)
		c, err := decodeText(test.new)
		testfiles.NoError(t, err)
		if got := fmt.Sprint(c.CanReplace(old)); got != test.want && !(test.want == "" && got == "<nil>") {
			t.Errorf("%q, then %q:\n got %s\nwant %s", test.old, test.new, got, test.want)
		}
	}
}
