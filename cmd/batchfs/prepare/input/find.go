package input

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"batchfs/cache/blob"
	"batchfs/cache/store"
)

// Find returns the inputs that the arguments name, in their order, and the side files that it
// left out. Directories are restricted to files that match include, if it is not empty. If as is
// empty, the format of each file depends on its name. The argument - stands for stdin. If remote is
// nil, no argument may name objects.
func Find(args, include []string, as Format, stdin io.Reader, remote *Stores) (
	inputs []*File, leftOut []string, err error,
) {
	for _, pattern := range include {
		if !doublestar.ValidatePathPattern(pattern) {
			return nil, nil, fmt.Errorf("--include %s: %w", pattern, doublestar.ErrBadPattern)
		}
	}
	type name struct {
		path string
		arg  int
	}
	given := make(map[string]name) // keyed by the path without symbolic links
	for i, arg := range args {
		objects := map[string]store.Object{} // by URL
		var paths, left []string
		if remote != nil && blob.IsRemote(arg) {
			paths, left, err = remote.argumentObjects(arg, include, objects)
		} else {
			paths, left, err = argumentFiles(arg, include)
		}
		if err != nil {
			return nil, nil, err
		}
		leftOut = append(leftOut, left...)
		for _, path := range paths {
			in := &File{Path: path, Format: as, AsText: as == Text}
			if in.Format == "" {
				in.Format = formatOf(path)
			}
			if path == "-" {
				in.Stdin = stdin
			} else if o, ok := objects[path]; ok {
				err = remote.find(in, o)
			} else {
				err = in.Stat()
			}
			if err != nil {
				return nil, nil, err
			}
			real, err := realPath(path)
			if err != nil {
				real = path // standard input, or an open pipe below /dev/fd
			}
			first, again := given[real]
			switch {
			case !again:
				given[real] = name{path, i}
				inputs = append(inputs, in)
			case first.arg != i && first.path == path:
				return nil, nil, fmt.Errorf("%s: is given twice: name each text once", path)
			case first.arg != i:
				return nil, nil, fmt.Errorf("%s: is given twice, because it leads to the same file as %s: name each text once", path, first.path)
			}
		}
	}
	return inputs, leftOut, nil
}

// realPath returns the absolute path of a file, with all symbolic links resolved.
func realPath(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path) // the result may be relative
	if err != nil {
		return "", err
	}
	return filepath.Abs(real)
}

// ResolveParents returns a path that filepath.Clean does not change into a path to another file. If
// link is a symbolic link, link/.. is the directory above its target, but Clean returns the
// directory of link.
func ResolveParents(path string) string {
	i := strings.LastIndex(path+"/", "/../")
	if i < 0 {
		return path
	}
	parent := path[:i+len("/..")]
	real, err := filepath.EvalSymlinks(parent)
	if err != nil {
		return path
	}
	meant, errMeant := os.Stat(parent)
	cleaned, errCleaned := os.Stat(filepath.Clean(parent))
	if errMeant == nil && errCleaned == nil && os.SameFile(meant, cleaned) {
		return path
	}
	return real + path[len(parent):]
}

// statInput calls os.Stat, which follows symbolic links. If the path contains a link whose target
// does not exist, the error names the link and the target, and is not fs.ErrNotExist.
func statInput(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	for link := path; errors.Is(err, fs.ErrNotExist) && link != filepath.Dir(link); link = filepath.Dir(link) {
		if _, exists := os.Stat(link); exists == nil {
			break
		}
		if to, _ := os.Readlink(link); to != "" {
			err = fmt.Errorf("%s: is a symbolic link to %s, which does not exist: restore that file, or remove the link", link, to)
		}
	}
	return info, err
}

// argumentFiles returns the paths of the files that an argument selects, itself or through its
// directories, and the paths of the side files that were left out.
func argumentFiles(arg string, include []string) (paths, leftOut []string, err error) {
	arg = ResolveParents(arg)
	names := []string{arg}
	// An existing name is not a pattern, even if it contains * or [.
	_, err = os.Lstat(arg)
	switch {
	case arg == "-":
		return names, nil, nil
	case err != nil && blob.IsURL(arg) && !blob.IsRemote(arg):
		return nil, nil, fmt.Errorf("%s: is not in a store that speaks S3, whose URLs begin with s3:// or gs://: download it, or, "+
			"without --plan, pipe it to standard input", arg)
	case err != nil && blob.IsURL(arg):
		return nil, nil, fmt.Errorf("%s: prepare reads from a store only with --plan: make a plan, name local files, or pipe the text to standard input", arg)
	case err != nil && strings.ContainsAny(arg, "*?["):
		if names, err = glob(arg); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", arg, err)
		}
		if len(names) == 0 {
			return nil, nil, fmt.Errorf("%s: matches no file: check the pattern and the current directory", arg)
		}
	}
	for _, name := range names {
		name = filepath.Clean(name)
		dir := name
		info, err := statInput(name)
		if err == nil && !info.IsDir() {
			dir = filepath.Dir(name)
		}
		switch {
		case err != nil:
			return nil, nil, err
		case !strings.Contains(arg, "blobs") && filepath.Base(dir) == "blobs" && isHubRepository(filepath.Dir(dir)):
			return nil, nil, hubRepositoryError(filepath.Dir(dir))
		case !info.IsDir():
			paths = append(paths, name)
			continue
		}
		below, err := filesBelow(name, include)
		if err != nil {
			return nil, nil, err
		}
		paths = append(paths, below...)
	}
	paths, leftOut = leaveOutSideFiles(paths, include)
	return paths, leftOut, nil
}

// glob returns the files and directories that a pattern matches, sorted. ** matches any number of
// directories. As in a shell, wildcards do not match a leading ".".
func glob(pattern string) ([]string, error) {
	options := []doublestar.GlobOption{doublestar.WithNoHidden(), doublestar.WithFailOnIOErrors()}
	// ** also matches the files below each directory, so returning the directory too would list
	// them twice.
	if strings.Contains(pattern, "**") {
		options = append(options, doublestar.WithFilesOnly())
	}
	root, pattern := doublestar.SplitPattern(filepath.Clean(pattern))
	names, err := doublestar.Glob(newTree(root), pattern, options...)
	for i, name := range names {
		names[i] = filepath.Join(root, name)
	}
	// A pipe is left out, because opening it would wait for a writer.
	names = slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Stat(name)
		return err == nil && !info.Mode().IsRegular() && !info.IsDir()
	})
	slices.Sort(names)
	return names, err
}

// filesBelow returns the regular files in a directory tree that match include, sorted by path.
func filesBelow(dir string, include []string) (paths []string, err error) {
	err = fs.WalkDir(newTree(dir), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != "." && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.IsDir() && isHubRepository(filepath.Join(dir, path)):
			return hubRepositoryError(filepath.Join(dir, path))
		case (d.Type().IsRegular() || d.Type() == fs.ModeSymlink) && included(path, include):
			paths = append(paths, filepath.Join(dir, path))
		case d.Type() == fs.ModeSymlink && mayBeDirectory(path):
			_, err = statInput(filepath.Join(dir, path))
			return err
		}
		return nil
	})
	slices.Sort(paths) // WalkDir visits a/x before a.txt
	switch {
	case err == nil && len(paths) == 0 && len(include) > 0:
		err = fmt.Errorf("%s: no file in this directory matches --include %s", dir, strings.Join(include, " --include "))
	case err == nil && len(paths) == 0:
		err = fmt.Errorf("%s: no file in this directory, apart from names that begin with \".\"", dir)
	}
	return paths, err
}

// leaveOutSideFiles removes the side files from paths if there is a dataset among them. It keeps a
// side file that a pattern of include matches, unless the same pattern also matches a dataset.
func leaveOutSideFiles(paths, include []string) (kept, leftOut []string) {
	var dataset []string
	for _, path := range paths {
		if isDataset(path) {
			dataset = append(dataset, path)
		}
	}
	for _, path := range paths {
		isNamed := func(pattern string) bool {
			last := func(path string) bool {
				return doublestar.PathMatchUnvalidated(filepath.Base(pattern), filepath.Base(path))
			}
			return last(path) && !slices.ContainsFunc(dataset, last)
		}
		if len(dataset) > 0 && isSideFile(path) && !slices.ContainsFunc(include, isNamed) {
			leftOut = append(leftOut, path)
		} else {
			kept = append(kept, path)
		}
	}
	return kept, leftOut
}

// isDataset reports whether a file holds many documents, going by its name.
func isDataset(path string) bool {
	return !isSideFile(path) && formatOf(path) != Text
}

// isSideFile reports whether a file only describes a dataset, going by its name: a README of the
// Hugging Face Hub, for example, or the state.json that the datasets library writes.
func isSideFile(path string) bool {
	switch filepath.Base(path) {
	case "README", "README.md", "README.txt", "LICENSE", "LICENSE.md", "LICENSE.txt",
		"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json":
		return true
	}
	// Under locks, the datasets library writes to its cache.
	return isResultCache(path) || filepath.Ext(path) == ".lock"
}

// isResultCache reports whether a file holds what map or filter of the datasets library made of a
// dataset, going by its name. It is next to the dataset, in the library's cache.
func isResultCache(path string) bool {
	return strings.HasPrefix(filepath.Base(path), "cache-") && filepath.Ext(path) == ".arrow"
}

// included reports whether a path matches at least one pattern, or there are no patterns. A pattern
// without a slash applies to the last element of the path.
func included(path string, patterns []string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		if !strings.Contains(pattern, "/") {
			pattern = "**/" + pattern
		}
		return doublestar.PathMatchUnvalidated(pattern, path)
	})
}

// ChooseVal puts the inputs that match a pattern, unless it is empty, into val.
func ChooseVal(inputs []*File, pattern string) error {
	if pattern == "" {
		return nil
	}
	if !doublestar.ValidatePathPattern(pattern) {
		return fmt.Errorf("--val-files %s: %w", pattern, doublestar.ErrBadPattern)
	}
	chosen := 0
	for _, in := range inputs {
		if in.Val = included(in.Path, []string{pattern}); in.Val {
			chosen++
		}
	}
	switch chosen {
	case 0:
		return fmt.Errorf("--val-files %s: matches no input: use a pattern for names, such as 'val_*', or for whole paths, such as '%s'",
			pattern, inputs[len(inputs)-1].Path)
	case len(inputs):
		return fmt.Errorf("--val-files %s: matches all inputs and leaves none for train: use a narrower pattern, or name more texts", pattern)
	}
	return nil
}

// A tree is a directory tree that presents each symbolic link as its target, so that a walk follows
// links. A link without a target remains a link.
//
// So that every walk ends, a tree omits links to directories that contain them, and links that a
// walk has already reached on another path.
type tree struct {
	root     string
	real     map[string]string // result of EvalSymlinks for each directory, keyed by name
	followed map[string]string // names of followed links, keyed by real directory and base name
}

func newTree(root string) *tree {
	return &tree{root, make(map[string]string), make(map[string]string)}
}

func (t *tree) path(name string) string { return filepath.Join(t.root, name) }

func (t *tree) Open(name string) (fs.File, error) { return os.Open(t.path(name)) }

// Stat opens nothing, because opening a pipe would wait for a writer.
func (t *tree) Stat(name string) (fs.FileInfo, error) {
	if mayBeDirectory(name) {
		return statInput(t.path(name))
	}
	return os.Stat(t.path(name))
}

func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(t.path(name))
	if err != nil {
		if _, isDangling := statInput(t.path(name)); isDangling != nil {
			err = isDangling
		}
		return nil, err
	}
	kept := entries[:0]
	for _, e := range entries {
		if e.Type() == fs.ModeSymlink {
			link := path.Join(name, e.Name())
			info, err := t.Stat(link)
			if err == nil {
				e = fs.FileInfoToDirEntry(info)
			}
			if err == nil && info.IsDir() && !t.follow(link) {
				continue
			}
		}
		kept = append(kept, e)
	}
	return kept, nil
}

// follow reports whether a walk should follow a link to a directory.
func (t *tree) follow(link string) bool {
	real := filepath.Join(t.realPath(path.Dir(link)), path.Base(link))
	if first, ok := t.followed[real]; ok {
		return first == link
	}
	to := t.realPath(link)
	for above := link; above != "."; {
		above = path.Dir(above)
		if t.realPath(above) == to {
			return false
		}
	}
	t.followed[real] = link
	return true
}

// realPath returns the path of a directory, with all symbolic links resolved.
func (t *tree) realPath(name string) string {
	real, ok := t.real[name]
	if !ok {
		real, _ = realPath(t.path(name))
		t.real[name] = real
	}
	return real
}

// mayBeDirectory reports whether a dangling link may have led to a directory, going by its name. If
// so, skipping the link could lose files.
func mayBeDirectory(name string) bool { return fileExtension(name) == "" }

// isHubRepository reports whether a directory is a repository in the cache of the Hugging Face Hub.
// Such a repository stores its files by hash, and only its snapshots have their names.
func isHubRepository(dir string) bool {
	isDir := func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err == nil && info.IsDir()
	}
	return isDir("blobs") && isDir("snapshots")
}

// hubRepositoryError returns an error that suggests the current snapshot of a repository.
func hubRepositoryError(dir string) error {
	snapshot, newest := "", time.Time{}
	revisions, _ := os.ReadDir(filepath.Join(dir, "snapshots"))
	main, _ := os.ReadFile(filepath.Join(dir, "refs/main"))
	for _, r := range revisions {
		if r.Name() == strings.TrimSpace(string(main)) {
			snapshot = r.Name()
			break
		}
		if info, err := r.Info(); err == nil && info.ModTime().After(newest) {
			snapshot, newest = r.Name(), info.ModTime()
		}
	}
	if snapshot == "" {
		return fmt.Errorf("%s: is a repository in the cache of the Hugging Face Hub, without a snapshot: download it again", dir)
	}
	return fmt.Errorf("%s: is a repository in the cache of the Hugging Face Hub, which may hold several versions: name one, such as %s",
		dir, filepath.Join(dir, "snapshots", snapshot))
}
