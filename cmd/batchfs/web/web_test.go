package web

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"

	"batchfs/internal/testwait"
)

func TestHost(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	handler := checkHost(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	// The address of the server is 10.0.0.7.
	here := []string{"127.0.0.1:52000", "[::1]:52000", "[::ffff:127.0.0.1]:52000", "10.0.0.7:52000", ""}
	there := "10.0.0.8:52000"
	for host, allowed := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:9137": true, "[::1]:9137": true, "10.0.0.7:9137": true,
		"localhost": true, "localhost:8000": true, "batchfs:9137": true, own + ":9137": true,
		"": false, ":9137": false, "example.org": false, "example.org:9137": false, "127.0.0.1.example.org": false, "localhost.example.org:80": false,
		own + ".example.org": false, "example.org.": false,
	} {
		for _, from := range append(here, there) {
			r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 9137})),
				http.MethodGet, "/", nil)
			r.Host, r.RemoteAddr = host, from
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if got := w.Code == http.StatusOK; got != (allowed || from == there) {
				t.Errorf("host %q from %q: %d %s", host, from, w.Code, w.Body)
			}
		}
	}
}

// A pipes is a listener that accepts the connections sent to it.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error { return nil }

func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// Incomplete requests delay neither new requests nor requests in progress, and their connections
// are closed after a while.
func TestHalfRequests(t *testing.T) { synctest.Test(t, testHalfRequests) }

func testHalfRequests(t *testing.T) {
	listener := make(pipes)
	began, finish := make(chan struct{}), make(chan struct{})
	go Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(began)
			<-finish
		}
		io.WriteString(w, "answered")
	}), nil)
	t.Cleanup(func() { close(listener) })
	send := func(text string) net.Conn {
		t.Helper()
		c, served := net.Pipe()
		t.Cleanup(func() { c.Close() })
		listener <- served
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		return c
	}
	answered := func(c net.Conn) {
		t.Helper()
		c.SetReadDeadline(testwait.Deadline(t))
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", response, err)
		}
	}
	slow := send("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
	testwait.For(t, "the slow request", began)
	var halves []net.Conn
	for range 3 * maxConnections {
		halves = append(halves, send("GET / HT"))
	}
	answered(send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	close(finish)
	answered(slow)
	testwait.End(t, "their ends", func() {
		for _, c := range halves {
			io.ReadAll(c)
		}
	})
}
