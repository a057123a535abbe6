package prepare

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A text is one input file.
type text struct {
	path   string
	info   fs.FileInfo
	tokens int64 // known after corpus.count
}

// findTexts resolves the arguments of the command, in their order.
func findTexts(args []string) ([]text, error) {
	var paths []string
	for _, arg := range args {
		names := []string{arg}
		// A name that exists is that file, even with a * or a [ in it.
		if _, err := os.Lstat(arg); err != nil && strings.ContainsAny(arg, "*?[") {
			if names, err = filepath.Glob(arg); err != nil {
				return nil, fmt.Errorf("%s: %w", arg, err)
			}
			if !strings.HasPrefix(filepath.Base(arg), ".") { // as a shell does, and Glob does not
				names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(filepath.Base(name), ".") })
			}
			if len(names) == 0 {
				return nil, fmt.Errorf("%s: matches no file: check the pattern, and where it is looked for", arg)
			}
		}
		for _, name := range names {
			below, err := filesBelow(name)
			if err != nil {
				return nil, err
			}
			paths = append(paths, below...)
		}
	}
	var texts []text
	seen := map[string]bool{}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s: is not a regular file, and a text is read twice: save it to a file first", path)
		case seen[path]:
			return nil, fmt.Errorf("%s: is named twice: name each text once", path)
		}
		seen[path] = true
		texts = append(texts, text{path: path, info: info})
	}
	return texts, nil
}

// filesBelow returns the regular files below a directory, sorted by path, or the name itself if it is no directory.
func filesBelow(name string) ([]string, error) {
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return []string{filepath.Clean(name)}, err
	}
	var paths []string
	root := name + "/" // the slash takes WalkDir through a symbolic link
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != root && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			paths = append(paths, path)
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s: no file below it, not counting symbolic links and names that begin with \".\"", name)
	}
	slices.Sort(paths) // WalkDir has a/x before a.txt
	return paths, err
}

// checkOutput refuses an output path that is a text, a directory, or a file that is not to be replaced.
func checkOutput(path string, texts []text, force bool) error {
	info, err := os.Stat(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("--out: %w", err)
	}
	if i := slices.IndexFunc(texts, func(t text) bool { return os.SameFile(t.info, info) }); i >= 0 {
		return fmt.Errorf("%s: is a text and would be written too: name the texts one by one, or choose another --out", texts[i].path)
	}
	if info.IsDir() {
		return fmt.Errorf("%s: is a directory, where a file is to be written: choose another --out", path)
	}
	if !force {
		return fmt.Errorf("%s: exists: give --force to replace it, or choose another --out", path)
	}
	return nil
}
