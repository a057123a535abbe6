package soak

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// A scrape of 1,000 sequences costs less than 1,000 reads of a status.json of one split.
func TestScrape(t *testing.T) {
	e2e.ForSoak(t)
	config, _ := e2e.Small(t, 1)
	small := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config, "--set", "mount.metrics_listen=127.0.0.1:0")
	e2e.Run(t, e2e.Python, "-c", `
import sys
for seed in range(1000):
    open(f"{sys.argv[1]}/seed={seed}/next", "rb").read()`, m.Path("train"))
	url := m.Metrics(t)
	scrape := func() {
		response, err := http.Get(url)
		e2e.NoError(t, err)
		defer response.Body.Close()
		if n := strings.Count(string(e2e.Must(io.ReadAll(response.Body))(t)), "\nbatchfs_cursor{"); n != 1000 {
			t.Fatalf("%d sequences have metrics", n)
		}
	}
	scrape()
	const times = 10
	began := time.Now()
	for range times {
		scrape()
	}
	scraped := time.Since(began) / times
	said := e2e.Run(t, e2e.Python, "-c", `
import sys, time
began = time.monotonic()
for _ in range(1000):
    with open(sys.argv[1], "rb") as f:
        f.read()
print(time.monotonic() - began)`, small.Path("status.json"))
	read := e2e.Must(time.ParseDuration(strings.TrimSpace(said) + "s"))(t)
	t.Logf("a scrape of 1,000 sequences takes %v, 1,000 reads of status.json %v: %.2f", scraped, read, scraped.Seconds()/read.Seconds())
	e2e.InTime(t, "to scrape", scraped, read)
}

// top takes less than a hundredth of a processor, while a reader reads and another mount is dead.
func TestTopIsCheap(t *testing.T) {
	e2e.ForSoak(t)
	config, _ := e2e.Small(t, 1)
	m, dead := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config), e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	e2e.NoError(t, dead.Cmd.Process.Signal(os.Kill))
	t.Cleanup(func() { e2e.Run(t, e2e.PlainBatchfs, "unmount", dead.Dir) })
	e2e.Begin(t, e2e.Command(t, e2e.Python, "-c", `
import os, sys, time
while True:
    open(sys.argv[1], "rb").read()
    time.sleep(0.005)`, m.Path("train/next")))
	const seconds = 30
	said := e2e.Run(t, e2e.Python, "-c", `
import fcntl, os, pty, select, signal, struct, sys, termios, time
pid, fd = pty.fork()
if pid == 0:
    os.execve(sys.argv[1], [sys.argv[1], "top"], {**os.environ, "TERM": "xterm-256color"})
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", 60, 200, 0, 0))
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    if select.select([fd], [], [], 0.1)[0]:
        os.read(fd, 65536)
os.kill(pid, signal.SIGKILL)
used = os.wait4(pid, 0)[2]
print(used.ru_utime + used.ru_stime)`, e2e.PlainBatchfs, fmt.Sprint(seconds))
	used := e2e.Must(time.ParseDuration(strings.TrimSpace(said) + "s"))(t)
	t.Logf("in %d seconds top takes %v of a processor", seconds, used)
	e2e.InTime(t, "of a processor, top", used, seconds*time.Second/100)
}
