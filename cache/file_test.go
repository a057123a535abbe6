package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/cache/array"
	"batchfs/cache/blob"
)

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
		if o.DropPageCache && o.Access != blob.Map {
			want = 0
		}
		if got := cached(); got != want {
			t.Errorf("%d pages are in the page cache, want %d", got, want)
		}
	})
}

// A core dump holds no tokens, also where a setting of the kernel includes mapped files.
func TestMappingsAreNotDumped(t *testing.T) {
	everyAccess(t, func(t *testing.T, o Options) {
		tokens := open(t, files(t, 2, 100_000), o)
		ws := []array.Window{{Start: 0, Len: 1000}, {Start: 50_000, Len: 50_000}}
		must(t, tokens.Read(ws, func(_ int, raw []byte) error {
			path, flags := mappingAt(t, uintptr(unsafe.Pointer(&raw[0])))
			if mapped := path == tokens.Files()[0]; mapped == (o.Access == blob.Pread) {
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
