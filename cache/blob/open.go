package blob

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"batchfs/cache/localfile"
)

// Open opens a blob and returns its stamp and its content, which the caller must close. previous
// is the blob that had this name before, or nil: see [localfile.Open].
func Open(path string, previous Blob, remote *Remote) (localfile.Stamp, Content, error) {
	if IsRemote(path) {
		return remote.openObject(path)
	}
	file, _ := previous.(*localfile.File)
	return localfile.Open(path, file)
}

// New returns the blob that had this stamp and sample when it was opened earlier, without
// accessing it. Of o, only DropPageCache matters to an object.
func New(path []byte, stamp localfile.Stamp, sample localfile.Sample, o localfile.Options, remote *Remote) (Blob, error) {
	if IsRemote(string(path)) {
		return remote.newStoreBlob(string(path), stamp, sample, o.DropPageCache)
	}
	return localfile.New(string(path), stamp, sample, o)
}

// Resolve returns the absolute paths and the URLs that patterns match, in the order of the
// patterns. The matches of one pattern are sorted. matched maps each of them that only globs match
// to its size in bytes, if that is known.
//
// A pattern is a path or a glob (see [filepath.Match]), relative to dir, which is never a glob
// itself. Without wildcards, it is a path and need not exist; with wildcards, it is a path if that
// is exactly the name of a file. A pattern that begins with s3:// or gs:// names objects, and what
// follows the bucket is a glob (see [path.Match]). A glob does not match empty directories, nor the
// empty objects that stand for folders in a bucket. Resolve fails if a pattern is malformed, has an
// element **, which other programs match with any number of directories, or matches nothing.
func Resolve(dir string, patterns []string, remote *Remote) (paths []string, matched map[string]int64, err error) {
	var named []string
	matched = map[string]int64{}
	for _, pattern := range patterns {
		var names []string
		var sizes map[string]int64
		switch {
		case slices.Contains(strings.Split(pattern, "/"), "**"):
			err = fmt.Errorf("must be a path or a glob without **: write one * for each directory, as in data/*/*.bin, or list several globs "+
				"(got %q)", pattern)
		case IsRemote(pattern):
			names, sizes, err = remote.resolve(pattern)
		default:
			names, sizes, err = resolveLocal(dir, pattern)
		}
		if err != nil {
			return nil, nil, err
		}
		paths = append(paths, names...)
		if sizes == nil {
			named = append(named, names...)
		}
		maps.Copy(matched, sizes)
	}
	for _, path := range named {
		delete(matched, path)
	}
	return paths, matched, nil
}

// resolveLocal returns the paths that a pattern matches, and their sizes in bytes if it is a glob.
func resolveLocal(dir, pattern string) (paths []string, sizes map[string]int64, err error) {
	path, glob := pattern, pattern
	if !filepath.IsAbs(pattern) {
		path, glob = filepath.Join(dir, pattern), filepath.Join(EscapeGlob(dir), pattern)
	}
	// Names of files may contain wildcards.
	if _, err := os.Lstat(path); err == nil || !isGlob(pattern) {
		path, err = filepath.Abs(path)
		return []string{path}, nil, err
	}
	matches, err := filepath.Glob(glob)
	if err != nil {
		return nil, nil, fmt.Errorf("must be a path or a glob: %w (got %q)", err, pattern)
	}
	sizes = map[string]int64{}
	for _, match := range matches {
		if isHidden(filepath.Clean(glob), match) {
			continue
		}
		if match, err = filepath.Abs(match); err != nil {
			return nil, nil, err
		}
		switch info, err := os.Stat(match); {
		case err != nil: // opening it will report the error
		case info.IsDir():
			if entries, err := os.ReadDir(match); err == nil && len(entries) == 0 {
				continue
			}
		default:
			sizes[match] = info.Size()
		}
		paths = append(paths, match)
	}
	if len(paths) == 0 {
		return nil, nil, fmt.Errorf("must name files that exist (got %q, which matches none)", path)
	}
	return paths, sizes, nil
}

// JoinAll returns patterns that are relative to dir as patterns that are relative to what dir is
// relative to, and match the same files.
func JoinAll(dir string, patterns []string) []string {
	joined := slices.Clone(patterns)
	for i, pattern := range patterns {
		if IsRemote(pattern) || filepath.IsAbs(pattern) {
			continue
		}
		joined[i] = filepath.Join(dir, pattern)
		if _, err := os.Lstat(joined[i]); err != nil && isGlob(pattern) {
			joined[i] = filepath.Join(EscapeGlob(dir), pattern)
		}
	}
	return joined
}

// isHidden reports whether a glob matches path only because a wildcard matches the dot that begins
// a name, as in .DS_Store. In shells and in Python, wildcards don't.
func isHidden(glob, path string) bool {
	patterns := strings.Split(glob, "/")
	for i, name := range strings.Split(path, "/") {
		if strings.HasPrefix(name, ".") && i < len(patterns) && !strings.HasPrefix(strings.TrimPrefix(patterns[i], `\`), ".") {
			return true
		}
	}
	return false
}

func isGlob(pattern string) bool { return strings.ContainsAny(pattern, `*?[`) }

// EscapeGlob returns a glob that matches only path.
func EscapeGlob(path string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(path)
}
