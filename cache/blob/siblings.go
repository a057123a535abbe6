package blob

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"batchfs/cache/store"
)

// Sibling returns the path or URL of the file with this name next to another file.
func Sibling(path, name string) string {
	if IsRemote(path) {
		return path[:strings.LastIndexByte(path, '/')+1] + name
	}
	return filepath.Join(filepath.Dir(path), name)
}

// ReadFile returns the content of a small file or object. The error matches fs.ErrNotExist if there
// is none.
func ReadFile(path string, remote *Remote) ([]byte, error) {
	if !IsRemote(path) {
		return os.ReadFile(path)
	}
	stamp, content, err := remote.openObject(path)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	data := make([]byte, stamp.Size)
	_, err = content.ReadAt(data, 0)
	return data, err
}

// Sizes returns the sizes in bytes of those files that exist, by path, or -1 for a file that may
// exist. It lists each folder of a store once, and looks up no object.
func Sizes(paths []string, remote *Remote) (map[string]int64, error) {
	sizes, listed := map[string]int64{}, map[string]map[string]int64{}
	for _, path := range paths {
		if !IsRemote(path) {
			if info, err := os.Stat(path); err == nil {
				sizes[path] = info.Size()
			} else if !errors.Is(err, fs.ErrNotExist) {
				sizes[path] = -1
			}
			continue
		}
		dir := Sibling(path, "")
		found, known := listed[dir]
		if !known {
			var err error
			found, err = remote.List(dir)
			if errors.Is(err, fs.ErrPermission) {
				remote.Note(dir, "files that vocab.json lists may be missing, because the store may not be listed", err)
			} else if err != nil {
				return nil, err
			}
			listed[dir] = found
		}
		if size, exists := found[strings.TrimPrefix(path, dir)]; exists {
			sizes[path] = size
		} else if found == nil {
			sizes[path] = -1
		}
	}
	return sizes, nil
}

// List returns the sizes in bytes of the objects in a folder, whose URL ends in a slash, by name.
// Names of folders in it end in a slash.
func (r *Remote) List(folder string) (map[string]int64, error) {
	o, _ := store.Parse(folder)
	client, err := r.client(o.Scheme)
	if err != nil {
		return nil, err
	}
	all, err := client.ListFolder(context.Background(), o.Scheme, o.Bucket, o.Key)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, found := range all {
		if found.Key != o.Key {
			sizes[strings.TrimPrefix(found.Key, o.Key)] = found.Size
		}
	}
	return sizes, nil
}

// Note logs a message about a URL, once.
func (r *Remote) Note(url, message string, reason error) {
	if _, known := r.noted.LoadOrStore(url, true); !known {
		r.log().Warn(url+": "+message, "reason", reason)
	}
}
