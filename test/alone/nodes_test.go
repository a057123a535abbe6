package alone

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

// A node is a network and a mount namespace. Nothing but the store can be reached from it, at the same address on every node.
type node struct {
	holder  *exec.Cmd    // holds the namespaces
	fetched atomic.Int64 // bytes of blocks
}

// newNode makes a node, from which requests for the port go to a bucket. It is gone at the end of the test.
func newNode(t *testing.T, b *e2e.Bucket, port int) *node {
	t.Helper()
	n := &node{holder: exec.Command("unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep infinity")}
	out, err := n.holder.StdoutPipe()
	e2e.NoError(t, err)
	e2e.NoError(t, n.holder.Start())
	t.Cleanup(func() {
		n.holder.Process.Kill()
		n.holder.Wait()
	})
	defer e2e.AnswersSoon(t, n.holder)()
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		e2e.Lack(t, "no network namespaces: %v", err)
	}
	target, err := url.Parse(b.Url)
	e2e.NoError(t, err)
	proxy := &httputil.ReverseProxy{
		Transport: b.Server.Client().Transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && r.ContentLength > 64<<10 {
				n.fetched.Add(r.ContentLength)
			}
			return nil
		},
	}
	listener := n.listen(t, port)
	t.Cleanup(func() { listener.Close() })
	go http.Serve(listener, proxy)
	return n
}

// listen listens on a port of the node's loopback device, which it brings up. A socket stays in the namespace that it was made in.
func (n *node) listen(t *testing.T, port int) (listener net.Listener) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		failed <- func() error {
			namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.holder.Process.Pid))
			if err != nil {
				return err
			}
			defer namespace.Close()
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(socket)
			lo, err := unix.NewIfreq("lo")
			if err != nil {
				return err
			}
			lo.SetUint16(unix.IFF_UP)
			if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, lo); err != nil {
				return err
			}
			listener, err = net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
			return err
		}()
	}()
	e2e.NoError(t, <-failed)
	return listener
}

// command is one that runs on the node.
func (n *node) command(args ...string) []string {
	return append([]string{"nsenter", "--net", "--mount", "--target", fmt.Sprint(n.holder.Process.Pid), "--"}, args...)
}

// mount mounts on the node, and returns what ends it.
func (n *node) mount(t *testing.T, dir string, args ...string) (end func()) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	e2e.Run(t, n.command(append([]string{e2e.Batchfs, "mount", "-d", "--log", log, dir}, args...)...)...)
	ended := false
	end = func() {
		if !ended {
			ended = true
			e2e.Run(t, n.command(e2e.PlainBatchfs, "unmount", "--force", dir)...)
		}
	}
	t.Cleanup(func() {
		end()
		if t.Failed() {
			t.Logf("the mount of a node said:\n%s", e2e.LogFile(log))
		}
	})
	return end
}

// Two nodes that know nothing of each other mount the same corpus of a store at the same place, each with a cache of its own. Their
// ranks get disjoint batches, which together are those of one rank with batches of twice the size; and a node that mounts again fetches
// nothing that it has kept.
func TestTwoNodes(t *testing.T) {
	e2e.Long(t)
	needNamespaces(t)
	e2e.NeedRoot(t, "network namespaces are root's")
	b := e2e.NewBucket(t)
	const rows, block = 4800, 100
	var data bytes.Buffer
	for row := range rows { // each row has its own number, all over
		for range block {
			data.Write([]byte{byte(row), byte(row >> 8)})
		}
	}
	data.Write(make([]byte, 2))
	b.Put(t, "train.bin", data.Bytes())
	const port = 9000
	config := b.Config(t, "s3://bucket/train.bin", "order = \"shuffle\"\nlayout = \"tokens\"\ntoken_dtype = \"uint16\"")
	dir := t.TempDir()
	const batches, size = rows / 24, 12 * (block + 1) * 2 // of an epoch for each of two ranks
	var got [2][]byte
	for rank := range got {
		n := newNode(t, b, port)
		cache := t.TempDir()
		args := []string{"-c", config, "--set", "store.cache_dir=" + cache, "--set", fmt.Sprint("store.endpoint=http://127.0.0.1:", port)}
		end := n.mount(t, dir, args...)
		if e2e.IsMounted(t, dir) {
			t.Error("the mount of a node is seen outside")
		}
		read := func() []byte {
			path := fmt.Sprintf("%s/train/rank=%d,world=2,steps=%d/batches.bin", dir, rank, batches)
			return []byte(e2e.Run(t, n.command("cat", path)...))
		}
		got[rank] = read()
		if n.fetched.Load() == 0 {
			t.Errorf("node %d fetched nothing", rank)
		}
		e2e.Await(t, "all blocks in the node's directory", func() bool {
			kept, _ := filepath.Glob(filepath.Join(cache, "*", "[0-9]*"))
			return len(kept) >= (data.Len()+e2e.StoreBlock-1)/e2e.StoreBlock
		})
		end()
		n.fetched.Store(0)
		n.mount(t, dir, args...)
		if again := read(); !bytes.Equal(again, got[rank]) {
			t.Errorf("node %d reads other batches when it mounts again", rank)
		}
		if fetched := n.fetched.Load(); fetched > 0 {
			t.Errorf("node %d fetched %d bytes again", rank, fetched)
		}
	}
	seen := map[string]int{}
	for rank, all := range got {
		if len(all) != batches*size {
			t.Fatalf("rank %d: %d bytes, want %d", rank, len(all), batches*size)
		}
		for row := range batches * 12 {
			first := all[row*(block+1)*2:][:2]
			if other, twice := seen[string(first)]; twice {
				t.Fatalf("rank %d and rank %d read row %x", other, rank, first)
			}
			seen[string(first)] = rank
		}
	}
	if len(seen) != rows {
		t.Errorf("%d rows were read, want each of %d once", len(seen), rows)
	}
	local := filepath.Join(t.TempDir(), "train.bin")
	e2e.Write(t, local, data.Bytes())
	whole := e2e.Cat(t, "train", "--set", "splits.train.tokens="+local, "--set", "batch.order=shuffle", "--set", "batch.layout=tokens",
		"--set", "batch.block_size=100", "--set", "batch.batch_size=24", "--set", "batch.token_dtype=uint16", "--count", fmt.Sprint(batches))
	for k := range batches {
		if want := whole[k*2*size:][:2*size]; !bytes.Equal(got[0][k*size:][:size], want[:size]) || !bytes.Equal(got[1][k*size:][:size], want[size:]) {
			t.Fatalf("batch %d of the two is not that of one", k)
		}
	}
}
