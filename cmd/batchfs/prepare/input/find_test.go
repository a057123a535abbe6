package input

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"batchfs/cache/store"
	"batchfs/cmd/batchfs/internal/testfiles"
)

// links makes symbolic links, given as pairs of a path and what it leads to.
func links(t *testing.T, pairs ...string) {
	t.Helper()
	for pair := range slices.Chunk(pairs, 2) {
		testfiles.NoError(t, os.MkdirAll(filepath.Dir(pair[0]), 0o755))
		testfiles.NoError(t, os.Symlink(pair[1], pair[0]))
	}
}

// foundPaths returns the paths of inputs, and of the side files that were left out, as one line.
func foundPaths(args string, include ...string) string {
	inputs, leftOut, err := Find(strings.Fields(args), include, "", nil, nil)
	if err != nil {
		return err.Error()
	}
	var paths []string
	for _, in := range inputs {
		paths = append(paths, in.Path)
	}
	found := strings.Join(paths, " ")
	if len(leftOut) > 0 {
		found += " without " + strings.Join(leftOut, " ")
	}
	return found
}

// A link counts as what it leads to, and each file counts once for an argument.
func TestFindFollowsLinks(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a/1.txt": "", "a/s/2.txt": "", "b/3.txt": "", "out/4.txt": "", "f/x.txt": "", "f/y.txt": ""})
	links(t,
		"a/3.txt", "../b/3.txt", // a file
		"a/up", "..", // a directory that contains the link
		"b/a", "../a", // a directory that leads back here through up
		"c/d", "../a/s", "c/e", "../a/s", // a directory, twice
		"c/one.txt", "../a/1.txt", "c/two.txt", "one.txt", // a link to a link
		"self/self", ".", "self/1.txt", "../a/1.txt",
		"h/.hidden", "../a", "h/1.txt", "../a/1.txt",
		"root", "a/s",
		"f/z.txt", "x.txt", // a file beside the link
	)
	here, err := os.Getwd()
	testfiles.NoError(t, err)
	links(t, "abs/1.txt", here+"/a/1.txt", "abs/2.txt", "../a/1.txt", "abs/self", here+"/abs", "abs/s", here+"/a/s", "abs/t", "../a/s")
	for args, want := range map[string]string{
		"a/s":               "a/s/2.txt",
		"root":              "root/2.txt",
		"root/":             "root/2.txt",
		"c":                 "c/d/2.txt c/one.txt",
		"c/*.txt":           "c/one.txt",
		"c/*":               "c/d/2.txt c/one.txt",
		"c/*/2.txt":         "c/d/2.txt",
		"c/e/*.txt":         "c/e/2.txt",
		"c/**/*.txt":        "c/d/2.txt c/one.txt",
		"c/{e,d}/*.txt":     "c/d/2.txt",
		"self":              "self/1.txt",
		"h":                 "h/1.txt",
		"f":                 "f/x.txt f/y.txt",
		"f/[xz].txt":        "f/x.txt",
		"c/two.txt":         "c/two.txt",
		"c/two.txt root":    "c/two.txt root/2.txt",
		"a/1.txt c":         "c/one.txt: is given twice, because it leads to the same file as a/1.txt: name each text once",
		"root a/s":          "a/s/2.txt: is given twice, because it leads to the same file as root/2.txt: name each text once",
		"abs":               "abs/1.txt abs/s/2.txt",
		"abs/**/*.txt":      "abs/1.txt abs/s/2.txt",
		"abs a/1.txt":       "a/1.txt: is given twice, because it leads to the same file as abs/1.txt: name each text once",
		"f/x.txt ./f/x.txt": "f/x.txt: is given twice: name each text once",
	} {
		if got := foundPaths(args); got != want {
			t.Errorf("%s: found %s, want %s", args, got, want)
		}
	}
	// These lead into each other, so each has all files, once.
	for _, arg := range []string{"a", "b", "a/**", "b/**/*.txt", "a/up"} {
		inputs, _, err := Find([]string{arg}, nil, "", nil, nil)
		testfiles.NoError(t, err)
		var names []string
		for _, in := range inputs {
			names = append(names, filepath.Base(in.Path))
		}
		slices.Sort(names)
		if got, want := strings.Join(names, " "), "1.txt 2.txt 3.txt 4.txt x.txt y.txt"; got != want {
			t.Errorf("%s: found %s, want %s", arg, got, want)
		}
	}
}

// Many directories with links to each other are searched in time that does not grow with the number
// of paths.
func TestFindEndsWithManyLinks(t *testing.T) {
	const n = 12
	testfiles.WriteHere(t, nil)
	for i := range n {
		dir := "d" + string(rune('A'+i))
		testfiles.Write(t, map[string]string{dir + "/" + dir: ""})
		for j := range n {
			links(t, dir+"/l"+string(rune('A'+j)), "../d"+string(rune('A'+j)))
		}
	}
	for _, args := range []string{".", "dA", "**", "**/d*"} {
		if got := len(strings.Fields(foundPaths(args))); got != n {
			t.Errorf("%s: found %d files, want %d", args, got, n)
		}
	}
}

// A link that leads nowhere is an error that names it, if it would be read.
func TestFindNamesDanglingLinks(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a/1.txt": ""})
	links(t, "a/2.txt", "blobs/2", "a/.3", "gone", "loop/1", "1")
	const want = "a/2.txt: is a symbolic link to blobs/2, which does not exist: restore that file, or remove the link"
	for _, args := range []string{"a", "a/*.txt", "a/**", "a/2.txt", "a/1.txt a/2.txt"} {
		if got := foundPaths(args); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	if got := foundPaths("a", "1*"); got != "a/1.txt" {
		t.Errorf("with another --include: %s", got)
	}
	links(t, "b/1", "../a", "b/2", "gone", "c.txt", "gone/c.txt")
	testfiles.NoError(t, os.Remove("a/2.txt"))
	for args, include := range map[string]string{"b": "*.txt", "b/*/*.txt": "", "b/**/*.txt": "", "b/?/1.txt": "", "b/2/*.txt": "", "b/2/1.txt": ""} {
		if got, want := foundPaths(args, strings.Fields(include)...), "b/2: is a symbolic link to gone,"; !strings.Contains(got, want) {
			t.Errorf("%s, a link that may be that of a directory: %s", args, got)
		}
	}
	if got := foundPaths("loop"); !strings.HasPrefix(got, "stat loop/1: too many") {
		t.Errorf("a link to itself: %s", got)
	}
}

// The cache of the Hugging Face Hub keeps files under their hashes, and links to them under their
// names.
func TestFindInHubCache(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{
		"hub/datasets--x/blobs/aa": "{}", "hub/datasets--x/blobs/bb": "{}", "hub/datasets--x/blobs/cc": "# x", "hub/datasets--x/refs/main": "r1\n",
		"hub/datasets--y/blobs/dd": "{}", "hub/datasets--y/snapshots/r3/d.jsonl": "", "empty/blobs/aa": "",
	})
	links(t,
		"hub/datasets--x/snapshots/r1/data/a.jsonl", "../../../blobs/aa",
		"hub/datasets--x/snapshots/r1/data/b.jsonl", "../../../blobs/bb",
		"hub/datasets--x/snapshots/r1/README.md", "../../blobs/cc",
		"hub/datasets--x/snapshots/r2/data/a.jsonl", "../../../blobs/aa")
	testfiles.NoError(t, os.Mkdir("empty/snapshots", 0o755))
	const x = "hub/datasets--x"
	for args, want := range map[string]string{
		x + "/snapshots/r1":             x + "/snapshots/r1/data/a.jsonl " + x + "/snapshots/r1/data/b.jsonl without " + x + "/snapshots/r1/README.md",
		x + "/snapshots/r1/data":        x + "/snapshots/r1/data/a.jsonl " + x + "/snapshots/r1/data/b.jsonl",
		x + "/snapshots/*/data/*.jsonl": x + "/snapshots/r1/data/a.jsonl " + x + "/snapshots/r1/data/b.jsonl",
		"hub/*/snapshots/r1/data/a*":    x + "/snapshots/r1/data/a.jsonl",
		x:                               x + ": is a repository in the cache of the Hugging Face Hub, which may hold several versions: name one, such as " + x + "/snapshots/r1",
		x + "/**/*.jsonl":               x + "/snapshots/r1/data/a.jsonl " + x + "/snapshots/r1/data/b.jsonl",
		x + "/*":                        x + ": is a repository in the cache of the Hugging Face Hub, which may hold several versions: name one, such as " + x + "/snapshots/r1",
		x + "/**":                       x + ": is a repository in the cache of the Hugging Face Hub, which may hold several versions: name one, such as " + x + "/snapshots/r1",
		"hub/datasets--y":               "hub/datasets--y: is a repository in the cache of the Hugging Face Hub, which may hold several versions: name one, such as hub/datasets--y/snapshots/r3",
		"hub":                           x + ": is a repository in the cache of the Hugging Face Hub, which may hold several versions: name one, such as " + x + "/snapshots/r1",
		"empty":                         "empty: is a repository in the cache of the Hugging Face Hub, without a snapshot: download it again",
	} {
		if got := foundPaths(args); got != want {
			t.Errorf("%s: %s\nwant %s", args, got, want)
		}
	}
}

// In a directory with a dataset, the files that describe it are no documents unless --include names
// them.
func TestFindLeavesOutSideFiles(t *testing.T) {
	side := []string{"LICENSE", "README.md", "c4_builder.lock", "cache-12ab.arrow", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"}
	for data, left := range map[string]bool{
		"a.jsonl": true, "b.json": true, "c.ndjson.zst": true, "d.parquet": true, "e.arrow": true, "sub/d.parquet": true,
		"a.txt": false, "notes.md": false, "a.txt.gz": false,
	} {
		files := map[string]string{data: ""}
		for _, name := range side {
			files[name] = ""
		}
		testfiles.WriteHere(t, files)
		want := data + " without " + strings.Join(side, " ")
		if !left {
			want = strings.Join(slices.Sorted(maps.Keys(files)), " ")
		}
		if got := foundPaths("."); got != want {
			t.Errorf("%s", got)
		}
		if got, want := foundPaths(".", "README.md", "*"+filepath.Base(data)), []string{"README.md", data}; got != strings.Join(slices.Sorted(slices.Values(want)), " ") {
			t.Errorf("with --include: %s", got)
		}
		for _, got := range []string{foundPaths("*"), foundPaths("**"), foundPaths(".", "*")} {
			if got != want {
				t.Errorf("with a pattern for all files: %s", got)
			}
		}
		if got := foundPaths("LICENSE ./" + data); got != "LICENSE "+data {
			t.Errorf("named: %s", got)
		}
	}
}

// In a store, as in a directory, patterns of --include begin below the prefix, and an existing name
// is not a pattern.
func TestFindObjects(t *testing.T) {
	keys := []string{"in/b.jsonl", "in/en/", "in/en/a.jsonl", "in/x1.txt", "in/x[1", "in/x[1].txt", "in/x[1].txt.gz"}
	s := &Stores{clients: map[string]*store.Client{"s3": {}}, listed: map[string][]store.Object{}}
	for _, prefix := range []string{"in", "in/", "in/x"} {
		for _, key := range keys {
			size := int64(1)
			if strings.HasSuffix(key, "/") {
				size = 0
			}
			if strings.HasPrefix(key, prefix) {
				s.listed["s3://b/"+prefix] = append(s.listed["s3://b/"+prefix], store.Object{Scheme: "s3", Bucket: "b", Key: key, Size: size})
			}
		}
	}
	for _, test := range []struct{ url, include, want string }{
		{"s3://b/in", "en/*.jsonl", "in/en/a.jsonl"},
		{"s3://b/in/", "*.jsonl", "in/b.jsonl in/en/a.jsonl"},
		{"s3://b/in", "in/en/*.jsonl", "s3://b/in: no object below this prefix matches --include in/en/*.jsonl"},
		{"s3://b/in/x[1].txt", "", "in/x[1].txt"},
		{"s3://b/in/x[1", "", "in/x[1"},
		{"s3://b/in/x[12].*", "", "in/x1.txt"},
		{"s3://b/in/x[1.txt", "", "s3://b/in/x[1.txt: syntax error in pattern"},
	} {
		var include, got []string
		if test.include != "" {
			include = []string{test.include}
		}
		found, err := s.objects(test.url, include)
		for _, o := range found {
			got = append(got, o.Key)
		}
		if err != nil {
			got = append(got, err.Error())
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s, --include %q: %q, want %q", test.url, test.include, got, test.want)
		}
	}
}

// A text that has changed since it was found is an error, even if its size is the same.
func TestPrepareChangedText(t *testing.T) {
	testfiles.WriteHere(t, map[string]string{"a": "abc"})
	for _, now := range []string{"longer", "xyz"} {
		inputs, _, err := Find([]string{"a"}, nil, "", nil, nil)
		testfiles.NoError(t, err)
		testfiles.Write(t, map[string]string{"a": now})
		later := time.Now().Add(time.Second)
		testfiles.NoError(t, os.Chtimes("a", later, later))
		if _, err := inputs[0].Open(0, func(int) {}); err == nil || !strings.Contains(err.Error(), "changed while prepare read it") {
			t.Errorf("error %v, want one that says that it changed", err)
		}
	}
}
