package blob

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
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
		{dir, []string{"x["}, nil, `must be a path or a glob: syntax error in pattern (got "x[")`},
		{"", []string{"*.bin"}, nil, `must name files that exist (got "*.bin", which matches none)`},
	} {
		got, err := Resolve(test.dir, test.patterns, nil)
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
