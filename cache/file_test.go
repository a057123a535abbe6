package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/cache/array"
)

// What stays resident of a cached file is what Map is for, and nothing under the other accesses.
func TestResident(t *testing.T) {
	const size = 64 << 20
	path := filepath.Join(t.TempDir(), "tokens.bin")
	must(t, os.WriteFile(path, make([]byte, size), 0o600))
	for _, access := range []Access{Remap, Advise, Pread, Map} {
		tokens := open(t, []string{path}, Options{DType: array.Uint16, Access: access})
		before := resident(t)
		ws := make([]array.Window, 16)
		var buf [2048]byte
		for n := range 500 {
			for i := range ws {
				ws[i] = array.Window{Start: int64((n*len(ws)+i)*7919*1024) % (size/2 - 1024), Len: 1024}
			}
			must(t, tokens.Read(ws, func(_ int, raw []byte) error {
				copy(buf[:], raw)
				return nil
			}))
		}
		grown := resident(t) - before
		if access == Map && grown < size/4 || access != Map && grown > 1<<20 {
			t.Errorf("%s: %d KiB stay of a file of %d", access, grown>>10, size>>10)
		}
	}
}

// resident is the bytes of files that this process has mapped and in memory.
func resident(t *testing.T) (bytes int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	for _, field := range []string{"RssFile:", "RssShmem:"} {
		_, rest, _ := strings.Cut(string(status), field)
		kib, err := strconv.Atoi(strings.Fields(rest)[0])
		must(t, err)
		bytes += kib << 10
	}
	return bytes
}

// Only the pages that hold a window are read from the disk, whatever its read-ahead is.
func TestOnlyThePagesNeeded(t *testing.T) {
	everyAccess(t, func(t *testing.T, o Options) {
		const size = 16 << 20
		path := filepath.Join(t.TempDir(), "tokens.bin")
		f, err := os.Create(path)
		must(t, err)
		defer f.Close()
		_, err = f.Write(make([]byte, size))
		must(t, errors.Join(err, f.Sync()))
		tokens := open(t, []string{path}, o)
		mapped, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
		must(t, err)
		defer unix.Munmap(mapped)
		cached := func() (pages int) {
			resident := make([]byte, size/os.Getpagesize())
			_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), size, uintptr(unsafe.Pointer(&resident[0])))
			if errno != 0 {
				t.Fatal(errno)
			}
			for _, r := range resident {
				pages += int(r & 1)
			}
			return pages
		}
		must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		if cached() > 0 {
			t.Skip("the page cache of this filesystem cannot be dropped")
		}
		ws := make([]array.Window, 16)
		want := 0
		page := int64(os.Getpagesize())
		for i := range ws {
			ws[i] = array.Window{Start: int64(i)*(size/2/16) + int64(i)*100, Len: 1025}
			want += int((2*ws[i].Start+2*1025+page-1)/page - 2*ws[i].Start/page)
		}
		var buf [2050]byte
		must(t, tokens.Read(ws, func(_ int, raw []byte) error {
			copy(buf[:], raw)
			return nil
		}))
		if o.DropPageCache && o.Access != Map {
			want = 0
		}
		if got := cached(); got != want {
			t.Errorf("%d pages are in the page cache, want %d", got, want)
		}
	})
}

// A core dump, of which a setting of the kernel may make files part, holds no tokens.
func TestMappingsAreNotDumped(t *testing.T) {
	everyAccess(t, func(t *testing.T, o Options) {
		tokens := open(t, files(t, 2, 100_000), o)
		ws := []array.Window{{Start: 0, Len: 1000}, {Start: 50_000, Len: 50_000}}
		must(t, tokens.Read(ws, func(_ int, raw []byte) error {
			path, flags := mappingAt(t, uintptr(unsafe.Pointer(&raw[0])))
			if mapped := path == tokens.Files()[0]; mapped == (o.Access == Pread) {
				t.Errorf("the tokens are read from %q", path)
			} else if mapped && !strings.Contains(flags, " dd ") {
				t.Errorf("the flags of the mapping are %q, want dd among them", flags)
			}
			return nil
		}))
	})
}

// mappingAt is the file mapped at an address, if it is one, and the mapping's flags as the kernel abbreviates them.
func mappingAt(t *testing.T, addr uintptr) (path, flags string) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	must(t, err)
	inside := false
	for line := range strings.Lines(string(smaps)) {
		var from, to uintptr
		fields := strings.Fields(line)
		if n, _ := fmt.Sscanf(fields[0], "%x-%x", &from, &to); n == 2 {
			inside, path = from <= addr && addr < to, strings.Join(fields[5:], " ")
		} else if inside && fields[0] == "VmFlags:" {
			return path, line
		}
	}
	t.Fatalf("nothing is mapped at %x", addr)
	return "", ""
}

// mapped maps a new file of one page and then empties the file: to touch the mapping is a fault.
func mapped(t testing.TB) (path string, mapping []byte) {
	t.Helper()
	path = files(t, 2, os.Getpagesize()/2)[0]
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	mapping, err = unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(mapping) })
	must(t, os.Truncate(path, 0))
	return path, mapping
}

// A page that cannot be had of a file that has not changed: a failing disk.
func TestFaultIsAnError(t *testing.T) {
	path, mapping := mapped(t)
	f, err := newFile(path, Identity{}, Sample{}, Remap, false)
	must(t, err)
	err = f.visitMapped(mapping, Range{From: 100, To: 102}, unix.MADV_POPULATE_READ, func(_ int, raw []byte) error {
		sink += raw[1]
		return nil
	})
	if !errors.Is(err, errFault) || !strings.Contains(err.Error(), path+": byte 101") {
		t.Errorf("error %v, want a fault at byte 101 of %s", err, path)
	}
}
