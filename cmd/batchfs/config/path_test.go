package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/sampler"
)

func baseSplit(t testing.TB, text string) *Split {
	t.Helper()
	c, err := decodeText("[splits.train]\ntokens = 'a.bin'\n" + text)
	testfiles.NoError(t, err)
	return c.Splits[0]
}

// under returns the split with the settings of a path of nested settings directories, such as
// "rank=1/world=2".
func under(s *Split, path string) (*Split, error) {
	for dir := range strings.SplitSeq(path, "/") {
		var err error
		if s, err = s.With(dir); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// All paths with the same settings have the same canonical path.
func TestPathsHaveOneName(t *testing.T) {
	base := baseSplit(t, "seed = 7\nworld = 2\nsteps = 5\ndtype = 'uint16'")
	for name, paths := range map[string][]string{
		"train": {
			"seed=7", "rank=0", "world=2,rank=0", "seed=8/seed=7", "order=shuffle/seed=8/order=random,seed=7", "rank=1/rank=0",
			"steps=5",
			"batch_size=12,block_size=1024,dtype=uint16,layout=xy,order=random,rank=0,seed=7,start=0,steps=5,world=2",
		},
		"train/rank=3,world=8": {
			"rank=3,world=8", "world=8,rank=3", "world=8/rank=3", "seed=1/rank=1/world=8,seed=7/rank=3", "rank=03,world=+8",
			"rank=3,world=8,seed=7",
		},
		"train/order=shuffle,shuffle_block=64MiB": {
			"shuffle_block=65536KiB,order=shuffle", "order=shuffle/shuffle_block=67108864,local_world=1", "shuffle_block=1GiB,order=shuffle/shuffle_block=064MiB",
		},
		"train/order=shuffle,shuffle_block=65537": {"shuffle_block=65537,order=shuffle"},
		"train/order=shuffle":                     {"order=shuffle,shuffle_block=0", "order=shuffle,shuffle_block=1GiB/shuffle_block=0"},
		"train/order=torch-2.6,steps=6":           {"steps=6,order=torch-2.6", "order=torch/steps=6/order=torch-2.6"},
	} {
		for _, path := range paths {
			s, err := under(base, path)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			} else if s.Path() != name {
				t.Errorf("%s: has the name %s, want %s", path, s.Path(), name)
			}
		}
	}
	if base.Path() != "train" {
		t.Errorf("the split has the name %s", base.Path())
	}
}

// The kernel limits a path component to 255 bytes, and fs a sequence's name to 352: 100 for the
// split, a slash, and less than 250 for the settings.
func TestLongestName(t *testing.T) {
	longest := map[string]any{
		"batch_size": 16777216, "block_size": 2147483648, "dtype": "uint16", "layout": "tokens", "order": sampler.Sequential, "rank": 16777215,
		"seed": int64(9223372036854775807), "start": 1099511627775, "steps": 1099511627776, "world": 16777216, "local_world": 16777216, "shuffle_block": 1099511627775,
	}
	base := baseSplit(t, "")
	if keys := len(base.Values()); len(longest) != keys { // source is left out
		t.Errorf("%d of %d keys", len(longest), keys)
	}
	if n := len(JoinSettings(longest)); n >= 250 {
		t.Errorf("settings of %d bytes: %s", n, JoinSettings(longest))
	}
	base.Name = strings.Repeat("x", 100)
	// Without these changes, the combination of settings would be rejected.
	longest["batch_size"], longest["order"] = 1, sampler.Shuffle
	s, err := base.With(JoinSettings(longest))
	testfiles.NoError(t, err)
	if n := len(s.Path()); n >= 100+1+250 {
		t.Errorf("%d bytes: %s", n, s.Path())
	}
	s.Tokens, s.Sources = nil, []Source{{Name: strings.Repeat("x", 32), Weight: 1}}
	if _, err := s.With("source=" + s.Sources[0].Name); err == nil || !strings.Contains(err.Error(), "at most 344 are supported") {
		t.Errorf("a longer path than the shared memory holds: %v", err)
	}
}

// A source has one path, and its name is never taken as a number.
func TestOnlySource(t *testing.T) {
	c, err := decodeText("[splits.mix]\nsources = [{tokens = 'a.bin', weight = 1}, {name = '00', tokens = 'b.bin', weight = 0}]")
	testfiles.NoError(t, err)
	for path, only := range map[string]int{"source=0": 1, "source=00": 2, "rank=0/source=00": 2, "source=0/source=00": 2, "seed=1337": 0} {
		s, err := under(c.Splits[0], path)
		testfiles.NoError(t, err)
		if again, err := c.Splits[0].With(strings.TrimPrefix(s.Path(), "mix/")); s.Only != only || only > 0 && (err != nil || again.Only != only) {
			t.Errorf("%s: source %d of %s, %v", path, s.Only-1, s.Path(), err)
		}
	}
	const want = `mix/source=1: source: split mix has no source "1"; its sources are 0, 00`
	if _, err := c.Splits[0].With("source=1"); fmt.Sprint(err) != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestPathErrors(t *testing.T) {
	const (
		sixteen = "must be a whole number from 0 to 16777215 (got "
		orders  = "must be random, shuffle, sequential, torch or torch-2.6 (got "
		sizes   = `must be 0, or a size from 64KiB to 1024GiB, as in "64MiB", or a number of bytes (got `
	)
	base := baseSplit(t, "world = 4")
	for _, test := range []struct{ path, want string }{
		{"rank=", "rank: " + sixteen + `"")`},
		{"rank=١", "rank: " + sixteen + `"١")`},
		{"rank={rank}", "rank: " + sixteen + `"{rank}")`}, // a Python f-string without the f
		{"rank=16777216", "rank: " + sixteen + "16777216)"},
		{"seed=9223372036854775808", `seed: must be a whole number from 0 to 9223372036854775807 (got "9223372036854775808")`},
		{"order=\xff", "order: " + orders + `"\xff")`},
		{"order=shuffle,shuffle_block=64MB", "shuffle_block: " + sizes + `"64MB")`},
		{"order=shuffle,shuffle_block=2147483647GiB", "shuffle_block: " + sizes + `"2147483647GiB")`},
		{"shuffle_block=1MiB", `shuffle_block: needs order = "shuffle" (got "random" in splits.train/shuffle_block=1MiB); set that, or shuffle_block = 0`},
		{"local_world=2", "local_world: needs shuffle_block, which gives each host a share of the tokens (got 2 without it in splits.train/local_world=2); set both or neither"},
		{"order=shuffle,shuffle_block=1MiB,local_world=3", "local_world: must divide world, which is 4 in splits.train/local_world=3,order=shuffle,shuffle_block=1MiB (got 3)"},
		{"order=shuffle,shuffle_block=1MiB,world=100000", "world: world / local_world, the number of hosts, must be at most 65536 (got 100000 / 1 in splits.train/order=shuffle,shuffle_block=1MiB,world=100000)"},
		{"rank=1,rank=2", "rank is set twice"},
		{"rank=4", "rank: must be below world, which is 4 in splits.train/rank=4 (got 4)"},
		{"rank=3/world=3", "rank: must be below world, which is 3 in splits.train/rank=3,world=3 (got 3)"},
		{"world=2000000", "batch_size: batch_size times world must be at most 16777216, so that numbers of rows fit in 64 bits (got 12 times 2000000 in splits.train/world=2000000)"},
	} {
		s, err := under(base, test.path)
		want := "train/" + test.path + ": " + test.want
		if err == nil {
			t.Errorf("%q: accepted as %s", test.path, s.Path())
		} else if err.Error() != want || errors.Is(err, syscall.ENOENT) {
			t.Errorf("%q:\n got %s\nwant %s, and not ENOENT", test.path, err, want)
		}
	}
}

func TestUnknownSettingIsNoFile(t *testing.T) {
	base := baseSplit(t, "world = 4")
	for path, key := range map[string]string{
		"": "", "next": "", "=": "", ",": "", "=3": "", "rank=3,": "", ",rank=3": "", "rank=1,,seed=1": "", "rnk=3": "rnk", "Rank=3": "Rank",
		" rank=3": " rank", "ränk=3": "ränk", "\xff=1": "\xff", "a=b": "a", "rank=1,x": "x", "rank=1/rnk=3": "rnk",
		"token_dtype=uint32": "token_dtype", "torch_state=rng.bin": "torch_state", "tokens=a.bin": "tokens", "join=true": "join",
	} {
		_, err := under(base, path)
		want := fmt.Sprintf("train/%s: unknown setting %q; must be one of batch_size, block_size, dtype, layout, local_world, order, rank, "+
			"seed, shuffle_block, source, start, steps, world", path, key)
		if batchTable.find(key) != nil {
			want = fmt.Sprintf("train/%s: %s cannot be set in a path, but only for a whole mount: --set batch.%[1]s, or batchfs.mount(..., %[2]s=...) in Python", path, key)
		}
		if !strings.Contains(path, "=") {
			want = fmt.Sprintf("train/%s: %q is not a setting, such as seed=1; name the split as train, or with settings, of batch_size, block_size, "+
				"dtype, layout, local_world, order, rank, seed, shuffle_block, source, start, steps, world", path, path)
		}
		if !errors.Is(err, syscall.ENOENT) || fmt.Sprint(err) != want {
			t.Errorf("%q:\n got %v\nwant %s, and ENOENT", path, err, want)
		}
	}
}

// FuzzPath checks that accepted settings are valid, do not depend on their order, and have a
// canonical path that leads to them.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"", "=", ",", "rank=3", "rank=3,world=8", "world=8,rank=3,", "rank=03", "rank=+3", "rank=-0", "order=torch-2.6,steps=1",
		"batch_size=4,block_size=2147483648,dtype=native,layout=tokens,order=sequential,rank=1,seed=9223372036854775807,start=1",
		"seed=7,seed=7", "rank=1/rank=0", "start=1099511627775,steps=1099511627776",
		"world=16777216,batch_size=1,rank=16777215", "dtype=uint16", "dtype=int8", "layout=rows", "x=1", "rank=1/2", "\xff=\xff", "steps=5",
	} {
		f.Add(path, "rank=0")
		f.Add("world=4", path)
	}
	base := baseSplit(f, "seed = 7\nworld = 2\nsteps = 5\ndtype = 'native'")
	valid := Default()
	f.Fuzz(func(t *testing.T, first, second string) {
		s, err := base.With(first)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "train/"+first+": ") {
				t.Fatalf("%q: does not name the path: %v", first, err)
			}
			return
		}
		settings := strings.Split(first, ",")
		slices.Reverse(settings)
		if backwards, err := base.With(strings.Join(settings, ",")); err != nil || backwards.Path() != s.Path() {
			t.Fatalf("%q: %v, is not %s", settings, err, s.Path())
		}
		for _, s := range []*Split{s, underOrSame(s, second)} {
			checkValid(t, &Config{Memory: valid.Memory, Mount: valid.Mount, Splits: []*Split{s}})
			again := base
			if _, settings, differs := strings.Cut(s.Path(), "/"); differs {
				if again, err = base.With(settings); err != nil {
					t.Fatalf("%q, %q: %s: %v", first, second, s.Path(), err)
				}
			}
			if again.Path() != s.Path() || !maps.Equal(again.Values(), s.Values()) {
				t.Fatalf("%q, %q: %s is %v, its name makes %s of %v", first, second, s.Path(), s.Values(), again.Path(), again.Values())
			}
			if len(s.Path()) >= 100+1+250 {
				t.Fatalf("%q, %q: the name has %d bytes", first, second, len(s.Path()))
			}
		}
	})
}

func underOrSame(s *Split, path string) *Split {
	if n, err := s.With(path); err == nil {
		return n
	}
	return s
}
