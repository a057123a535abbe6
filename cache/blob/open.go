package blob

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"batchfs/cache/localfile"
)

// Open opens a blob and returns its identity and content, which the caller closes. previous is the
// blob that had this name before, or nil: see [localfile.Open].
func Open(path string, previous Blob, from *Remote) (localfile.Identity, Content, error) {
	if IsRemote(path) {
		return from.openObject(path)
	}
	file, _ := previous.(*localfile.File)
	return localfile.Open(path, file)
}

// New returns the blob that had an identity and a sample when it was opened earlier. It neither
// touches a file nor sends a request. For access and dropPageCache, see [localfile.New].
func New(path []byte, id localfile.Identity, sample localfile.Sample, access localfile.Access, dropPageCache bool, from *Remote) (Blob, error) {
	if IsRemote(string(path)) {
		return from.newStoreBlob(string(path), id, sample, dropPageCache)
	}
	return localfile.New(string(path), id, sample, access, dropPageCache)
}

// Resolve returns the absolute paths of the files that patterns name, in the order of the patterns, those of a glob in alphabetical order.
// A pattern is a path or a glob of [filepath.Match], relative to dir unless it is absolute; dir itself is never a glob. A pattern without
// wildcards, or one that is the very name of a file, is a path and need not exist. One that begins with s3:// or gs:// names objects, and is a
// glob of [path.Match] behind the bucket's name. The error says of a pattern that it is no glob, or that it matches no file.
func Resolve(dir string, patterns []string, from *Remote) (paths []string, err error) {
	for _, pattern := range patterns {
		if IsRemote(pattern) {
			names, err := from.resolve(pattern)
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
		if !IsRemote(path) {
			if paths[i], err = filepath.Abs(path); err != nil {
				return nil, err
			}
		}
	}
	return paths, nil
}

// EscapeGlob returns a glob that matches path and nothing else.
func EscapeGlob(path string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(path)
}
