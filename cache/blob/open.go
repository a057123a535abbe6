package blob

import (
	"fmt"
	"os"
	"path/filepath"
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
// accessing it. For access and dropPageCache, see [localfile.New].
func New(path []byte, stamp localfile.Stamp, sample localfile.Sample, access localfile.Access, dropPageCache bool, remote *Remote) (Blob, error) {
	if IsRemote(string(path)) {
		return remote.newStoreBlob(string(path), stamp, sample, dropPageCache)
	}
	return localfile.New(string(path), stamp, sample, access, dropPageCache)
}

// Resolve returns the absolute paths and the URLs that patterns match, in the order of the
// patterns. The matches of one pattern are sorted.
//
// A pattern is a path or a glob (see [filepath.Match]), relative to dir, which is never a glob
// itself. Without wildcards, it is a path and need not exist; with wildcards, it is a path if that
// is exactly the name of a file. A pattern that begins with s3:// or gs:// names objects, and what
// follows the bucket is a glob (see [path.Match]). Resolve fails if a pattern is malformed or
// matches nothing.
func Resolve(dir string, patterns []string, remote *Remote) (paths []string, err error) {
	for _, pattern := range patterns {
		if IsRemote(pattern) {
			names, err := remote.resolve(pattern)
			if err != nil {
				return nil, err
			}
			paths = append(paths, names...)
			continue
		}
		path, glob := pattern, pattern
		if !filepath.IsAbs(pattern) {
			path, glob = filepath.Join(dir, pattern), filepath.Join(EscapeGlob(dir), pattern)
		}
		// Names of files may contain wildcards.
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
		if !IsRemote(path) {
			if paths[i], err = filepath.Abs(path); err != nil {
				return nil, err
			}
		}
	}
	return paths, nil
}

// EscapeGlob returns a glob that matches only path.
func EscapeGlob(path string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(path)
}
