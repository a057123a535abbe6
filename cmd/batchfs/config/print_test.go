package config

import (
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// A configuration is printed without what has no effect: keys with their defaults, and a key of
// [batch] that all splits override.
func TestText(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{reference(), `# An empty directory; batchfs mount MOUNTPOINT overrides it.
mountpoint = "/mnt/batches"

[splits.train]
# The token files, which form one array in this order.
tokens = "data/train.bin"

[splits.val]
tokens = "data/val.bin"
# How rows are chosen.
order = "sequential"
`},
		{"batch.seed = 7\nbatch.order = 'torch'\nbatch.dtype = 'int64'\nlog.level = 'warn'\n" +
			"[splits.'a b']\ntokens = ['/x/*.bin', 's3://b/\\u202e']\norder = 'random'\n" +
			"[splits.c]\ntokens = 'y'\norder = 'shuffle'\nshuffle_block = 4194305\ntoken_dtype = 'uint16'\narrays = []\nmask_targets = 'mask'",
			`[batch]
# The dtype of tokens in a batch, little-endian.
dtype = "int64"
# The seed of the random numbers.
seed = 7

[splits."a b"]
# The token files, which form one array in this order.
tokens = ["/x/*.bin", "s3://b/\\u202e"]

[splits.c]
tokens = "y"
# The dtype of headerless files, little-endian.
token_dtype = "uint16"
# How rows are chosen.
order = "shuffle"
# The size of the runs of tokens that order = "shuffle" shuffles.
shuffle_block = 4194305
# Whether ignore_index replaces a target in another document than the token before it.
mask_targets = "mask"
arrays = []

[log]
# The lowest level to log.
level = "warn"
`},
		{`splits.mix.stages = [{weights = {web = 9.5, "2" = 1e300}}, {from_tokens = '250B', weights = {web = 1}}]
[[splits.mix.sources]]
name = "web"
tokens = "w"
arrays = [{name = "mask", files = ["m"], shape = [2, 3]}]
[[splits.mix.sources]]
tokens = "z"
max_epochs = 4.0
[[splits.mix.sources.arrays]]
name = "mask"
files = "n"
at = "y"
[[splits.mix.sources]]
name = "2"
tokens = "2"
arrays = [{name = "mask", files = ["o"]}]`, `[[splits.mix.sources]]
# The name of this source in info.json, metrics and paths.
name = "web"
# The token files of this source, like tokens in [splits.X].
tokens = "w"

[[splits.mix.sources.arrays]]
# The name of the array in a batch.
name = "mask"
# The files of the array.
files = "m"
# The shape of one element, like shape in [batch].
shape = [2, 3]

[[splits.mix.sources]]
tokens = "z"
# How many epochs of this source are read, by all ranks together.
max_epochs = 4

[[splits.mix.sources.arrays]]
name = "mask"
files = "n"

[[splits.mix.sources]]
tokens = "2"

[[splits.mix.sources.arrays]]
name = "mask"
files = "o"

[[splits.mix.stages]]
# The weights of the sources, by name.
weights = {2 = 1e+300, web = 9.5}

[[splits.mix.stages]]
weights = {web = 1}
# The number of tokens, on all ranks, after which this stage begins.
from_tokens = 250000000000
`},
	} {
		c, err := decodeText(test.text)
		testfiles.NoError(t, err)
		if got, err := c.Text(); err != nil || got != test.want {
			t.Errorf("%s\nis printed as\n%s\n%v, want\n%s", test.text, got, err, test.want)
		}
	}
	c, err := decodeText(train, "splits.train.tokens=\xff.bin")
	testfiles.NoError(t, err)
	if text, err := c.Text(); err == nil || !strings.Contains(err.Error(), `"\xff.bin", which is not UTF-8`) {
		t.Errorf("printed as %s, %v", text, err)
	}
}

// The first sentence of each help fits on one line, as a comment.
func TestSummaries(t *testing.T) {
	for _, table := range allTables {
		for _, k := range table.keys {
			if k.set == nil {
				continue
			}
			if s := k.summary(); len(s) < 15 || len(s) > 98 || !strings.HasSuffix(s, ".") {
				t.Errorf("%s %s: the first sentence of its help must be one line of comment (got %q)", table.name, k.name, s)
			}
		}
	}
}
