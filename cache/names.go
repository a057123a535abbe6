package cache

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// openBlob opens the blob with a name, looks whether it can be read at any position, and returns its identity and content,
// which the caller closes. previous is the blob that had this name before, or nil: see openFile.
func openBlob(path string, previous *tracked) (Identity, content, error) {
	return openFile(path, previous)
}

// newBlob returns the blob that had an identity and a sample when it was opened earlier. It does not touch it.
func newBlob(path []byte, id Identity, sample Sample, access Access, dropPageCache bool) (Blob, error) {
	return newFile(string(path), id, sample, access, dropPageCache)
}

// Resolve returns the absolute paths of the files that patterns name, in the order of the patterns. A pattern is a path or a
// glob of [filepath.Match], relative to dir unless it is absolute; dir itself is never a glob. The matches of a glob are in
// alphabetical order. A pattern without wildcards, or one that is the very name of a file, is a path and need not exist.
//
// The error says of a pattern that it is no glob, or that it matches no file.
func Resolve(dir string, patterns []string) (paths []string, err error) {
	for _, pattern := range patterns {
		path, glob := pattern, pattern
		if !filepath.IsAbs(pattern) {
			path, glob = filepath.Join(dir, pattern), filepath.Join(EscapeGlob(dir), pattern)
		}
		// A file may have the characters of a glob in its name.
		if _, err := os.Lstat(path); err == nil || !strings.ContainsAny(pattern, `*?[`) {
			paths = append(paths, path)
			continue
		}
		matches, err := filepath.Glob(glob)
		if err != nil {
			return nil, fmt.Errorf("must be a path or a glob: %w (got %q)", err, pattern)
		}
		if len(matches) == 0 {
			return nil, fmt.Errorf("must name files that exist (got %q, which matches none)", path)
		}
		paths = append(paths, matches...)
	}
	for i, path := range paths {
		if paths[i], err = filepath.Abs(path); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// EscapeGlob returns a glob that matches path and nothing else.
func EscapeGlob(path string) string {
	var b []byte
	for _, c := range []byte(path) {
		if slices.Contains([]byte(`*?[\`), c) {
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return string(b)
}
