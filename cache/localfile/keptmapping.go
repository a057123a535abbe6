package localfile

import (
	"container/list"
	"os"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A keptMapping is a mapping that a File keeps between reads under Advise. The pages that a read
// has touched are released after it, so they take memory only while they are copied. It is safe for
// concurrent use.
type keptMapping struct {
	stamp   Stamp // of the file that is mapped, which may have been replaced since
	bytes   []byte
	cleanup runtime.Cleanup // drops the mapping when its File is garbage

	// These are guarded by kept.mu.
	element *list.Element // in kept.byUse; nil once dropped
	readers int           // reads that use the mapping; after the last one, it can be unmapped
	tables  int           // page tables used by reads, summed over all reads

	// mu guards the fields below. It is held while pages are released, so that no read begins to
	// use them meanwhile. If a read copied released pages, a page fault would wait for the disk,
	// which stops Go's garbage collector.
	mu   sync.Mutex
	used map[int]int // number of reads that use each page table, by its index in the address space
	// undropped holds ranges that are still to be dropped from the page cache, which is impossible
	// while pages are mapped: their reads have ended, but others use the same page tables.
	undropped []Range
}

// A keptRead is what a read remembers between enter and leave.
type keptRead struct {
	tables []int   // indexes of its page tables, sorted
	drop   []Range // ranges to drop from the page cache afterwards
}

var keptReads = sync.Pool{New: func() any { return new(keptRead) }}

// kept holds the mappings of this process.
var kept struct {
	mu     sync.Mutex
	byUse  list.List // of *keptMapping, the most recently used first
	tables int       // sum of their tables
}

// maxTables limits the page tables of all kept mappings, and with them the number of mappings. Page
// tables take up to a 512th of the size of a file. Before Linux 6.14, releasing pages does not free
// their table, but unmapping the file does.
const maxTables = 1 << 10

// readAdvised reads from the kept mapping.
func (f *File) readAdvised(ranges []Range, visit func(int, []byte) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	m, err := f.acquireMapping()
	if unmapped, ok := err.(unmappedError); ok {
		f.recordUnmapped(unmapped)
		return f.readOpened(ranges, visit)
	}
	if err != nil {
		return err
	}
	defer m.release()
	f.opts.Maps.Mapped.Add(1)
	for chunk := range slices.Chunk(ranges, rangesPerMapping) {
		if err = f.visitKept(m, chunk, visit); err != nil {
			break
		}
	}
	if changed := f.Check(); changed != nil {
		return changed
	}
	return err
}

func (f *File) visitKept(m *keptMapping, ranges []Range, visit func(int, []byte) error) (err error) {
	read := keptReads.Get().(*keptRead)
	defer keptReads.Put(read)
	err = f.visitEntered(m, read, ranges, visit)
	if len(read.drop) > 0 {
		if fd, err := f.open(); err == nil {
			for _, r := range read.drop {
				f.dropPages(fd, r)
			}
			unix.Close(fd)
		}
	}
	return err
}

func (f *File) visitEntered(m *keptMapping, read *keptRead, ranges []Range, visit func(int, []byte) error) (err error) {
	m.enter(read, ranges)
	defer m.leave(read, ranges, f.opts.DropPageCache) // even if visit panics
	// Let the disk read all ranges at the same time.
	for _, r := range ranges {
		unix.Madvise(m.pages(r), unix.MADV_WILLNEED)
	}
	for i := 0; i < len(ranges) && err == nil; i++ {
		err = f.visitMapped(m.bytes, -1, ranges[i], unix.MADV_POPULATE_READ, visit)
	}
	return err
}

// acquireMapping returns the kept mapping, and maps the file if there is none or an equal copy
// replaced the file. The caller must release it.
func (f *File) acquireMapping() (*keptMapping, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.mapping; m != nil && m.stamp == f.Stamp() && m.acquire() {
		return m, nil
	}
	f.dropMapping()
	fd, err := f.openUnchanged()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	m := &keptMapping{used: make(map[int]int)}
	// Another read may have adopted a newer copy by now, so f.Stamp() may be that of another file.
	if m.stamp, err = stampOf(fd, f.Path()); err != nil {
		return nil, err
	}
	if m.bytes, err = f.mmap(fd, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	m.cleanup = runtime.AddCleanup(f, (*keptMapping).drop, m)
	f.mapping = m
	m.keep()
	return m, nil
}

// dropMapping drops the kept mapping, if there is one. The caller holds f.mu.
func (f *File) dropMapping() {
	if f.mapping != nil {
		f.mapping.drop()
		f.mapping = nil
	}
}

// acquire begins a read from the mapping. It returns false if the mapping was dropped.
func (m *keptMapping) acquire() bool {
	kept.mu.Lock()
	defer kept.mu.Unlock()
	if m.element == nil {
		return false
	}
	kept.byUse.MoveToFront(m.element)
	m.readers++
	return true
}

// keep acquires a new mapping.
func (m *keptMapping) keep() {
	kept.mu.Lock()
	defer kept.mu.Unlock()
	m.element, m.readers = kept.byUse.PushFront(m), 1
}

// release ends a read from the mapping, and drops the least recently used mappings beyond
// maxTables.
func (m *keptMapping) release() {
	var unused []*keptMapping
	kept.mu.Lock()
	if m.readers--; m.readers == 0 && m.element == nil {
		unused = append(unused, m)
	}
	for kept.tables > maxTables {
		if oldest := kept.byUse.Back().Value.(*keptMapping); oldest.unlist() {
			unused = append(unused, oldest)
		}
	}
	kept.mu.Unlock()
	for _, m := range unused {
		munmap(m.bytes)
	}
}

// drop ends the mapping once no read uses it.
func (m *keptMapping) drop() {
	kept.mu.Lock()
	isUnused := m.unlist()
	kept.mu.Unlock()
	if isUnused {
		munmap(m.bytes)
	}
}

// unlist removes the mapping from kept, and reports whether the caller must unmap it, because no
// read uses it. The caller holds kept.mu.
func (m *keptMapping) unlist() bool {
	if m.element == nil {
		return false
	}
	kept.byUse.Remove(m.element)
	kept.tables -= m.tables
	m.element = nil
	m.cleanup.Stop()
	return m.readers == 0
}

// pages returns the pages of a range.
func (m *keptMapping) pages(r Range) []byte {
	from, to := r.pages()
	return m.bytes[from:min(to, int64(len(m.bytes)))]
}

// tableBytes is how many bytes of address space a page table covers: 2 MiB with pages of 4 KiB.
var tableBytes = os.Getpagesize() * os.Getpagesize() / 8

func (m *keptMapping) firstAddress() int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))))
}

// tablesOf returns the indexes of the first and last page table of a range.
func (m *keptMapping) tablesOf(r Range) (first, last int) {
	address := m.firstAddress()
	return (address + int(r.From)) / tableBytes, (address + int(r.To) - 1) / tableBytes
}

// enter records that a read uses the page tables of ranges.
func (m *keptMapping) enter(read *keptRead, ranges []Range) {
	read.tables = read.tables[:0]
	for _, r := range ranges {
		first, last := m.tablesOf(r)
		for t := first; t <= last; t++ {
			read.tables = append(read.tables, t)
		}
	}
	slices.Sort(read.tables)
	read.tables = slices.Compact(read.tables)
	m.mu.Lock()
	for _, t := range read.tables {
		m.used[t]++
	}
	m.mu.Unlock()
	kept.mu.Lock()
	if m.element != nil {
		m.tables += len(read.tables)
		kept.tables += len(read.tables)
	}
	kept.mu.Unlock()
}

// leave ends the use of page tables that enter began. The last read that uses a table releases all
// of its pages: the kernel may have mapped pages around those of the ranges, and whole large
// folios, but only within a table. If drop is set, leave sets read.drop to the ranges that can now
// be dropped from the page cache: those of the read, and of earlier ones.
func (m *keptMapping) leave(read *keptRead, ranges []Range, drop bool) {
	read.drop = read.drop[:0]
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range read.tables {
		if m.used[t]--; m.used[t] > 0 {
			continue
		}
		delete(m.used, t)
		from, to := t*tableBytes-m.firstAddress(), (t+1)*tableBytes-m.firstAddress()
		unix.Madvise(m.bytes[max(from, 0):min(to, len(m.bytes))], unix.MADV_DONTNEED)
	}
	if !drop {
		return
	}
	all := append(m.undropped, ranges...)
	m.undropped = all[:0]
	for _, r := range all {
		if m.isUsed(r) {
			m.undropped = append(m.undropped, r)
		} else {
			read.drop = append(read.drop, r)
		}
	}
}

// isUsed reports whether a read uses a page table of a range. The caller holds mu.
func (m *keptMapping) isUsed(r Range) bool {
	first, last := m.tablesOf(r)
	for t := first; t <= last; t++ {
		if m.used[t] > 0 {
			return true
		}
	}
	return false
}
