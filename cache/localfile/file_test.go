package localfile

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/cache/counts"
	"batchfs/internal/process"
	"batchfs/internal/require"
	"batchfs/internal/testwait"
)

var must = require.NoError

// writeCounting writes a file in which byte i is i, modulo 256.
func writeCounting(t testing.TB, bytes int) (path string, stamp Stamp) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "train.bin")
	raw := make([]byte, bytes)
	for i := range raw {
		raw[i] = byte(i)
	}
	must(t, os.WriteFile(path, raw, 0o600))
	stamp, content, err := Open(path, nil)
	must(t, err)
	must(t, content.Close())
	return path, stamp
}

// If the pages of a range cannot be mapped, pread reads the range, and its error is returned if the
// file was truncated or its disk fails.
func TestFaultIsReadAgain(t *testing.T) {
	path, stamp := writeCounting(t, os.Getpagesize())
	f, err := New(path, stamp, Sample{}, Options{Access: Remap})
	must(t, err)
	fd, err := f.open()
	must(t, err)
	defer unix.Close(fd)
	mapping, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(mapping)
	read := func() (got byte, err error) {
		err = f.visitMapped(mapping, fd, Range{From: 100, To: 102}, unix.MADV_POPULATE_READ, func(_ int, raw []byte) error {
			got = raw[1]
			return nil
		})
		return got, err
	}
	if got, err := read(); got != 101 || err != nil {
		t.Errorf("byte %d, error %v, want byte 101", got, err)
	}
	must(t, os.Truncate(path, 0))
	if _, err := read(); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want the end of %s", err, path)
	}
}

// Ranges that lie close together are visited in file order, so that some can be read at once.
// Others are visited in the order of the request, in which the reply is written fastest.
func TestOrderOfVisits(t *testing.T) {
	path, stamp := writeCounting(t, 4<<20)
	f, err := New(path, stamp, Sample{}, Options{Access: Pread})
	must(t, err)
	for apart, want := range map[int64][]int{4096: {1, 2, 0, 3}, 1 << 20: {0, 1, 2, 3}} {
		var ranges []Range
		for i, at := range []int64{2, 0, 1, 3} {
			ranges = append(ranges, Range{From: at * apart, To: at*apart + 10, Index: i})
		}
		var got []int
		must(t, f.Read(ranges, func(i int, _ []byte) error {
			got = append(got, i)
			return nil
		}))
		if !slices.Equal(got, want) {
			t.Errorf("ranges %d bytes apart are visited as %v, want %v", apart, got, want)
		}
	}
}

// If no lease can be obtained, a file must stay unchanged for settleTime, counted from its latest
// change.
func TestSettled(t *testing.T) {
	var s settleTimer
	stamp := Stamp{Ino: 1, Sec: 5}
	for i, want := range []bool{false, false, true, true, false, true} {
		switch i {
		case 2, 5:
			s.since -= int64(settleTime)
		case 4:
			stamp.Nsec++
		}
		if got := s.isSettled(stamp); got != want {
			t.Errorf("step %d: settled: %v, want %v", i, got, want)
		}
	}
}

// Mappings are bounded, because a process may have 65,530 by default.
func TestKeptMappingsAreBounded(t *testing.T) {
	path, stamp := writeCounting(t, 10)
	all := make([]*File, 3*maxTables)
	for i := range all {
		var err error
		all[i], err = New(path, stamp, Sample{}, Options{Access: Advise})
		must(t, err)
		must(t, all[i].Read([]Range{{0, 10, 0}}, func(_ int, raw []byte) error {
			if string(raw) != "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09" {
				t.Errorf("bytes are %x", raw)
			}
			return nil
		}))
		if n := kept.byUse.Len(); n != min(i+1, maxTables) {
			t.Fatalf("%d mappings are kept after reads of %d files", n, i+1)
		}
	}
	for _, f := range all {
		f.Release()
	}
	if kept.byUse.Len() != 0 || kept.tables != 0 {
		t.Errorf("%d mappings with %d page tables are left", kept.byUse.Len(), kept.tables)
	}
}

// If the address space is limited, mappings leave some of it to the heap: Go ends a process that
// finds none. The limit is set in another process.
func TestMappingsLeaveAddressSpace(t *testing.T) {
	if os.Getenv("LIMITED") == "" {
		command := exec.Command(os.Args[0], "-test.run=^TestMappingsLeaveAddressSpace$")
		command.Env = append(os.Environ(), "LIMITED=1")
		out, err := command.CombinedOutput()
		if strings.Contains(string(out), "ThreadSanitizer failed to allocate") {
			t.Skip("the race detector needs more address space")
		}
		if err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	const size = 4 << 20
	path, stamp := writeCounting(t, size)
	limit := uint64(process.AddressSpace(os.Getpid()) + 512<<20)
	must(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}))
	maps := new(counts.Maps)
	for _, access := range []Access{Advise, Remap} {
		var all []*File
		for range 512 << 20 / size {
			f, err := New(path, stamp, Sample{}, Options{Access: access, Maps: maps})
			must(t, err)
			must(t, f.Read([]Range{{0, size, 0}}, func(_ int, raw []byte) error {
				if len(raw) != size || raw[size-1] != 255 {
					t.Error("bytes are wrong")
				}
				return nil
			}))
			all = append(all, f)
		}
		runtime.KeepAlive(make([]byte, 100<<20))
		for _, f := range all {
			f.Release()
		}
		if n := mapped.Load(); n != 0 {
			t.Errorf("%d bytes stay mapped", n)
		}
	}
	if maps.Mapped.Load() == 0 || maps.Unmapped.Load() == 0 {
		t.Errorf("%d reads mapped the file, and %d could not; want both", maps.Mapped.Load(), maps.Unmapped.Load())
	}
}

// More files may be read than a process may have descriptors.
func TestKeptDescriptorsAreBounded(t *testing.T) {
	path, stamp := writeCounting(t, 10)
	all := make([]*File, 2*maxDescriptors)
	read := func(f *File) {
		must(t, f.Read([]Range{{0, 10, 0}}, func(_ int, raw []byte) error {
			if string(raw) != "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09" {
				t.Errorf("bytes are %x", raw)
			}
			return nil
		}))
	}
	for i := range all {
		var err error
		all[i], err = New(path, stamp, Sample{}, Options{Access: Pread, StayOpen: true})
		must(t, err)
		read(all[i])
	}
	if n := descriptors.Load(); n > maxDescriptors || n < maxDescriptors/2 {
		t.Errorf("%d descriptors are kept, of up to %d", n, maxDescriptors)
	}
	runtime.KeepAlive(all) // a descriptor is closed once its File is collected
}

// After concurrent reads, no page of a kept mapping is resident, although the kernel maps pages
// around those that are touched.
func TestAdvisedPagesAreReleased(t *testing.T) {
	const size = 64 << 20
	path, stamp := writeCounting(t, size)
	f, err := New(path, stamp, Sample{}, Options{Access: Advise})
	must(t, err)
	defer f.Release()
	var readers sync.WaitGroup
	for r := range 8 {
		readers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(r), 0))
			for range 200 {
				var ranges []Range
				for range 12 {
					from := random.Int64N(size - 10_000)
					ranges = append(ranges, Range{from, from + 1 + random.Int64N(9_000), int(from)})
				}
				err := f.Read(ranges, func(from int, raw []byte) error {
					if raw[0] != byte(from) || raw[len(raw)-1] != byte(from+len(raw)-1) {
						return fmt.Errorf("bytes at %d are wrong", from)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	testwait.End(t, "the readers", readers.Wait)
	smaps, err := os.ReadFile("/proc/self/smaps")
	must(t, err)
	_, mapping, found := strings.Cut(string(smaps), path)
	if !found {
		t.Fatal("the file is not mapped")
	}
	var resident int
	_, err = fmt.Sscan(strings.SplitN(mapping, "\nRss:", 2)[1], &resident)
	must(t, err)
	if resident > 0 {
		t.Errorf("%d KiB of the file are resident, want none", resident)
	}
}
