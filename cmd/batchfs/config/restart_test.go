package config

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

func TestCheckRestart(t *testing.T) {
	const fix = "; to change it, unmount and mount again"
	const mixed = "[[splits.mix.sources]]\ntokens = 'a.bin'\nweight = "
	const more = "\n[[splits.mix.sources]]\ntokens = 'b.bin'\nweight = 1\n"
	const noSource = ": source 0 has the files [a.bin] in the mount, but the configuration has no such source; sources may only be appended: " +
		"put it back in its place, with weight 0 to retire it, or unmount and mount again"
	for _, test := range []struct{ old, new, want string }{
		{train, train, ""},
		{train, "memory.access = 'pread'\nlog.level = 'debug'\nmount.timeout = '1s'\n" + train + "on_change = 'follow'", ""},
		{train, train + "seed = 1337", ""}, // the default
		{train, train + "seed = 7", "splits.train.seed is 1337 in the mount, and the configuration has 7" + fix},
		{train, train + "join = true", "splits.train.join is false in the mount, and the configuration has true" + fix},
		{train + "documents = true", train + "documents = 'files'", "splits.train.documents is true in the mount, and the configuration has files" + fix},
		{train + "documents = 'files'", train + "documents = false", "splits.train.documents is files in the mount, and the configuration has false" + fix},
		{train + "rows = 'packed'", train + "rows = 'packed'\ntoo_long = 'drop'", "splits.train.too_long is cut in the mount, and the configuration has drop" + fix},
		{train, "mount.mode = '0400'\n" + train, "mount.mode is 0444 in the mount, and the configuration has 0400" + fix},
		{train, "mount.grace = '1s'\n" + train, "mount.grace is 10s in the mount, and the configuration has 1s" + fix},
		{train, "mount.metrics_listen = '127.0.0.1:9137'\n" + train, "mount.metrics_listen is none in the mount, and the configuration has 127.0.0.1:9137" + fix},
		{train + "eot = 5", train, "splits.train.eot is 5 in the mount, and the configuration has none" + fix},
		{train, train + "tensor = 'x'", "splits.train.tensor is none in the mount, and the configuration has x" + fix},
		{train, train + "tensor = 'none'", "splits.train.tensor is none in the mount, and the configuration has none" + fix},
		{train, train + "arrays = []", "splits.train.arrays is none in the mount, and the configuration has []" + fix},
		{train, "[splits.train]\ntokens = 'b.bin'", "splits.train.tokens is [a.bin] in the mount, and the configuration has [b.bin]" + fix},
		{train, "[splits.val]\ntokens = 'a.bin'", "splits.train is mounted, but the configuration no longer has it" + fix},
		{train, train + "[splits.val]\ntokens = 'a.bin'", "config.toml:3: splits.val: the mount has no split val" + fix},
		{mixed + "1", mixed + "2" + more, ""},
		{mixed + "1", more + mixed + "1", "config.toml:2: splits.mix.sources" + strings.Replace(noSource, "but the configuration has no such source", "and [b.bin] in the configuration", 1)},
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
		if got := fmt.Sprint(c.CheckRestart(old)); got != test.want && !(test.want == "" && got == "<nil>") {
			t.Errorf("%q, then %q:\n got %s\nwant %s", test.old, test.new, got, test.want)
		}
	}
}

// A restart applies changes to some keys, and names the key of every other change.
func TestRestartOfEachKey(t *testing.T) {
	const file, regenerate = "testdata/restart.txt", "go test ./cmd/batchfs/config -run RestartOfEachKey -update"
	const base = "[batch]\nworld = 4\n" + train + "[[splits.train.arrays]]\nname = 'm'\nfiles = 'm.bin'\n" +
		"[splits.mix]\nsources = [{tokens = 'a.bin', weight = 1}, {tokens = 'b.bin', weight = 1}]\n" +
		"[splits.staged]\nsources = [{tokens = 'a.bin'}, {tokens = 'b.bin'}]\nstages = [{weights = {0 = 1}}, {from_row = 9, weights = {1 = 1}}]\n"
	mounted, err := decodeText(base)
	testfiles.NoError(t, err)
	array := func(keys string) string { return "splits.train.arrays=[{" + keys + "}]" }
	source := func(keys string) string { return "splits.mix.sources=[{" + keys + "}, {tokens = 'b.bin', weight = 1}]" }
	stages := func(keys string) string { return "splits.staged.stages=[{weights = {0 = 1}}, {" + keys + "}]" }
	covered := map[string]bool{}
	var b strings.Builder
	for _, test := range [][]string{
		{"batch_size", "splits.train.batch_size=3"},
		{"block_size", "splits.train.block_size=3"},
		{"format", "splits.train.format=npy"},
		{"tensor", "splits.train.tensor=x"},
		{"token_dtype", "splits.train.token_dtype=uint32"},
		{"shape", "splits.train.shape=[2]", "splits.train.layout=rows"},
		{"vocab_size", "splits.train.vocab_size=9"},
		{"dtype", "splits.train.dtype=int64"},
		{"layout", "splits.train.layout=rows"},
		{"order", "splits.train.order=torch"},
		{"source", "splits.mix.source='1'"},
		{"seed", "splits.train.seed=9"},
		{"torch_state", "splits.train.torch_state=/rng.bin"},
		{"rank", "splits.train.rank=1"},
		{"world", "splits.train.world=2"},
		{"shuffle_block", "splits.train.shuffle_block=8MiB", "splits.train.order=shuffle"},
		{"local_world", "splits.train.local_world=2", "splits.train.order=shuffle", "splits.train.shuffle_block=8MiB"},
		{"documents", "splits.train.documents=files"},
		{"document_numbers", "splits.train.document_numbers=true"},
		{"eot", "splits.train.eot=9"},
		{"bos", "splits.train.bos=9", "splits.train.rows=packed"},
		{"mask_targets", "splits.train.mask_targets=m"},
		{"ignore_index", "splits.train.ignore_index=-1"},
		{"rows", "splits.train.rows=packed"},
		{"too_long", "splits.train.too_long=drop", "splits.train.rows=packed"},
		{"start", "splits.train.start=3"},
		{"steps", "splits.train.steps=3"},
		{"tokens", "splits.train.tokens=b.bin"},
		{"join", "splits.train.join=true"},
		{"on_change", "splits.train.on_change=follow"},
		{"expect_fingerprint", "splits.train.expect_fingerprint=9f86d081884c7d659a2feaa0c55ad015"},
		{"sources", "splits.mix.sources=[{tokens = 'a.bin', weight = 1}]"},
		{"sources", "splits.mix.sources=[{tokens = 'a.bin', weight = 1}, {tokens = 'b.bin', weight = 1}, {tokens = 'c.bin', weight = 1}]"},
		{"sources.name", source("tokens = 'a.bin', weight = 1, name = 'web'")},
		{"sources.tokens", source("tokens = 'c.bin', weight = 1")},
		{"sources.weight", source("tokens = 'a.bin', weight = 2")},
		{"sources.max_epochs", source("tokens = 'a.bin', weight = 1, max_epochs = 2")},
		{"sources.vocab_size", source("tokens = 'a.bin', weight = 1, vocab_size = 9")},
		{"sources.arrays", "splits.mix.sources=[{tokens = 'a.bin', weight = 1, arrays = [{name = 'm', files = 'm.bin'}]}, " +
			"{tokens = 'b.bin', weight = 1, arrays = [{name = 'm', files = 'm.bin'}]}]"},
		{"stages", "splits.staged.stages=[{weights = {0 = 1}}]"},
		{"stages.weights", stages("from_row = 9, weights = {0 = 1, 1 = 1}")},
		{"stages.from_tokens", stages("from_tokens = 9000, weights = {1 = 1}")},
		{"stages.from_row", stages("from_row = 8, weights = {1 = 1}")},
		{"arrays", "splits.train.arrays=[]"},
		{"arrays.name", array("name = 'n', files = 'm.bin'")},
		{"arrays.files", array("name = 'm', files = 'n.bin'")},
		{"arrays.at", array("name = 'm', files = 'm.bin', at = 'x'")},
		{"arrays.format", array("name = 'm', files = 'm.bin', format = 'npy'")},
		{"arrays.tensor", array("name = 'm', files = 'm.bin', tensor = 'x'")},
		{"arrays.dtype", array("name = 'm', files = 'm.bin', dtype = 'uint8'")},
		{"arrays.shape", array("name = 'm', files = 'm.bin', shape = [2]")},
		{"mountpoint", "mountpoint=/b"},
		{"memory.access", "memory.access=pread"},
		{"memory.page_cache", "memory.page_cache=drop"},
		{"memory.ahead", "memory.ahead=3"},
		{"memory.ahead_bytes", "memory.ahead_bytes=3"},
		{"memory.budget", "memory.budget=20000000"},
		{"mount.allow_other", "mount.allow_other=true"},
		{"mount.mode", "mount.mode='0400'"},
		{"mount.uid", "mount.uid=7"},
		{"mount.gid", "mount.gid=7"},
		{"mount.timeout", "mount.timeout=1s"},
		{"mount.settings_per_user", "mount.settings_per_user=9"},
		{"mount.grace", "mount.grace=1s"},
		{"mount.metrics_listen", "mount.metrics_listen=127.0.0.1:9137"},
		{"store.endpoint", "store.endpoint=http://localhost:9000"},
		{"store.region", "store.region=eu-central-1"},
		{"store.path_style", "store.path_style=true"},
		{"store.anonymous", "store.anonymous=true"},
		{"store.cache_dir", "store.cache_dir=/cache"},
		{"store.cache_shared", "store.cache_shared=true"},
		{"store.cache_bytes", "store.cache_bytes=9"},
		{"store.block_bytes", "store.block_bytes=65536"},
		{"log.level", "log.level=warn"},
		{"log.format", "log.format=json"},
	} {
		changed, err := decodeText(base, test[1:]...)
		testfiles.NoError(t, err)
		message := "applied"
		if err := changed.CheckRestart(mounted); err != nil {
			message = regexp.MustCompile(`[ug]id is \d+`).ReplaceAllString(err.Error(), "id is N")
		}
		if covered[test[0]] = true; message == "applied" {
			for _, s := range changed.Splits {
				if old, err := mounted.Named(s.Name); err == nil && !s.HasScheduleOf(old) {
					message = "applied, if no row of " + s.Name + " that was read changes"
				}
			}
		}
		fmt.Fprintf(&b, "%s: %s\n", strings.Join(test[1:], " "), message)
	}
	testfiles.CheckGenerated(t, file, b.String(), regenerate, *update)
	for _, table := range allTables {
		prefix := regexp.MustCompile(`^.*[.[]([a-z]+)\]+$`).ReplaceAllString(table.name, "$1.")
		if table == &batchTable || table == &splitTable || table == &topTable {
			prefix = ""
		}
		for _, k := range table.keys {
			if name := prefix + k.name; !covered[strings.TrimPrefix(name, "splits.")] {
				t.Errorf("no case changes %s", name)
			}
		}
	}
}
