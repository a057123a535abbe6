package e2e

import (
	"path"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A changeLog records changes, and says at which one to kill a process.
type changeLog struct {
	paths  map[uint64]string // path of each inode below the root
	made   []string          // changes since killAt was set
	killAt int               // number of a change, counted from 1; 0 for none
	killed bool              // whether the process was killed, so that nothing may change
}

// change delays a change and records it. If it kills the process, it returns an error.
func (s *slowServer) change(request string, header *fuse.InHeader, names ...string) fuse.Status {
	if status := s.countAndDelay(request); !status.Ok() {
		return status
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	log := &s.changes
	if !log.killed && len(log.made)+1 == log.killAt {
		log.killed = true
		syscall.Kill(int(header.Pid), syscall.SIGKILL)
	}
	if log.killed {
		return fuse.EIO
	}
	words := request
	if len(names) == 0 {
		words += " " + log.paths[header.NodeId]
	}
	for _, name := range names {
		words += " " + name
	}
	log.made = append(log.made, words)
	return fuse.OK
}

// pathOf returns the path of a name in a directory.
func (s *slowServer) pathOf(directory uint64, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return path.Join(s.changes.paths[directory], name)
}

func (s *slowServer) setPath(inode uint64, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes.paths[inode] = path
}

func (s *slowServer) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	path := s.pathOf(in.NodeId, name)
	status := s.change("create", &in.InHeader, path)
	if status.Ok() {
		status = s.RawFileSystem.Create(cancel, in, name, out)
		s.setPath(out.NodeId, path)
	}
	return status
}

func (s *slowServer) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	path := s.pathOf(in.NodeId, name)
	status := s.change("mkdir", &in.InHeader, path)
	if status.Ok() {
		status = s.RawFileSystem.Mkdir(cancel, in, name, out)
		s.setPath(out.NodeId, path)
	}
	return status
}

func (s *slowServer) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	from, to := s.pathOf(in.NodeId, oldName), s.pathOf(in.Newdir, newName)
	status := s.change("rename", &in.InHeader, from, to)
	if status.Ok() {
		status = s.RawFileSystem.Rename(cancel, in, oldName, newName)
	}
	return status
}

func (s *slowServer) Unlink(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	status := s.change("unlink", header, s.pathOf(header.NodeId, name))
	if status.Ok() {
		status = s.RawFileSystem.Unlink(cancel, header, name)
	}
	return status
}

func (s *slowServer) Rmdir(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	status := s.change("rmdir", header, s.pathOf(header.NodeId, name))
	if status.Ok() {
		status = s.RawFileSystem.Rmdir(cancel, header, name)
	}
	return status
}

func (s *slowServer) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	if status := s.change("write", &in.InHeader); !status.Ok() {
		return 0, status
	}
	return s.RawFileSystem.Writev(cancel, in, data)
}

func (s *slowServer) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	status := s.change("setattr", &in.InHeader)
	if status.Ok() {
		status = s.RawFileSystem.SetAttr(cancel, in, out)
	}
	return status
}

// Fsync leaves the file in the page cache, to save time.
func (s *slowServer) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return s.change("fsync", &in.InHeader)
}

func (s *slowServer) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return s.change("fsyncdir", &in.InHeader)
}
