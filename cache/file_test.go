package cache

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"batchfs/cache/array"
)

// Only the pages that hold a window are read from the disk, regardless of its readahead setting.
func TestOnlyThePagesNeeded(t *testing.T) {
	everyAccess(t, func(t *testing.T, o Options) {
		const size = 16 << 20
		f, err := os.CreateTemp("/var/tmp", "") // on a disk, because tmpfs cannot drop pages
		must(t, err)
		defer f.Close()
		path := f.Name()
		defer os.Remove(path)
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
		if o.Reading.DropPageCache {
			want = 0
		}
		if got := cached(); got != want {
			t.Errorf("%d pages are in the page cache, want %d", got, want)
		}
	})
}
