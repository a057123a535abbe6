package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/sampler"
)

// decodeText decodes a configuration. So that every configuration in a test is also a case for
// Text, the error says if c.Text() is not the same configuration.
func decodeText(text string, sets ...string) (*Config, error) {
	c, err := RawConfig{"config.toml", text, sets}.decode("")
	if err != nil {
		return nil, err
	}
	return c, checkText(c)
}

func checkText(c *Config) error {
	text, err := c.Text()
	if err != nil {
		if strings.Contains(err.Error(), "which is not UTF-8") {
			return nil
		}
		return err
	}
	printed, err := RawConfig{"config.toml", text, nil}.decode("")
	if err != nil {
		return fmt.Errorf("the text of %+v\nis %s\nwhich is rejected: %w", c, text, err)
	}
	if again, err := printed.Text(); err != nil || again != text {
		return fmt.Errorf("%s\nis printed as %s, %v", text, again, err)
	}
	if a, b := comparable(c), comparable(printed); !reflect.DeepEqual(a, b) {
		return fmt.Errorf("%+v\nis printed as %s\nwhich is %+v", a, text, b)
	}
	return nil
}

// comparable returns everything that a configuration decides.
func comparable(c *Config) (all []any) {
	all = append(all, filepath.Clean(c.Mountpoint), c.Memory, c.Mount, c.Log)
	store := c.Store
	store.CacheDir = filepath.Clean(store.CacheDir)
	all = append(all, store)
	for _, s := range c.Splits {
		plain := withoutLocations(s.withPaths())
		plain.StateFile = filepath.Clean(plain.StateFile)
		all = append(all, plain, s.ArraysAreSet(), s.IsSet("eot"), s.IsSet("token_dtype"))
	}
	return all
}

// withoutLocations returns a copy of a split without the fields that only error messages use.
func withoutLocations(s *Split) Split {
	plain := *s
	plain.firstMention, plain.keyRefs, plain.storeBlock = keyRef{}, nil, 0
	return plain
}

func wantError(t *testing.T, want, text string, sets ...string) {
	t.Helper()
	if c, err := decodeText(text, sets...); err == nil {
		t.Errorf("%q %q: accepted as %+v", text, sets, c)
	} else if !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%q %q:\n got %s\nwant %s", text, sets, err, want)
	}
}

const train = "[splits.train]\ntokens = \"a.bin\"\n"

func TestConfigErrors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		// Unknown keys. If another table has the key, the error names it.
		{"\nsplit = 1", `config.toml:2: split: unknown key; must be one of mountpoint, [batch], [splits.X], [memory], [mount], [store], [log]`},
		{"[batch]\n\nsede = 1", `config.toml:3: batch.sede: unknown key; must be one of batch_size, block_size, `},
		{"[batch]\nSeed = 1\nseed = 2", `config.toml:2: batch.Seed: unknown key; must be one of `},
		{"[memory]\nacess = 1", `config.toml:2: memory.acess: unknown key; must be one of access, ahead, ahead_bytes, budget, page_cache`},
		{"level = 'warn'", `config.toml:1: level: unknown key; level belongs in [log]`},
		{"seed = 1", `config.toml:1: seed: unknown key; seed belongs in [batch] or [splits.X]`},
		{"[batch]\ntokens = 'a'", `config.toml:2: batch.tokens: unknown key; tokens belongs in [splits.X]`},
		{train + "mountpoint = '/m'", `config.toml:3: splits.train.mountpoint: unknown key; mountpoint belongs in front of all tables`},

		// Values.
		{"mountpoint = 7", `config.toml:1: mountpoint: must be a path (got 7)`},
		{"[batch]\norder = 'shufle'", `config.toml:2: batch.order: must be random`},
		{"[batch]\nseed = -1", `config.toml:2: batch.seed: must be a whole number from 0 to 9223372036854775807 (got -1)`},
		{"[batch]\nseed = 9223372036854775808", `config.toml:2: 9223372036854775808 is out of range`},
		{"[splits.a]\ntokens = [\n'a',\n1]", `config.toml:2: splits.a.tokens: must be a path, a glob, or a list of them (got ["a", 1])`},
		{"[splits.a]\nseed = '''\n\n'''\n", `config.toml:2: splits.a.seed: must be a whole number `},
		{"[mount]\nmode = '0644'", `config.toml:2: mount.mode: must be octal digits that permit only reading, as in "0440" (got "0644")`},
		{"[mount]\ntimeout = '99ms'", `config.toml:2: mount.timeout: must be a duration from 100ms to 24h, as in "90s" (got "99ms")`},

		// Tables instead of values, and values instead of tables.
		{"batch = 7", `config.toml:1: batch: must be a table, [batch] (got 7)`},
		{"[splits]\ntrain = 'a.bin'", `config.toml:2: splits.train: must be a table, [splits.train] (got "a.bin")`},
		{"[[batch]]\nseed = 1", `config.toml:1: batch: must be a table, [batch] (got a list of tables)`},

		// Errors have the right line for every way to write a key.
		{"\nbatch.seed = 1\nbatch.sede = 1", `config.toml:3: batch.sede: unknown`},
		{"\"batch\".'seed' = -1", `config.toml:1: batch.seed: must be a whole`},
		{"batch = {seed = 1,\n sede = 2}", `config.toml:1: batch.sede: unknown`},
		{"[splits]\ntrain.tokens = 'a'\ntrain.seed = -1", `config.toml:3: splits.train.seed: must be a whole`},
		{"splits = {train = {tokens = 'a'}, val = {seed = -1}}", `config.toml:1: splits.val.seed: must be a whole`},
		{"[splits.\"a b\"]\nsede = 1", `config.toml:2: splits."a b".sede: unknown`},
		{"\"\" = 1", `config.toml:1: "": unknown`},
		{"\"se,de\" = 1", `config.toml:1: "se,de": unknown`},
		{"\ufeffsede = 1", `config.toml:1: sede: unknown`},

		// Missing keys, and values that are wrong only in combination.
		{train + "[splits.val]\nseed = 1", `config.toml:3: splits.val: split val must have tokens, e.g. tokens = "data/val.bin" (got none)`},
		{train + "rank = 1", `config.toml:3: splits.train.rank: must be below world, which is 1 in splits.train (got 1)`},
		{train + "world = 2\n[batch]\nrank = 3\nworld = 4", `config.toml:5: batch.rank: must be below world, which is 2 in splits.train (got 3)`},
		{train + "world = 16777216", `config.toml:3: splits.train.world: batch_size times world must be at most 16777216, so that numbers of rows fit in 64 bits (got 12 times 16777216 in splits.train)`},
		{train + "documents = true\nlayout = 'rows'", `config.toml:3: splits.train.documents: layout rows has no documents; leave out documents and rows (got rows = "windows" in splits.train)`},
		{train + "rows = 'packed'\nlayout = 'rows'", `config.toml:3: splits.train.rows: layout rows has no documents; leave out documents and rows (got rows = "packed" in splits.train)`},
		{train + "mask_targets = true\nlayout = 'tokens'", `config.toml:3: splits.train.mask_targets: mask_targets is for y, which layout tokens does not have; set layout = "xy", or leave mask_targets out`},
		{train + "rows = 'packed'\nblock_size = 1048577", `config.toml:4: splits.train.block_size: packed rows need a block_size of at most 1048576 (got 1048577 in splits.train)`},
		{train + "documents = true\nblock_size = 2147483648", `config.toml:4: splits.train.block_size: documents need a block_size of at most 2147483647 (got 2147483648 in splits.train)`},
		{train + "bos = 1", `config.toml:3: splits.train.bos: bos begins segments of documents; set rows = "packed" or "document", or leave bos out (got rows = "windows")`},
		{train + "document_numbers = true\nlayout = 'rows'", `config.toml:3: splits.train.document_numbers: layout rows has no documents; leave out document_numbers`},
		{train + "too_long = 'drop'", `config.toml:3: splits.train.too_long: windows hold tokens of any document, however long; set rows = "packed", "document" or "document-first", or leave too_long out (got rows = "windows")`},
		{train + "too_long = 'split'", `config.toml:3: splits.train.too_long: must be cut, drop or truncate (got "split")`},
		{train + "order = 'torch'\nrows = 'packed'", `config.toml:3: splits.train.order: order torch draws windows; choose another order, or rows = "windows" (got rows = "packed")`},
		{train + "order = 'torch'\ntorch_state = 'rng.bin'\nworld = 2", `config.toml:4: splits.train.torch_state: torch_state is that of one rank: set rank = 0 and world = 1, or leave it out (got rank 0 of 2)`},

		// Names of splits.
		{"[splits.README]", `config.toml:1: splits.README: a split's name must be `},
		{"[splits.'.x']", `config.toml:1: splits.".x": a split's name must be `},
		{"[splits.\"a\\nb\"]", `config.toml:1: splits."a\nb": a split's name must be `},
		{"[splits." + strings.Repeat("x", 101) + "]", `config.toml:1: splits.xx`},

		// Invalid TOML.
		{"\nseed: 7", `config.toml:2: expected`},
		{"[batch]\norder = random", `config.toml:2: expected value but found "random" instead; strings need quotes: order = "random"`},
		{"[batch]\r\n shuffle_block=64MiB \r\nseed = 1", `config.toml:2: expected a top-level item to end with a newline, comment, or EOF, but got 'M' instead; ` +
			`strings need quotes: shuffle_block = "64MiB"`},
		{"[mount]\nmode = 0440", `config.toml:2: Invalid integer "0440": cannot have leading zeroes; strings need quotes: mode = "0440"`},
		{"[mount]\nallow_other = True", `config.toml:2: expected value but found "True" instead; write allow_other = true`},
		{"[batch]\norder = “shuffle”", `config.toml:2: expected value but found '“' instead; write plain quotes: order = "shuffle"`},
		{"[splits.a]\ntokens = [‘a.bin’, ‘b.bin’]", `config.toml:2: expected value but found '‘' instead; write plain quotes: tokens = ["a.bin", "b.bin"]`},
		{"[batch]\neot = None", `config.toml:2: expected value but found "None" instead; leave out a key that has no value`},
		{"a = [\n\n", `config.toml:2: unexpected EOF`},
		{"[batch]\nseed = 1\nseed = 2", `config.toml:3: Key 'batch.seed' has already been defined.`},
		{"[batch]\nseed = .5", `config.toml:2: floats must start with a digit, not '.'`},
		{"[memory]\nbudget = '1GiB'", `config.toml:2: memory.budget: must be a whole number from 16777216 to 1099511627776, in bytes (got "1GiB")`},
	} {
		wantError(t, test.want, test.text)
	}
	for _, text := range []string{"[batch]\nseed = 99999999999999999999", "[batch]\nseed = 2\x00"} {
		if _, err := decodeText(text); err == nil || strings.Contains(err.Error(), "quotes") {
			t.Errorf("%q: %v, want an error without a hint", text, err)
		}
	}
}

// A string in Mount could add mount options such as dev, because the kernel separates options with
// commas. An address contains no comma.
func TestMountOptionsAreNoText(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Mount]()) {
		if k := field.Type.Kind(); field.Type != reflect.TypeFor[netip.AddrPort]() && k != reflect.Bool && k != reflect.Int && k != reflect.Int64 && k != reflect.Uint32 {
			t.Errorf("%s is a %s", field.Name, k)
		}
	}
}

func TestSetErrors(t *testing.T) {
	const usage = ": must be key=value, e.g. --set batch.seed=7"
	for _, test := range []struct{ set, want string }{
		{"x", "--set x" + usage},
		{"", "--set " + usage},
		{"batch..seed=1", "--set batch..seed=1" + usage},
		{"[batch]\nseed=1", "--set [batch]\nseed=1" + usage},
		{"seed=1", "--set seed: unknown key; seed belongs in [batch] or [splits.X]"},
		{"batch={seed=1,sede=2}", "--set batch.sede: unknown key; must be one of "},
		{"batch.seed=", `--set batch.seed: must be a whole number from 0 to 9223372036854775807 (got "")`},
		{"mount.timeout=30", `--set mount.timeout: must be a duration from 100ms to 24h, as in "90s" (got 30)`},
		{"splits.train.tokens=[2024]", "--set splits.train.tokens: must be a path, a glob, or a list of them (got [2024])"},
		{"splits.train.tokens=[a.bin,b.bin]", `--set splits.train.tokens: strings in a list need quotes, which shells remove from an argument without quotes of its own, ` +
			`as in --set 'splits.train.tokens=["a", "b"]' (got [a.bin,b.bin])`},
		{"splits.tarin.seed=7", "--set splits.tarin.seed: split tarin must have tokens"},
		{"splits.a/b.seed=7", "--set splits.a/b.seed=7" + usage},
		{"batch.rank=1", "--set batch.rank: must be below world, which is 1 in splits.train (got 1)"},
	} {
		wantError(t, test.want, train, test.set)
	}
}

// A ~ or a variable in a path is refused, because only a shell expands it, and cache_dir would
// become a directory called ~.
func TestUnexpandedPaths(t *testing.T) {
	const why = "~ and variables are not expanded here: write the path out (got "
	for _, path := range []string{"~", "~/a.bin", "$HOME/a.bin", "/scratch/$USER", "/scratch/${USER}/a.bin", "$SCRATCH"} {
		quoted := fmt.Sprintf("%q", path)
		wantError(t, "config.toml:4: store.cache_dir: "+why+quoted, train+"[store]\ncache_dir = "+quoted)
		wantError(t, "config.toml:1: mountpoint: "+why+quoted, "mountpoint = "+quoted)
		wantError(t, "config.toml:2: splits.a.tokens: "+why+quoted, "[splits.a]\ntokens = ['a.bin', "+quoted+"]")
		wantError(t, "config.toml:2: splits.a.sources.0.tokens: "+why+quoted, "[[splits.a.sources]]\ntokens = "+quoted+"\nweight = 1")
		wantError(t, "--set store.cache_dir: "+why+quoted, train, "store.cache_dir="+path)
		if _, err := (&Flags{Data: path}).Read(); err == nil || !strings.HasPrefix(err.Error(), "--data: "+why+quoted) {
			t.Errorf("--data %s: %v", path, err)
		}
	}
	for _, path := range []string{"/~/a.bin", "a~", "~a", "a/~", "$a", "a$HOME", "US$/a", "$1/a"} {
		if c, err := decodeText(train, "splits.train.tokens="+path); err != nil || c.Splits[0].Tokens[0] != path {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestSplitErrors(t *testing.T) {
	const (
		train32   = train + "expect_fingerprint = "
		digits    = "0123456789abcdef"
		notTables = `must be a list of tables, as in [{tokens = "a.bin", weight = 1}] (got `
		atLeast0  = "must be a number, 0 or above (got "
		names     = "must be 1 to 32 letters a to z, digits, _ and - (got "
		noWeight  = "must have weight, a number, 0 or above (got none)"
		noTokens  = "must have tokens, a path, a glob, or a list of them (got none)"
		notHex    = "must be 32 lower-case hexadecimal digits (got "
		both      = "split train must have tokens or sources, not both"
		stray     = "unknown key; sources must be a list of tables"
	)
	for _, test := range []struct{ text, at, want string }{
		{train + "on_change = 'ignore'", "3: splits.train.on_change", `must be error or follow (got "ignore")`},
		{"[batch]\non_change = 'follow'", "2: batch.on_change", "unknown key; on_change belongs in [splits.X]"},
		{train + "torch_state = 7", "3: splits.train.torch_state", "must be a path (got 7)"},

		{train32 + "'" + digits + "0123456789ABCDEF'", "3: splits.train.expect_fingerprint", notHex},
		{train32 + "12345678901234567", "3: splits.train.expect_fingerprint", notHex + "12345678901234567)"},
		{"[batch]\nexpect_fingerprint = ''", "2: batch.expect_fingerprint",
			"unknown key; expect_fingerprint belongs in [splits.X]"},

		{train + "order = 'shuffle'\nshuffle_block = '64'", "4: splits.train.shuffle_block", `must be 0, or a size from 64KiB to 1024GiB, as in "64MiB", or a number of bytes (got "64")`},
		{train + "order = 'shuffle'\nshuffle_block = '1MiB'\nrows = 'packed'", "4: splits.train.shuffle_block", `needs rows = "windows" (got "packed" in splits.train); set shuffle_block = 0, because `},
		{train + "shuffle_block = '1MiB'", "3: splits.train.shuffle_block", `needs order = "shuffle" (got "random" in splits.train)`},
		{"[batch]\nlocal_world = 8\nworld = 12\norder = 'shuffle'\nshuffle_block = '1MiB'\n" + train, "2: batch.local_world", "must divide world, which is 12 in splits.train (got 8)"},
		{"[splits.train]\ntokens = 's3://a/b.bin'\norder = 'shuffle'\nshuffle_block = '6MiB'", "4: splits.train.shuffle_block",
			"must be a multiple of store.block_bytes, which is 4194304 (got 6291456 in splits.train), or else two hosts would fetch the same block"},

		// Sources written as tables.
		{testfiles.Mixture("weight = -1", "weight = 1"), "3: splits.mix.sources.0.weight", atLeast0 + "-1)"},
		{testfiles.Mixture("weight = 0", "weight = 0"), "1: splits.mix.sources", "all sources of split mix have weight 0; raise that of one"},
		{testfiles.Mixture("weight = 1\nname = 'a b'", "weight = 1"), "4: splits.mix.sources.0.name", names + `"a b")`},
		{testfiles.Mixture("weight = 1\nname = '1'", "weight = 1"), "1: splits.mix.sources", `sources 0 and 1 of split mix have the name "1"; give each its own`},
		{testfiles.Mixture("weight = 1", "weight = 1\n[batch]\nsource = 'web'"), "8: batch.source", `split mix has no source "web"; its sources are 0, 1`},
		{train + "source = 'web'", "3: splits.train.source", "split train has no sources; leave source out"},
		{testfiles.Mixture("weight = 1", "weight = nan"), "6: splits.mix.sources.1.weight", atLeast0 + "nan)"},
		{testfiles.Mixture("weight = 1\n\nwegiht = 1", "weight = 1"), "5: splits.mix.sources.0.wegiht",
			"unknown key; must be one of arrays, max_epochs, name, tokens, vocab_size, weight"},
		{testfiles.Mixture("weight = 1\nseed = 1", ""), "4: splits.mix.sources.0.seed",
			"unknown key; seed belongs in [batch] or [splits.X]"},
		{"[batch]\ntoken_dtype = 'uint16'\n" + testfiles.Mixture("weight = 1", "weight = 1\nvocab_size = 65537"), "3: splits.mix.sources", "uint16 cannot hold the tokens of a vocabulary of 65537 "},
		{"[batch]\nvocab_size = 128256\ntoken_dtype = 'uint16'\n" + train, "2: batch.vocab_size",
			`uint16 cannot hold the tokens of a vocabulary of 128256 in splits.train; did you mean token_dtype = "uint32"?`},
		{testfiles.Mixture("weight = 1", ""), "4: splits.mix.sources.1", noWeight},
		{"\n[[splits.mix.sources]]\nweight = 1", "2: splits.mix.sources.0", noTokens},
		{"[[splits.mix.sources]]\nweight = 1\ntokens = [\n'a',\n1]", "3: splits.mix.sources.0.tokens",
			"must be a path, a glob, or a list"},
		{"\n[splits.mix.sources]\nweight = 1", "2: splits.mix.sources", notTables + "{weight = 1})"},
		{"[[batch.sources]]\nweight = 1", "1: batch.sources", "unknown key; sources belongs in [splits.X]"},

		// Sources written as a list. All of their keys have the line of the list.
		{"[splits.mix]\nsources = []", "2: splits.mix.sources", notTables + "[])"},
		{"[splits.mix]\nsources = [\n{tokens = 'a', weight = 1},\n{tokens = 'a'}]", "2: splits.mix.sources.1", noWeight},

		{train + "[[splits.train.sources]]\ntokens = 'a'\nweight = 1", "2: splits.train.tokens", both},
		{train + "sources.weight = 1", "3: splits.train.sources.weight", stray},
		{train + "weight = 1", "3: splits.train.weight", "unknown key; weight belongs in [[splits.X.sources]]"},
	} {
		wantError(t, "config.toml:"+test.at+": "+test.want, test.text)
	}

	for _, test := range []struct{ set, want string }{
		{`splits.mix.sources=x`, "--set splits.mix.sources: " + notTables + `"x")`},
		{`splits.mix.sources=[{weight = 1}]`, "--set splits.mix.sources.0: " + noTokens},
		{`splits.train.sources.0.weight=1`, "--set splits.train.sources.0.weight: " + stray},
		{`splits.train.sources=[{tokens = "a", weight = 1}]`, "config.toml:2: splits.train.tokens: " + both},
	} {
		wantError(t, test.want, train, test.set)
	}
}

func TestSet(t *testing.T) {
	const text = train + "order = 'sequential'\n[batch]\nseed = 1\nrank = 0\n[splits.val]\nseed = 2\ntokens = 'v.bin'"
	tokens := func(c *Config) any { return c.Splits[0].Tokens }
	seeds := func(c *Config) any { return []uint64{c.Splits[0].Seed, c.Splits[1].Seed} }
	for _, test := range []struct {
		sets []string
		get  func(*Config) any
		want any
	}{
		// Keys of the split take precedence over those of [batch], and those over the defaults.
		// --set overrides all of them.
		{nil, seeds, []uint64{1, 2}},
		{[]string{"batch.seed=7"}, seeds, []uint64{7, 2}},
		{[]string{"splits.train.seed=7"}, seeds, []uint64{7, 2}},
		{[]string{"splits.train.seed=7", "batch.seed=8"}, seeds, []uint64{7, 2}},
		{[]string{"splits.val.seed=7", "splits.val.seed=8"}, seeds, []uint64{1, 8}},
		{[]string{"batch={seed=7}", "splits.val={seed=8}"}, seeds, []uint64{7, 8}},
		{[]string{"batch.seed=0x10", "splits.val.seed = 1_000"}, seeds, []uint64{16, 1000}},

		{[]string{"batch.order=torch-2.6"}, func(c *Config) any { return c.Splits[1].Order }, sampler.Torch26},
		{[]string{"splits.train.on_change=follow"}, func(c *Config) any {
			return c.Splits[0].OnChange + " " + c.Splits[1].OnChange
		}, "follow error"},
		{[]string{"batch.token_dtype=uint32", "batch.torch_state=rng.bin", "splits.val.token_dtype=uint16"}, func(c *Config) any {
			a, b := c.Splits[0], c.Splits[1]
			return fmt.Sprintf("%s %s %s %s", a.TokenDType, a.StateFile, b.TokenDType, b.StateFile)
		}, "uint32 rng.bin uint16 rng.bin"},
		{[]string{"batch.vocab_size=7", "splits.val.vocab_size=8"}, func(c *Config) any {
			return append(c.Splits[0].VocabSizes(), c.Splits[1].VocabSizes()...)
		}, []int64{7, 8}},
		{[]string{"splits.a={vocab_size=7, sources=[{tokens='a', weight=1}, {tokens='b', weight=1, vocab_size=8}]}"}, func(c *Config) any {
			return c.Splits[2].VocabSizes()
		}, []int64{7, 8}},
		{[]string{`splits.train.order="random"`}, func(c *Config) any { return string(c.Splits[0].Order) }, "random"},
		{[]string{"splits.train.join=true"}, func(c *Config) any { return c.Splits[0].Join }, true},
		{[]string{"memory.access=pread"}, func(c *Config) any { return string(c.Memory.Access) }, "pread"},
		{[]string{"mount.allow_other=true", "mount.mode=0440", "mount.uid=0", "mount.gid=4294967294", "mount.timeout=1.5s", "mount.grace=0s",
			"mount.settings_per_user=7"},
			func(c *Config) any { return c.Mount }, Mount{true, 0o440, 0, 4294967294, 1500 * time.Millisecond, 0, 7, netip.AddrPort{}}},
		{[]string{"mountpoint=/m n"}, func(c *Config) any { return c.Mountpoint }, "/m n"},

		{[]string{`splits.train.tokens=["b.bin", 'c.bin']`}, tokens, []string{"b.bin", "c.bin"}},
		{[]string{"splits.train.tokens=b[12].bin"}, tokens, []string{"b[12].bin"}},
		{[]string{"splits.train.tokens=a#b=c.bin"}, tokens, []string{"a#b=c.bin"}},
		{[]string{"splits.train.tokens=1#b.bin"}, tokens, []string{"1#b.bin"}},
		{[]string{`splits.train.tokens=['b#1.bin'] # copied from a file`}, tokens, []string{"b#1.bin"}},
		{[]string{`splits.train.tokens='b#1.bin' # copied from a file`}, tokens, []string{"b#1.bin"}},
		{[]string{`splits.train.tokens=["b#1.bin", 'c.bin']`}, tokens, []string{"b#1.bin", "c.bin"}},
		{[]string{`splits.train.tokens=it's "b".bin`}, tokens, []string{`it's "b".bin`}},
		{[]string{"splits.train.tokens=b\nc.bin"}, tokens, []string{"b\nc.bin"}},
		{[]string{`splits.train.tokens=b\c.bin`}, tokens, []string{`b\c.bin`}},
		{[]string{"splits.train.tokens=\xff.bin"}, tokens, []string{"\xff.bin"}}, // not UTF-8
		{[]string{"splits.train.tokens= 2024 "}, tokens, []string{"2024"}},
		{[]string{"splits.train.tokens=true"}, tokens, []string{"true"}},
		{[]string{"store.region=1.0", "store.cache_dir=2026-11-29"}, func(c *Config) any { return c.Store.Region + " " + c.Store.CacheDir }, "1.0 2026-11-29"},
		{[]string{"splits.m.sources=[{tokens='a', weight=1}, {tokens='b', weight=1}]", "splits.m.source=1"}, func(c *Config) any { return c.Splits[2].Only }, 2},
		{[]string{"mount.mode=440"}, func(c *Config) any { return c.Mount.Mode }, uint32(0o440)},

		{[]string{"splits.a.tokens=x", "splits.val.tokens=y"}, func(c *Config) any {
			var all []string
			for _, s := range c.Splits {
				all = append(all, fmt.Sprintf("%s %s %d", s.Name, s.Tokens, s.Seed))
			}
			return all
		}, []string{"train [a.bin] 1", "val [y] 2", "a [x] 1"}},
	} {
		c, err := decodeText(text, test.sets...)
		if err != nil {
			t.Errorf("--set %q: %v", test.sets, err)
		} else if got := test.get(c); !reflect.DeepEqual(got, test.want) {
			t.Errorf("--set %q: got %v, want %v", test.sets, got, test.want)
		}
	}
}

// All ways to write sources are equivalent, and a later list replaces an earlier one.
func TestSources(t *testing.T) {
	want := []Source{{"0", []string{"a.bin"}, 0.5, 0, 0, nil}, {"web", []string{"a.bin"}, 3, 1.5, 65, nil}}
	const list = `[{tokens = "a.bin", weight = 0.5}, {name = "web", weight = 3, max_epochs = 1.5, tokens = ["a.bin"], vocab_size = 65}]`
	const other = "[[splits.mix.sources]]\ntokens = 'x.bin'\nweight = 1\n"
	for _, test := range []struct {
		text string
		sets []string
	}{
		{testfiles.Mixture("weight = 0.5", "weight = 3\nvocab_size = 65\nname = 'web'\nmax_epochs = 1.5"), nil},
		{"[splits.mix]\nsources = " + list, nil},
		{"splits.mix = {sources = " + list + "}", nil},
		{"", []string{"splits.mix.sources=" + list}},
		{other, []string{"splits.mix.sources = " + list}},
		{"", []string{`splits.mix.sources=[{tokens = "y.bin", weight = 1}]`, "splits.mix.sources=" + list}},
	} {
		c, err := decodeText(test.text, test.sets...)
		if err != nil {
			t.Errorf("%q, --set %q: %v", test.text, test.sets, err)
		} else if got := c.Splits[0]; !reflect.DeepEqual(got.Sources, want) || got.Name != "mix" || got.Tokens != nil {
			t.Errorf("%q, --set %q: %+v", test.text, test.sets, got)
		}
	}
}

func TestTokenFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	const dir = "it's [mine]*" // looks like a glob
	for _, name := range []string{"b.bin", "a.bin", "[ab].bin", "c/1.bin", "c/0.bin"} {
		testfiles.Write(t, map[string]string{filepath.Join(dir, name): ""})
	}
	wd, err := os.Getwd()
	testfiles.NoError(t, err)
	file := filepath.Join(dir, "config.toml")
	const name = "it's [mine]*/config.toml:2: splits.a.tokens: "
	for _, test := range []struct {
		tokens string // value in config.toml
		set    string // value in --set
		want   []string
		err    string
	}{
		{tokens: `"a.bin"`, want: []string{dir + "/a.bin"}},
		{tokens: `"./c/../a.bin"`, want: []string{dir + "/a.bin"}},
		{tokens: `"none.bin"`, want: []string{dir + "/none.bin"}}, // fails when it is opened
		{tokens: `"[ab].bin"`, want: []string{dir + "/[ab].bin"}},
		{tokens: `"?.bin"`, want: []string{dir + "/a.bin", dir + "/b.bin"}},
		{tokens: `["c/*.bin", "b.bin"]`, want: []string{dir + "/c/0.bin", dir + "/c/1.bin", dir + "/b.bin"}},
		{tokens: `"/none"`, want: []string{"/none"}},
		{tokens: `"` + wd + `/*/b.bin"`, want: []string{wd + "/" + dir + "/b.bin"}},
		{tokens: `"x*.bin"`, err: name + `must name files that exist (got "` + dir + `/x*.bin", which matches none)`},
		{tokens: `"x["`, err: name + `must be a path or a glob: syntax error in pattern (got "x[")`},
		{set: "a.bin", want: []string{"a.bin"}},
		{set: "*/a.bin", want: []string{dir + "/a.bin"}},
		{set: "*.bin", err: `--set splits.a.tokens: must name files that exist (got "*.bin", which matches none)`},
	} {
		text, sets := "[splits.a]\n", []string(nil)
		if test.tokens != "" {
			text += "tokens = " + test.tokens
		} else {
			sets = []string{"splits.a.tokens=" + test.set}
		}
		testfiles.Write(t, map[string]string{file: text})
		c, err := decodeFile(file, sets)
		testfiles.NoError(t, err)
		got, err := c.Splits[0].Files(nil)
		printed, printErr := decodePrinted(t, c).Splits[0].Files(nil)
		if exists := !strings.Contains(test.tokens, "none.bin"); err == nil && exists && (printErr != nil || !reflect.DeepEqual(printed, got)) {
			t.Errorf("%s%s: the printed configuration reads %v, %v, want %v", test.tokens, test.set, printed, printErr, got)
		}
		for i, path := range test.want {
			if !filepath.IsAbs(path) {
				test.want[i] = filepath.Join(wd, path)
			}
		}
		if !slices.Equal(got[0].Main, test.want) || fmt.Sprint(err) != cmp.Or(test.err, "<nil>") {
			t.Errorf("%s%s:\n got %q, %v\nwant %q, %s", test.tokens, test.set, got[0].Main, err, test.want, test.err)
		}
	}

	// Paths are relative to the configuration file, or to the working directory if set with --set.
	testfiles.Write(t, map[string]string{file: "mountpoint = 'm'\n" + train + "torch_state = 'no.bin'\n[splits.val]\ntokens = 'b'\ntorch_state = 'rng.bin'"})
	if c, err := decodeFile(file, []string{"splits.train.torch_state=rng.bin"}); err != nil || c.Mountpoint != dir+"/m" ||
		c.Splits[0].StateFile != "rng.bin" || c.Splits[1].StateFile != dir+"/rng.bin" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := decodeFile("none.toml", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// decodePrinted returns the configuration of a file in the working directory with c.Text().
func decodePrinted(t testing.TB, c *Config) *Config {
	t.Helper()
	text, err := c.Text()
	testfiles.NoError(t, err)
	printed, err := RawConfig{"printed.toml", text, nil}.Decode()
	testfiles.NoError(t, err)
	return printed
}

// FuzzConfig checks that accepted configurations are valid, and that errors name a line or --set.
func FuzzConfig(f *testing.F) {
	reference, err := os.ReadFile("../../../config.toml")
	testfiles.NoError(f, err)
	f.Add(string(reference), "splits.val.order=sequential")
	for _, text := range []string{
		"", "a = [", "a = \"\"\"\n", "\"a\\u0000b\" = '''\r\n'''", "[[splits.a]]\nx = {y = 1}", "batch = {seed = 1,\n rank = 2}",
		"[[splits.a.sources]]\ntokens = 'a'\nweight = 1\n\n[[splits.a.sources]]\ntokens = ['b']\nweight = inf",
		"splits.a.sources = [{tokens = 'a', weight = 1},\n{weight = 2}]", "splits.a.sources.weight = 1",
		"[splits.a]\ntokens = 'a'\nlayout = 'rows'\ntoken_dtype = 'float16'\nshape = [3]\n[[splits.a.arrays]]\nname = 'm'\nfiles = 'b'",
		"[splits.a]\ntokens = 'a'\neot = 0\nrows = 'packed'\ndtype = 'int64'\nmask_targets = true\ndocuments = true\nformat = 'npy'",
		"splits.a = {tokens = ['a', \"b\"]}", "[splits.\"a b\"]\ntokens = 'x'\nseed = 0x7f # c", "a = 2024-01-01T00:00:00Z",
	} {
		f.Add(text, "batch.seed=7")
		f.Add(text, "splits.a.tokens=[\"x\", 'y']")
		f.Add(train, text)
	}
	prefix := regexp.MustCompile(`(?s)\A(?:config\.toml:([1-9][0-9]*): .|--set )`)
	f.Fuzz(func(t *testing.T, text, set string) {
		c, err := decodeText(text, set)
		again, errAgain := decodeText(text, set)
		if fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Fatalf("once %v, then %v", err, errAgain)
		}
		if err != nil {
			found := prefix.FindStringSubmatch(err.Error())
			if found == nil {
				t.Fatalf("does not say where: %v", err)
			}
			if line, _ := strconv.Atoi(found[1]); line > 1+strings.Count(text, "\n") {
				t.Fatalf("no such line: %v", err)
			}
			return
		}
		checkValid(t, c)
		if c.Mountpoint != again.Mountpoint || c.Memory != again.Memory || c.Mount != again.Mount || c.Log != again.Log || len(c.Splits) != len(again.Splits) {
			t.Fatalf("once %+v, then %+v", c, again)
		}
		for i, s := range c.Splits {
			if a, b := withoutLocations(s), withoutLocations(again.Splits[i]); !reflect.DeepEqual(a, b) {
				t.Fatalf("once %+v, then %+v", a, b)
			}
		}
	})
}

// checkValid checks the constraints between keys, and those that the kernel and the file tree rely
// on.
func checkValid(t testing.TB, c *Config) {
	t.Helper()
	names := map[string]bool{}
	check := func(ok bool, what string, value any) {
		t.Helper()
		if !ok {
			t.Errorf("accepted: %s %v", what, value)
		}
	}
	m := c.Mount
	check(m.Mode&^0o444 == 0, "mode", m.Mode)
	check(min(m.UID, m.GID) >= 0 && max(m.UID, m.GID) < math.MaxUint32, "uid, gid", m)
	check(m.Timeout >= 100*time.Millisecond && m.Grace >= 0 && max(m.Timeout, m.Grace) <= 24*time.Hour, "durations", m)
	for _, s := range c.Splits {
		check(!names[s.Name] && regexp.MustCompile(`\A[^./=,\x00-\x1f\x7f][^/=,\x00-\x1f\x7f]{0,99}\z`).MatchString(s.Name), "name", s.Name)
		check(!slices.Contains(strings.Fields("README status.json metrics"), s.Name), "name", s.Name)
		names[s.Name] = true
		check((len(s.Tokens) > 0) != (len(s.Sources) > 0), "tokens and sources", s.Tokens)
		for _, source := range s.sources() {
			check(!slices.Contains(source.Tokens, "") && (len(s.Sources) == 0 || source.Weight > 0 && !math.IsInf(source.Weight, 0)), "source", source)
		}
		check(s.BatchSize >= 1 && s.World >= 1 && s.BatchSize*s.World <= 1<<24, "batch_size, world", []int{s.BatchSize, s.World})
		check(s.BlockSize >= 1 && s.BlockSize <= 1<<31, "block_size", s.BlockSize)
		check(s.Rank >= 0 && s.Rank < s.World, "rank", s.Rank)
		check(s.ShuffleBlock == 0 && s.LocalWorld == 1 || s.ShuffleBlock >= 64<<10 && s.ShuffleBlock <= 1<<40 && s.Order == sampler.Shuffle &&
			s.Rows == sampler.Windows && s.World%s.LocalWorld == 0, "shuffle_block, local_world", []any{s.ShuffleBlock, s.LocalWorld, s.World, s.Order})
		check(s.Seed < 1<<63 && s.Start < 1<<40 && s.Steps <= 1<<40, "seed, start, steps", []uint64{s.Seed, s.Start, s.Steps})
		for _, b := range s.Aligned {
			check(len(b.Files) > 0 && regexp.MustCompile(`\A[a-z0-9_]{1,32}\z`).MatchString(b.Name), "array", b)
		}
	}
}

func decodeFile(file string, sets []string) (*Config, error) {
	raw, err := (&Flags{Config: file, Sets: sets}).Read()
	if err != nil {
		return nil, err
	}
	return raw.decode("")
}
