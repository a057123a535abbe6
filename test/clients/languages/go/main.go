// Command go WAY PATH N SIZE reads PATH N times and prints what it got.
package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"log"
	"os"
	"strconv"
	"syscall"
)

var (
	path = os.Args[2]
	n    = number(os.Args[3])
	size = number(os.Args[4])
)

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func opened(flags int) *os.File {
	f, err := os.OpenFile(path, os.O_RDONLY|flags, 0)
	check(err)
	return f
}

func readFull(r io.Reader) []byte {
	batch := make([]byte, size)
	_, err := io.ReadFull(r, batch)
	check(err)
	return batch
}

func once(flags int, read func(f *os.File) []byte) func() []byte {
	return func() []byte {
		f := opened(flags)
		defer f.Close()
		return read(f)
	}
}

func fromFile(f *os.File) []byte { return readFull(f) }

func main() {
	var kept *os.File
	ways := map[string]func() []byte{
		"ReadFile": func() []byte {
			batch, err := os.ReadFile(path)
			check(err)
			return batch
		},
		"ReadFull": once(0, fromFile),
		"nonblock": once(syscall.O_NONBLOCK, fromFile),
		"bufio":    once(0, func(f *os.File) []byte { return readFull(bufio.NewReader(f)) }),
		"binary": once(0, func(f *os.File) []byte {
			tokens := make([]uint16, size/2)
			check(binary.Read(bufio.NewReader(f), binary.LittleEndian, tokens))
			batch, err := binary.Append(nil, binary.LittleEndian, tokens)
			check(err)
			return batch
		}),
		"Copy": once(0, func(f *os.File) []byte {
			_, err := io.Copy(os.Stdout, f)
			check(err)
			return nil
		}),
		"Seek": func() []byte {
			_, err := kept.Seek(0, io.SeekStart)
			check(err)
			return readFull(kept)
		},
		"ReadAt": func() []byte {
			batch := make([]byte, size)
			_, err := kept.ReadAt(batch, 0)
			check(err)
			return batch
		},
	}
	way := os.Args[1]
	if way == "Seek" || way == "ReadAt" {
		kept = opened(0)
	}
	for range n {
		_, err := os.Stdout.Write(ways[way]())
		check(err)
	}
}
