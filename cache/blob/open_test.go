package blob

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"batchfs/cache/store"
)

func TestResolve(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	const dir = "it's [mine]*"
	must(t, os.MkdirAll(dir+"/c", 0o700))
	for _, name := range []string{"a.bin", "b.bin", "[ab].bin", "c/1.bin", "c/0.bin"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for _, test := range []struct {
		dir      string
		patterns []string
		want     []string // relative to dir unless absolute
		err      string
	}{
		{dir, nil, nil, ""},
		{dir, []string{"a.bin"}, []string{dir + "/a.bin"}, ""},
		{dir, []string{"./c/../a.bin"}, []string{dir + "/a.bin"}, ""},
		// opening it will report the error
		{dir, []string{"none.bin"}, []string{dir + "/none.bin"}, ""},
		{dir, []string{"[ab].bin"}, []string{dir + "/[ab].bin"}, ""},
		{dir, []string{"?.bin"}, []string{dir + "/a.bin", dir + "/b.bin"}, ""},
		{dir, []string{"c/*.bin", "b.bin", "c/1.bin"}, []string{dir + "/c/0.bin", dir + "/c/1.bin", dir + "/b.bin", dir + "/c/1.bin"}, ""},
		{dir, []string{"/none"}, []string{"/none"}, ""},
		{dir, []string{here + "/*/b.bin"}, []string{dir + "/b.bin"}, ""},
		{filepath.Join(here, dir), []string{"?.bin"}, []string{dir + "/a.bin", dir + "/b.bin"}, ""},
		{"", []string{"a.bin"}, []string{"a.bin"}, ""},
		{"", []string{"*/a.bin"}, []string{dir + "/a.bin"}, ""},
		{dir, []string{"a.bin", "x*.bin"}, nil, `must name files that exist (got "` + dir + `/x*.bin", which matches none)`},
		{"", []string{here + "/**/b.bin"}, nil, "must be a path or a glob without **: write one * for each directory, as in data/*/*.bin, or list several globs (got \"" + here + "/**/b.bin\")"},
		{dir, []string{"x["}, nil, `must be a path or a glob: syntax error in pattern (got "x[")`},
		{"", []string{"*.bin"}, nil, `must name files that exist (got "*.bin", which matches none)`},
	} {
		got, _, err := Resolve(test.dir, test.patterns, nil)
		if test.err != "" {
			if err == nil || err.Error() != test.err {
				t.Errorf("%q: error %v, want %s", test.patterns, err, test.err)
			}
			continue
		}
		must(t, err)
		for i, path := range test.want {
			if !filepath.IsAbs(path) {
				test.want[i] = filepath.Join(here, path)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%q in %q: %q, want %q", test.patterns, test.dir, got, test.want)
		}
	}
}

// The sizes of files that only globs match are known. Globs leave out empty directories.
func TestMatchedFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, size := range map[string]int{"a": 0, "b": 3, "folder/c": 1} {
		must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		must(t, os.WriteFile(name, make([]byte, size), 0o600))
	}
	must(t, os.Mkdir("empty", 0o700))
	for patterns, want := range map[string][2]string{
		"?":        {"a b", "map[a:0 b:3]"},
		"a ?":      {"a a b", "map[b:3]"},
		"? b a":    {"a b b a", "map[]"},
		"*":        {"a b folder", "map[a:0 b:3]"},
		"*/c none": {"folder/c none", "map[folder/c:1]"},
	} {
		paths, matched, err := Resolve("", strings.Fields(patterns), nil)
		must(t, err)
		here, err := os.Getwd()
		must(t, err)
		if got := strings.ReplaceAll(fmt.Sprint(strings.Join(paths, " "), matched), here+"/", ""); got != want[0]+want[1] {
			t.Errorf("%s: %s, want %s", patterns, got, want)
		}
	}
	if _, _, err := Resolve("", []string{"empt*"}, nil); err == nil {
		t.Error("a glob matches an empty directory")
	}
}

// A glob of objects leaves out those that stand for folders, which are empty and end in a slash.
func TestFolderMarkersAreNoTokens(t *testing.T) {
	sizes := map[string]int{"web/": 0, "web/a": 2, "web/b": 0, "web/sub/": 0, "web/sub/c": 4, "odd/": 3, "web/.c": 2, ".web/d": 2}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "<ListBucketResult><IsTruncated>false</IsTruncated>")
		for _, key := range slices.Sorted(maps.Keys(sizes)) {
			if strings.HasPrefix(key, r.URL.Query().Get("prefix")) {
				fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>%d</Size></Contents>", key, sizes[key])
			}
		}
		fmt.Fprint(w, "</ListBucketResult>")
	}))
	defer server.Close()
	remote := &Remote{Store: store.Options{Endpoint: server.URL, Region: "us-east-1", PathStyle: true, Anonymous: true, Timeout: time.Minute}}
	for pattern, want := range map[string]string{
		"web/*": "map[web/a:2 web/b:0]", "web/*/*": "map[web/sub/c:4]", "*/*": "map[odd/:3 web/a:2 web/b:0]", "web/sub*/": "", "web/s*": "", "web/a": "map[]",
	} {
		_, matched, err := Resolve("", []string{"s3://bucket/" + pattern}, remote)
		if got := strings.ReplaceAll(fmt.Sprint(matched), "s3://bucket/", ""); (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("%s: %s, %v; want %s", pattern, got, err, want)
		}
	}
}

// Wildcards don't match the dot that begins a name.
func TestGlobsSkipHiddenNames(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"a", ".DS_Store", ".cache/b", ".cache/.c", "d/e", "d/.e.crc"} {
		must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		must(t, os.WriteFile(name, []byte{1}, 0o600))
	}
	here, err := os.Getwd()
	must(t, err)
	for pattern, want := range map[string]string{
		"*": "a d", "?*": "a d", "[.a]*": "a", "*/*": "d/e", ".cache/*": ".cache/b", ".c*/*": ".cache/b", "d/.*": "d/.e.crc", "*/.*": "d/.e.crc", `\.D*`: ".DS_Store",
		here + "/./d/../*": "a d",
	} {
		paths, _, err := Resolve("", []string{pattern}, nil)
		must(t, err)
		if got := strings.ReplaceAll(strings.Join(paths, " "), here+"/", ""); got != want {
			t.Errorf("%s: %s, want %s", pattern, got, want)
		}
	}
	if _, _, err := Resolve("", []string{"*_Store"}, nil); err == nil {
		t.Error("a wildcard matches a dot")
	}
}

func TestEscapeGlob(t *testing.T) {
	for _, name := range []string{"plain", "*", "?", "[a]", "[", "]", `\`, `\*`, "a-b", "ä\xff", ""} {
		if ok, err := filepath.Match(EscapeGlob(name), name); !ok || err != nil {
			t.Errorf("%q does not match %q: %v", EscapeGlob(name), name, err)
		}
		if ok, _ := filepath.Match(EscapeGlob(name), "a"); ok {
			t.Errorf("%q matches a", EscapeGlob(name))
		}
	}
}
