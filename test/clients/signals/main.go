// Command signals reads batches in goroutines while each of its threads gets SIGURG, Go's own signal, as fast as can be:
//
//	signals PATH GOROUTINES N
//
// Each goroutine opens and reads PATH N times, and prints `<bytes> <sha256>` of what it got, or the errno.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

func main() {
	path := os.Args[1]
	goroutines, _ := strconv.Atoi(os.Args[2])
	n, _ := strconv.Atoi(os.Args[3])
	var ended atomic.Bool
	var sent int
	var signals, readers sync.WaitGroup
	signals.Go(func() {
		for pid := os.Getpid(); !ended.Load(); {
			threads, _ := os.ReadDir("/proc/self/task")
			for range 100 {
				for _, thread := range threads {
					tid, _ := strconv.Atoi(thread.Name())
					syscall.Tgkill(pid, tid, syscall.SIGURG)
					sent++
				}
			}
		}
	})
	for range goroutines {
		readers.Go(func() {
			for range n {
				data, err := read(path)
				if err != nil {
					fmt.Println(err)
				} else {
					fmt.Printf("%d %x\n", len(data), sha256.Sum256(data))
				}
			}
		})
	}
	readers.Wait()
	ended.Store(true)
	signals.Wait()
	fmt.Fprintln(os.Stderr, sent, "signals")
}

// read reads a file with plain system calls: os.File would try again after EINTR.
func read(path string) ([]byte, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, err
	}
	data := make([]byte, st.Size)
	for at := 0; at < len(data); {
		n, err := syscall.Pread(fd, data[at:], int64(at))
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return data[:at], nil
		}
		at += n
	}
	return data, nil
}
