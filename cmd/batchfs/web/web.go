// Package web serves HTTP to browsers and other programs. It limits the connections of clients that
// send incomplete requests, and rejects requests for other hosts.
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
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
		ErrorLog:          errorLog,
	}
	return server.Serve(listener)
}

// maxConnections limits how many descriptors clients can take from the process.
const maxConnections = 64

// connections tracks the open connections of a server. If there are too many, it closes the oldest
// one without a request, or else the oldest one.
type connections struct {
	mu   sync.Mutex        // guards the fields below
	all  []net.Conn        // oldest first
	busy map[net.Conn]bool // connections with a request in progress
}

// connection is the context key for the net.Conn of a request.
type connection struct{}

// record records new and closed connections. It is the server's ConnState callback.
func (o *connections) record(c net.Conn, state http.ConnState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(o.all) >= maxConnections {
			o.remove(o.dispensable())
		}
		o.all = append(o.all, c)
	case http.StateClosed, http.StateHijacked:
		o.remove(c)
	}
}

// dispensable returns the connection to close for a new one. The caller must hold mu.
func (o *connections) dispensable() net.Conn {
	for _, c := range o.all {
		if !o.busy[c] {
			return c
		}
	}
	return o.all[0]
}

// remove closes a connection, unless it was removed before. The caller must hold mu.
func (o *connections) remove(c net.Conn) {
	if i := slices.Index(o.all, c); i >= 0 {
		o.all = slices.Delete(o.all, i, i+1)
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
		c := r.Context().Value(connection{}).(net.Conn)
		set(c, true)
		defer set(c, false)
		handler.ServeHTTP(w, r)
	})
}

// checkHost wraps handler to reject DNS rebinding: requests from a site that made its own name
// resolve to this machine in a browser here. A request from this machine must be for an IP address,
// for a name without a dot, because no site can have one, or for the machine's own name. Other
// machines may know this one by any name.
func checkHost(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		_, notAddress := netip.ParseAddr(host)
		own, _ := os.Hostname()
		isOurs := notAddress == nil || host != "" && !strings.Contains(host, ".") || strings.EqualFold(host, own)
		if !isOurs && isFromHere(r) {
			// The message reveals nothing about the machine, because a site may read it.
			http.Error(w, "name this machine by an IP address, localhost, or its host name", http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// isFromHere reports whether a request comes from this machine.
func isFromHere(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return true
	}
	to, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return from.Addr().Unmap().IsLoopback() || to != nil && from.Addr().Unmap() == to.AddrPort().Addr().Unmap()
}
