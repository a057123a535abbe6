// Package web serves HTTP to browsers and other programs. Clients that send incomplete requests
// cannot use up its connections, and it rejects requests for other hosts.
package web

import (
	"context"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Serve serves requests on a listener until it is closed, and returns the listener's error. Errors
// of connections go to errorLog, or to standard error if it is nil.
func Serve(listener net.Listener, handler http.Handler, errorLog *log.Logger) error {
	open := connections{busy: map[net.Conn]bool{}}
	server := http.Server{
		Handler:           open.track(checkHost(handler)),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ConnState:         open.record,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:          errorLog,
	}
	return server.Serve(listener)
}

// maxConnections limits how many descriptors clients can take from the process.
const maxConnections = 64

// connections tracks the open connections of a server. If there are too many, it closes the oldest
// one without a request in progress, or else the oldest one.
type connections struct {
	mu   sync.Mutex        // guards the fields below
	open []net.Conn        // oldest first
	busy map[net.Conn]bool // connections with a request in progress
}

// connKey is the context key for the net.Conn of a request.
type connKey struct{}

// record is the server's ConnState callback.
func (o *connections) record(c net.Conn, state http.ConnState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(o.open) >= maxConnections {
			o.remove(o.dispensable())
		}
		o.open = append(o.open, c)
	case http.StateClosed, http.StateHijacked:
		o.remove(c)
	}
}

// dispensable returns the connection to close for a new one. The caller must hold mu.
func (o *connections) dispensable() net.Conn {
	return o.open[max(slices.IndexFunc(o.open, func(c net.Conn) bool { return !o.busy[c] }), 0)]
}

// remove closes a connection, unless it was removed before. The caller must hold mu.
func (o *connections) remove(c net.Conn) {
	if i := slices.Index(o.open, c); i >= 0 {
		o.open = slices.Delete(o.open, i, i+1)
		c.Close()
	}
}

// track wraps handler to record which connections have a request in progress.
func (o *connections) track(handler http.Handler) http.Handler {
	set := func(c net.Conn, busy bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if busy {
			o.busy[c] = true
		} else {
			delete(o.busy, c)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(net.Conn)
		set(c, true)
		defer set(c, false)
		handler.ServeHTTP(w, r)
	})
}

// checkHost wraps handler to reject DNS rebinding, in which a site makes its own name resolve to
// this machine. A local request must name an IP address, the machine's own name, or a name without
// a dot, which no site can have. Other machines may know this one by any name.
func checkHost(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		_, notAddress := netip.ParseAddr(host)
		own, _ := os.Hostname()
		isOurs := notAddress == nil || host != "" && !strings.Contains(host, ".") || strings.EqualFold(host, own)
		if !isOurs && isLocal(r) {
			// The message reveals nothing about the machine, because a site may read it.
			http.Error(w, "name this machine by an IP address, localhost, or its host name", http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func isLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return true
	}
	to, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return from.Addr().Unmap().IsLoopback() || to != nil && from.Addr().Unmap() == to.AddrPort().Addr().Unmap()
}
