"""Reads a file in one of many ways: readers.py METHOD PATH [ARG...]

Prints `<bytes> <sha256>` after each complete read. Methods marked @or_errno print `errno NAME` if
the file does not allow them. Any other error ends the program with status 1.
"""

import errno
import functools
import hashlib
import itertools
import mmap
import os
import sys
import time
from contextlib import contextmanager

# Tests start this program hundreds of times, so slow modules are imported only where needed.

METHODS = {}


def method(f):
    METHODS[f.__name__] = f
    return f


def or_errno(f):
    @functools.wraps(f)
    def wrapped(*args):
        try:
            return f(*args)
        except OSError as e:
            return errno_line(e)
    return wrapped


@contextmanager
def opened(path):
    """Opens a file with os.open, which does not buffer, and yields its descriptor and size."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd, os.fstat(fd).st_size
    finally:
        os.close(fd)


def until_eof(read):
    """Calls read(offset) until it returns nothing, and joins the results."""
    data = bytearray()
    while piece := read(len(data)):
        data += piece
    return data


def line(data):
    """Returns the line that the program prints for data."""
    return f"{memoryview(data).nbytes} {hashlib.sha256(data).hexdigest()}"


# Simple reads.

@method
def read(path):
    with open(path, "rb") as f:
        return line(f.read())


@method
def readinto(path):
    with open(path, "rb", buffering=0) as f:
        data = bytearray(os.fstat(f.fileno()).st_size)
        rest = memoryview(data)
        while rest:
            n = f.readinto(rest)
            assert n, f"the file ends {len(rest)} bytes before st_size"
            rest = rest[n:]
        assert f.read(1) == b"", "the file does not end at st_size"
    return line(data)


@method
def pread(path):
    with opened(path) as (fd, _):
        return line(until_eof(lambda offset: os.pread(fd, 100003, offset)))


@method
def head_then_rest(path):
    with opened(path) as (fd, _):
        return line(os.read(fd, 100) + until_eof(lambda _: os.read(fd, 65536)))


@method
def rewind(path):
    """Reads the head, then starts over, like file(1) and other programs that detect formats."""
    with opened(path) as (fd, _):
        head = os.read(fd, 100)
        os.lseek(fd, 0, os.SEEK_SET)
        data = until_eof(lambda _: os.read(fd, 65536))
    assert data[:100] == head, "the second read of the head got other bytes"
    return line(data)


# Copies.

@method
@or_errno
def sendfile(path):
    import tempfile
    with opened(path) as (fd, size), tempfile.TemporaryFile() as out:
        offset = 0
        while n := os.sendfile(out.fileno(), fd, offset, max(size - offset, 1)):
            offset += n
        out.seek(0)
        return line(out.read())


@method
def copyfile(path):
    import shutil
    import tempfile
    with tempfile.TemporaryDirectory() as directory:
        return read(shutil.copyfile(path, os.path.join(directory, "copy")))


# Memory maps.

def mapped(path, flags):
    with opened(path) as (fd, size), mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ) as m:
        return line(m)


@method
@or_errno
def mmap_shared(path):
    return mapped(path, mmap.MAP_SHARED)


@method
@or_errno
def mmap_private(path):
    return mapped(path, mmap.MAP_PRIVATE)


# NumPy. For a .npy file, the line describes only its array, not the header.

@method
def fromfile(path):
    import numpy as np
    return line(np.fromfile(path, np.uint8))


@method
@or_errno
def memmap(path):
    import numpy as np
    array = np.memmap(path, np.uint8, mode="r")
    digest = hashlib.sha256()
    for begin in range(0, array.size, 100003):
        digest.update(array[begin:begin + 100003])
    return f"{array.nbytes} {digest.hexdigest()}"


@method
def npload(path):
    import numpy as np
    return line(np.load(path).tobytes())


@method
@or_errno
def npload_mmap(path):
    import numpy as np
    return line(np.load(path, mmap_mode="r").tobytes())


@method
def each(directory, *reads):
    """Executes several reads in this process, one after another, each given as METHOD:FILE."""
    for name, file in (read.split(":") for read in reads):
        yield METHODS[name](os.path.join(directory, file))


# Repeated reads. Each read of `next` gets another batch.

@method
def pread_kept(path, n):
    """Opens the file once and reads it n times."""
    with opened(path) as (fd, size):
        for _ in range(int(n)):
            data = os.pread(fd, size, 0)
            while len(data) < size:
                piece = os.pread(fd, size - len(data), len(data))
                assert piece, f"the file ends {size - len(data)} bytes before st_size"
                data += piece
            yield line(data)


@method
def numbers(path, n):
    """Opens the file n times and reads it once each time."""
    for _ in range(int(n)):
        with opened(path) as (fd, size):
            yield line(os.read(fd, size))


@method
def next_threads(path, threads, n):
    """Lets several threads read one open file n times each."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier
    threads, n = int(threads), int(n)
    start = Barrier(threads)
    with opened(path) as (fd, size), ThreadPoolExecutor(threads) as pool:
        def reads(_):
            start.wait()
            return [line(os.pread(fd, size, 0)) for _ in range(n)]
        for lines in pool.map(reads, range(threads)):
            yield from lines


def pread_unaligned(fd, size):
    """Reads into memory not aligned to a page, for which the kernel sends one more request."""
    whole = mmap.mmap(-1, size + 4096)
    part = memoryview(whole)[100:100 + size]
    n = os.preadv(fd, [part], 0)
    assert n == size, f"got {n} bytes, want {size}"
    return line(part)


@method
def unaligned_threads(path, threads, n):
    """Lets several threads read one open file n times each."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier
    threads, n = int(threads), int(n)
    start = Barrier(threads)
    with opened(path) as (fd, size), ThreadPoolExecutor(threads) as pool:
        def reads(_):
            start.wait()
            return [pread_unaligned(fd, size) for _ in range(n)]
        for lines in pool.map(reads, range(threads)):
            yield from lines


@method
def unaligned_forks(path, processes, n):
    """Lets several processes read one open file n times each."""
    with opened(path) as (fd, size):
        gate, go = os.pipe()
        children = []
        for _ in range(int(processes)):
            out, to = os.pipe()
            if os.fork() == 0:
                os.close(go)
                os.read(gate, 1)
                os.write(to, "\n".join(pread_unaligned(fd, size) for _ in range(int(n))).encode())
                os._exit(0)
            os.close(to)
            children.append(out)
        os.close(go)
        for out in children:
            yield until_eof(lambda _: os.read(out, 65536)).decode()
        for _ in children:
            assert os.wait()[1] == 0


def in_parts(path, n, order):
    """Reads n batches, each in eighths in the given order."""
    with opened(path) as (fd, size):
        for _ in range(int(n)):
            batch = bytearray(size)
            for i in order:
                batch[i * size // 8:(i + 1) * size // 8] = os.pread(fd, size // 8, i * size // 8)
            yield line(batch)


@method
def backwards(path, n):
    return in_parts(path, n, range(7, -1, -1))


@method
def rows_twice(path, n):
    return in_parts(path, n, [i // 2 for i in range(16)])


@method
def odd_rows_first(path, n):
    return in_parts(path, n, [1, 3, 5, 7, 0, 2, 4, 6])


@method
def fromfile_x_then_y(path, n):
    import numpy as np
    with open(path, "rb") as f:
        count = os.fstat(f.fileno()).st_size // 4
        for _ in range(int(n)):
            x, y = np.fromfile(f, np.uint16, count), np.fromfile(f, np.uint16, count)
            yield line(x.tobytes() + y.tobytes())
            f.seek(0)


@method
def stdio_rewind(path, n):
    """Reads with C's fread and rewind."""
    import ctypes
    c = ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    f = ctypes.c_void_p(c.fopen(path.encode(), b"rb"))
    size = os.stat(path).st_size
    batch = ctypes.create_string_buffer(size)
    for _ in range(int(n)):
        assert c.fread(batch, 1, size, f) == size
        yield line(batch.raw)
        c.rewind(f)


# Reads of files that change. A failed read prints `errno NAME`.

def errno_line(e):
    return "errno " + errno.errorcode.get(e.errno, str(e.errno))


def read_range(fd, offset, size):
    """Reads size bytes at an offset, or fewer at the end of the file."""
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), offset + len(data))):
        data += piece
    return data


def copy_of(view):
    """Copies mapped memory with a system call.

    An unreadable page makes the call fail with EFAULT instead of killing the process with SIGBUS.
    """
    fd = os.memfd_create("copy")
    try:
        while len(view):
            view = view[os.write(fd, view):]
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


@contextmanager
def map_of(fd, size):
    with mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as m, memoryview(m) as view:
        yield view


NPY_HEADER = 4096


def opens(path):
    while True:
        with opened(path) as (fd, size):
            yield read_range(fd, 0, size)


def keeps(path):
    with opened(path) as (fd, size):
        while True:
            try:
                yield read_range(fd, 0, size)
            except OSError as e:
                yield e


def frames(path):
    """Reads the header and then the array, like numpy.load."""
    while True:
        with opened(path) as (fd, size):
            os.read(fd, NPY_HEADER)
            yield read_range(fd, NPY_HEADER, size - NPY_HEADER)


def numbered(path):
    for k in itertools.cycle(range(50)):
        with opened(f"{path}/{k}") as (fd, size):
            yield read_range(fd, 0, size)


def preads(path):
    with opened(path) as (fd, size):
        batch = os.stat(os.path.join(os.path.dirname(path), "next")).st_size
        for k in itertools.cycle(range(size // batch)):
            yield read_range(fd, k * batch, batch)
            drop_cache(fd)


def maps(path):
    with opened(path) as (fd, size), map_of(fd, size) as view:
        batch = os.stat(os.path.join(os.path.dirname(path), "next")).st_size
        for begin in itertools.cycle(range(NPY_HEADER, size, batch)):
            with view[begin:begin + batch] as part:
                yield copy_of(part)
            view.obj.madvise(mmap.MADV_DONTNEED)
            drop_cache(fd)


def drop_cache(fd):
    """Empties the page cache of a file, and turns off the kernel's read-ahead."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@method
def changing(directory, *ways):
    """Reads several files again and again, in one thread each, and prints `ROUND WAY:FILE <line>`.

    Each line on standard input begins a new round, in which all ways except keeps open their files
    again. After the line "pause", no thread reads.
    """
    from concurrent.futures import ThreadPoolExecutor
    from threading import Condition
    rounds, turn = [1, False], Condition()
    # With the default interval, threads that read from the page cache would delay the others.
    sys.setswitchinterval(0.0005)

    def reads(way):
        how, file = way.split(":")
        mine, batches = 0, None
        while True:
            with turn:
                turn.wait_for(lambda: rounds[0] != mine or not rounds[1])
                begins = rounds[0] != mine
                mine, paused = rounds
            if mine is None:
                return
            if paused:
                text = "paused"
            else:
                try:
                    if begins and how != "keeps" or batches is None:
                        batches = globals()[how](os.path.join(directory, file))
                    data = next(batches)
                    text = errno_line(data) if isinstance(data, OSError) else line(data)
                except OSError as e:
                    batches, text = None, errno_line(e)
            os.write(1, f"{mine} {way} {text}\n".encode())

    with ThreadPoolExecutor(len(ways)) as pool:
        threads = [pool.submit(reads, way) for way in ways]
        for command in itertools.chain(sys.stdin, [None]):
            with turn:
                rounds[:] = [command and rounds[0] + 1, command == "pause\n"]
                turn.notify_all()
        for thread in threads:
            thread.result()
    return []


@method
def handles(directory):
    """Executes the commands on standard input, and prints the result of each.

    `open FILE` opens a file as the next handle, counted from 0. `read HANDLE OFFSET SIZE` reads it,
    and `map HANDLE OFFSET SIZE` reads from a map of it. `close` closes all files.
    """
    fds, mapped = [], {}
    for command in sys.stdin:
        verb, *args = command.split()
        try:
            if verb == "open":
                fds.append(os.open(os.path.join(directory, args[0]), os.O_RDONLY))
                yield "opened"
                continue
            if verb == "close":
                while mapped:
                    mapped.popitem()[1].close()
                while fds:
                    os.close(fds.pop())
                yield "closed"
                continue
            fd, offset, size = fds[int(args[0])], int(args[1]), int(args[2])
            if verb == "read":
                yield line(read_range(fd, offset, size))
            else:
                view = mapped.setdefault(fd, None) or mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
                mapped[fd] = view
                yield line(copy_of(memoryview(view)[offset:offset + size]))
        except OSError as e:
            yield errno_line(e)


@method
def stretch(path, first, end):
    """Reads the files first to end - 1 of a directory batch/."""
    for k in range(int(first), int(end)):
        with opened(f"{path}/{k}") as (fd, size):
            yield line(until_eof(lambda offset: os.pread(fd, size, offset)))


@method
def under_signals(path, n):
    """Opens and reads a file n times while signals arrive as fast as possible.

    It calls C directly, because Python repeats calls that fail with EINTR.
    """
    import ctypes
    import signal
    c, size = ctypes.CDLL(None, use_errno=True), os.stat(path).st_size
    c.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    c.pread.restype = ctypes.c_ssize_t
    caught = []
    signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    for _ in range(int(n)):
        fd, data, end = c.open(path.encode(), os.O_RDONLY), ctypes.create_string_buffer(size), 0
        assert fd >= 0, os.strerror(ctypes.get_errno())
        while got := c.pread(fd, ctypes.addressof(data) + end, size - end, end):
            assert got > 0, os.strerror(ctypes.get_errno())
            end += got
        os.close(fd)
        yield line(data.raw[:end])
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert caught, "no signal arrived"


@method
def first_comers(path, processes, n):
    """Lets all processes read each of n files at the same time. {} in path stands for 0 to n - 1."""
    import multiprocessing
    processes, n = int(processes), int(n)
    context = multiprocessing.get_context("fork")
    start, lines = context.Barrier(processes), context.SimpleQueue()

    def reads():
        for i in range(n):
            start.wait()
            with opened(path.replace("{}", str(i))) as (fd, size):
                lines.put((i, line(os.read(fd, size))))
    readers = [context.Process(target=reads) for _ in range(processes)]
    for reader in readers:
        reader.start()
    got = sorted(lines.get() for _ in range(processes * n))
    for reader in readers:
        reader.join()
    return [text for _, text in got]


@method
def looks(path, first, end, processes):
    """Looks up seed=N in a split, for N from first to end - 1, and prints the rate per second."""
    import multiprocessing
    first, end, processes = int(first), int(end), int(processes)

    def look(i):
        split = os.open(path, os.O_PATH)
        for n in range(first + i, end, processes):
            os.stat(f"seed={n}/info.json" if n % 10 == 0 else f"seed={n}", dir_fd=split)
    began = time.monotonic()
    lookers = [multiprocessing.get_context("fork").Process(target=look, args=(i,)) for i in range(processes)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join()
        assert looker.exitcode == 0
    return str(round((end - first) / (time.monotonic() - began)))


@method
def writes(directory):
    """Tries to change a mount in many ways, and prints the error of each attempt."""
    def inside(name):
        return os.path.join(directory, name)

    def map_to_write():
        with opened(inside("train/batches.bin")) as (fd, size):
            mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    ways = {"map": map_to_write}
    for name in ["README", "train/next", "train/cursor", "train/batch/0", "train/batches.bin", "train/batch/0.json"]:
        for flags in ["O_WRONLY", "O_RDWR", "O_WRONLY|O_APPEND", "O_RDONLY|O_TRUNC", "O_RDWR|O_CREAT"]:
            bits = functools.reduce(int.__or__, (getattr(os, flag) for flag in flags.split("|")))
            ways[f"open {name} {flags}"] = functools.partial(os.open, inside(name), bits)
        ways |= {
            f"truncate {name}": functools.partial(os.truncate, inside(name), 0),
            f"unlink {name}": functools.partial(os.unlink, inside(name)),
            f"rename {name}": functools.partial(os.rename, inside(name), inside("new")),
            f"link {name}": functools.partial(os.link, inside(name), inside("new")),
            f"chmod {name}": functools.partial(os.chmod, inside(name), 0o666),
            f"chown {name}": functools.partial(os.chown, inside(name), 1, 1),
            f"utime {name}": functools.partial(os.utime, inside(name), (0, 0)),
            f"setxattr {name}": functools.partial(os.setxattr, inside(name), "user.x", b"y"),
            f"removexattr {name}": functools.partial(os.removexattr, inside(name), "user.x"),
        }
    for name in ["new", "train/new", "train/batch/new", "train/seed=3/new"]:
        ways |= {
            f"create {name}": functools.partial(os.open, inside(name), os.O_RDONLY | os.O_CREAT),
            f"mkdir {name}": functools.partial(os.mkdir, inside(name)),
            f"mkfifo {name}": functools.partial(os.mkfifo, inside(name)),
            f"symlink {name}": functools.partial(os.symlink, "x", inside(name)),
        }
    ways["rmdir"] = functools.partial(os.rmdir, inside("val"))
    for what, act in ways.items():
        try:
            act()
            yield f"{what}: done"
        except OSError as e:
            yield f"{what}: {errno_line(e)}"


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in METHODS:
        sys.exit(f"usage: readers.py METHOD PATH [ARG...]\nmethods: {' '.join(METHODS)}")
    lines = METHODS[sys.argv[1]](*sys.argv[2:])
    for text in [lines] if isinstance(lines, str) else lines:
        # Writes whole lines, so that processes can share an output.
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
